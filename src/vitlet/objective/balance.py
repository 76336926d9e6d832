"""Adaptive weighting of the task losses while training.

Either kind multiplies the weight that a person chose; 1 everywhere is where both start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitlet.errors import VitletError

LARGEST = 100.0
"""A factor stays between this and its inverse: a loss near 0, or without gradient, must not take over."""

Weights = Mapping[str, float | Tensor]


class Balanced(NamedTuple):
    """A total, and what it was made with.

    Attributes:
        total: to call ``backward`` on.
        weights: what each task's loss counted for, detached.
        norms: gradient norms by name, if they are watched.
    """

    total: Tensor
    weights: dict[str, Tensor]
    norms: dict[str, Tensor]


class Balance(nn.Module, ABC):
    """Finds factors for losses by name; the loss that no weight is given for is that of the labels."""

    @abstractmethod
    def forward(self, losses: Mapping[str, Tensor], weights: Weights, model: nn.Module) -> Balanced:
        """The total of a step.

        Args:
            losses: scalars by name.
            weights: those that were chosen, by name of the task.
            model: the model that all losses are of.
        """

    def update(self, norms: Sequence[Mapping[str, float]]) -> None:
        """Update the running gradient norms after a step, equally in every process; a task may be missing."""


class Uncertainty(Balance):
    """Uncertainty weighting of losses with learned variances (Kendall et al., 2018, https://arxiv.org/abs/1705.07115).

    Kendall, Gal, Cipolla: "Multi-Task Learning Using Uncertainty to Weigh Losses for Scene Geometry and Semantics",
    CVPR 2018. A loss L counts as ``weight * (exp(-s) L + s / 2)``; left alone, ``exp(-s)`` goes to ``1 / 2L``.

    Args:
        names: names of the losses.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.spread = nn.ParameterDict({name: nn.Parameter(torch.zeros(1)) for name in names})

    def forward(self, losses: Mapping[str, Tensor], weights: Weights, model: nn.Module) -> Balanced:
        limit = math.log(LARGEST)
        counted, totals = {}, []
        for name, loss in losses.items():
            spread = limit * torch.tanh(self.spread[name] / limit).squeeze(0)  # bounded, and never stuck at a bound
            weight, factor = weights.get(name, 1.0), torch.exp(-spread)
            totals.append(weight * (factor * loss + spread / 2))
            counted[name] = (weight * factor).detach()
        return Balanced(torch.stack(totals).sum(), counted, {})


class GradientNorms(Balance):
    """Task weights that equalize gradient norms on the last shared layer (after GradNorm, https://arxiv.org/abs/1711.02257).

    After Chen, Badrinarayanan, Lee, Rabinovich: "GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep
    Multitask Networks", ICML 2018; but the norms are met at once, by moving averages, where GradNorm descends on the
    weights and also looks at how fast each task learns. Without labels the mean of all norms takes their place.

    Args:
        names: names of the losses, that of the labels first if there is one.
        labels: whether there is one.
        memory: share of the moving average that stays at each step.
    """

    def __init__(self, names: Sequence[str], *, labels: bool = True, memory: float = 0.9) -> None:
        super().__init__()
        self.names, self.labels, self.memory = tuple(names), labels, memory
        self.average: Tensor
        self.register_buffer("average", torch.zeros(len(self.names)))  # 0: not known yet
        self.shared: str | None = None

    def factors(self) -> dict[str, Tensor]:
        """Weight factors by task name; 1 until the first step is over."""
        known = self.average > 0
        reference = self.average[0] if self.labels else self.average.mean()
        found = (reference / self.average.clamp(min=1e-30)).clamp(1 / LARGEST, LARGEST)
        usable = known & (reference > 0)
        return dict(zip(self.names, torch.where(usable, found, torch.ones_like(found)), strict=True))

    def forward(self, losses: Mapping[str, Tensor], weights: Weights, model: nn.Module) -> Balanced:
        if self.shared is None:
            self.shared = _last_shared(losses, model)
        place = model.get_parameter(self.shared)
        norms = {
            name: torch.autograd.grad(loss, place, retain_graph=True)[0].detach().float().norm()
            for name, loss in losses.items()
        }
        factors = self.factors()
        counted = {name: torch.as_tensor(weights.get(name, 1.0) * factors[name]) for name in losses}
        total = torch.stack([counted[name] * loss for name, loss in losses.items()]).sum()
        return Balanced(total, counted, norms)

    @torch.no_grad()
    def update(self, norms: Sequence[Mapping[str, float]]) -> None:
        given = [[part[name] for part in norms if name in part] for name in self.names]
        found = self.average.new_tensor([sum(each) / max(1, len(each)) for each in given])
        kept = self.memory * self.average + (1 - self.memory) * found
        seen = torch.tensor([bool(each) for each in given], device=found.device)
        self.average.copy_(torch.where(seen, torch.where(self.average > 0, kept, found), self.average))


def _last_shared(losses: Mapping[str, Tensor], model: nn.Module) -> str:
    """Name of the last weight matrix that every loss depends on."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad and weight.ndim > 1]
    shared = [name for name, _ in named]
    for loss in losses.values():
        slopes = torch.autograd.grad(loss, [weight for _, weight in named], retain_graph=True, allow_unused=True)
        reached = {name for (name, _), slope in zip(named, slopes, strict=True) if slope is not None}
        shared = [name for name in shared if name in reached]
    if not shared:
        raise VitletError(
            f"{', '.join(losses)} share no trainable weights, so their gradients cannot be balanced. Use"
            " balance_tasks fixed or uncertainty."
        )
    return shared[-1]
