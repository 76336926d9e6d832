"""Numbers that change while training: functions of the epoch, which may be fractional."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from vitlet.errors import VitletError

Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Constant:
    """Constant schedule."""

    value: float

    def __call__(self, epoch: float) -> float:
        return self.value


@dataclass(frozen=True)
class Ramp:
    """Weight schedule: linear from 0 to ``value`` over the warm-up, then linear down to 0 at the last epoch.

    The released DRLoc code uses it with 20 epochs of warm-up.

    Example:
        >>> term = vitlet.Term(vitlet.DRLoc(), vitlet.Ramp(0.5, epochs=100, warmup_epochs=20))
    """

    value: float
    epochs: float
    warmup_epochs: float

    def __post_init__(self) -> None:
        if not 0 < self.warmup_epochs < self.epochs:
            raise VitletError(
                f"a ramp needs a warm-up between 0 and its {self.epochs:g} epochs, found {self.warmup_epochs:g}."
            )

    def __call__(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            return self.value * epoch / self.warmup_epochs
        left = (self.epochs - epoch) / (self.epochs - self.warmup_epochs)
        return self.value * max(0.0, left)


@dataclass(frozen=True)
class WarmupCosine:
    """Learning rate: linear from ``start`` to ``peak``, then half a cosine down to ``end``."""

    peak: float
    epochs: float
    warmup_epochs: float = 0.0
    start: float = 0.0
    end: float = 0.0

    def __call__(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            return self.start + (self.peak - self.start) * epoch / self.warmup_epochs
        span = max(self.epochs - self.warmup_epochs, 1e-12)
        progress = min(1.0, (epoch - self.warmup_epochs) / span)
        return self.end + (self.peak - self.end) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class WarmupQuarterCosine:
    """Learning rate: linear from 0 to ``peak``, then a quarter of a cosine down to ``end``, counted from the start.

    The released code of RelViT: it stays high for longer than half a cosine, and is past its peak after the warm-up.
    """

    peak: float
    epochs: float
    warmup_epochs: float = 0.0
    end: float = 0.0

    def __call__(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            return self.peak * epoch / self.warmup_epochs
        return self.end + (self.peak - self.end) * math.cos(math.pi / 2 * min(1.0, epoch / self.epochs))


@dataclass(frozen=True)
class WarmupStableDecay:
    """Learning rate: linear from 0 to ``peak``, constant, then linear down to ``end`` over the last epochs.

    A run that is cut before its decay is comparable with a longer one at the same epoch.
    """

    peak: float
    epochs: float
    warmup_epochs: float = 0.0
    end: float = 0.0
    decay: float = 0.3

    def __call__(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            return self.peak * epoch / self.warmup_epochs
        span = min(self.decay * self.epochs, self.epochs - self.warmup_epochs)
        left = min(1.0, max(0.0, self.epochs - epoch) / max(span, 1e-12))
        return self.end + (self.peak - self.end) * left


@dataclass(frozen=True)
class WarmupLinear:
    """Learning rate: linear from 0 to ``peak``, then linear down to ``end``."""

    peak: float
    epochs: float
    warmup_epochs: float = 0.0
    end: float = 0.0

    def __call__(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            return self.peak * epoch / self.warmup_epochs
        progress = min(1.0, (epoch - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-12))
        return self.peak + (self.end - self.peak) * progress


@dataclass(frozen=True)
class WarmupSteps:
    """Learning rate: linear from 0 to ``peak``, then multiplied by ``rate`` at each milestone."""

    peak: float
    milestones: tuple[float, ...]
    rate: float = 0.1
    warmup_epochs: float = 0.0

    def __call__(self, epoch: float) -> float:
        if epoch < self.warmup_epochs:
            return self.peak * epoch / self.warmup_epochs
        return self.peak * self.rate ** sum(epoch >= milestone for milestone in self.milestones)
