"""Mixup and cutmix of training batches, with a probability and an end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from vitlet.config import RunConfig


class Mixing:
    """Mixup or cutmix, at equal odds where both are on; draws from torch's generator, which the loop seeds.

    Args:
        config: resolved settings.
    """

    def __init__(self, config: RunConfig) -> None:
        self.kinds: list[Any] = []
        if config.mixup:
            self.kinds.append(v2.MixUp(alpha=config.mixup, num_classes=config.num_classes))
        if config.cutmix:
            self.kinds.append(v2.CutMix(alpha=config.cutmix, num_classes=config.num_classes))
        self.probability = 1.0 if config.mixup_prob is None else config.mixup_prob
        self.end = config.mixup_off_epoch or float("inf")
        self.choice = v2.RandomChoice(self.kinds) if self.kinds else None

    def __call__(self, images: Tensor, labels: Tensor, epoch: float) -> tuple[Tensor, Tensor]:
        """The batch, mixed or as it is; mixed labels are shares of classes ``(B, classes)``."""
        if self.choice is None or epoch >= self.end:
            return images, labels
        if self.probability < 1 and float(torch.rand(())) >= self.probability:
            return images, labels
        mixed: tuple[Tensor, Tensor] = self.choice(images, labels)
        return mixed
