"""How good a network is on labelled images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from vitlet.objective import Objective


@dataclass(frozen=True)
class Scores:
    """Exact over the whole set: accuracies in percent, mean cross-entropy.

    Attributes:
        count: images.
        top1: share whose first guess is right.
        top5: share with the class among the first five guesses.
        balanced: mean of the classes' own accuracies; classes without images do not count.
        loss: mean cross-entropy.
        per_class: accuracy of each class, None where it has no image.
    """

    count: int
    top1: float
    top5: float
    balanced: float
    loss: float
    per_class: tuple[float | None, ...] = ()

    def to_dict(self) -> dict[str, float]:
        """The plain numbers."""
        return {name: getattr(self, name) for name in ("count", "top1", "top5", "balanced", "loss")}

    @staticmethod
    def from_dict(numbers: Mapping[str, float]) -> Scores:
        """From the numbers of `to_dict`."""
        top1, top5, balanced, loss = (numbers[name] for name in ("top1", "top5", "balanced", "loss"))
        return Scores(int(numbers["count"]), top1, top5, balanced, loss)


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loader: DataLoader[Any],
    *,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Scores:
    """Accuracies and loss of a network."""
    model.eval()
    count, top5, loss = 0, 0, 0.0
    right = seen = torch.zeros(0)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with autocast():
            logits = model(images).float()
        ranked = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        if not count:
            right, seen = logits.new_zeros(2, logits.shape[1])
        right = right.index_add(0, labels, ranked[:, 0].float())
        seen = seen.index_add(0, labels, torch.ones_like(ranked[:, 0], dtype=torch.float32))
        count += len(labels)
        top5 += int(ranked.sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    pairs = zip(right.tolist(), seen.tolist(), strict=True)
    per_class = tuple(100 * hit / of if of else None for hit, of in pairs)
    known = [accuracy for accuracy in per_class if accuracy is not None]
    top1 = 100 * float(right.sum()) / count
    return Scores(count, top1, 100 * top5 / count, sum(known) / len(known), loss / count, per_class)


@torch.inference_mode()
def evaluate_tasks(
    objective: Objective,
    loader: DataLoader[Any],
    *,
    weights: Mapping[str, float],
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> dict[str, float]:
    """Mean loss and metrics of the tasks alone; what they sample is the same every time."""
    objective.eval()
    sums: dict[str, float] = defaultdict(float)
    count = 0
    for number, (images, _) in enumerate(loader):
        torch.manual_seed(number)
        with autocast():
            outcome = objective(images.to(device, non_blocking=True), None, weights)
        found = {"loss": outcome.loss, **outcome.parts, **outcome.metrics}
        count += len(images)
        for name, value in found.items():
            sums[name] += float(value) * len(images)
    return {name: total / count for name, total in sums.items()}
