"""How good a network is on labelled images."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Scores:
    """Exact over the whole set: accuracies in percent, mean cross-entropy."""

    count: int
    top1: float
    top5: float
    loss: float

    def to_dict(self) -> dict[str, float]:
        """Plain numbers."""
        return asdict(self)


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loader: DataLoader[Any],
    *,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Scores:
    """Top-1 and top-5 accuracy and loss of a network."""
    model.eval()
    count, top1, top5, loss = 0, 0, 0, 0.0
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with autocast():
            logits = model(images).float()
        ranked = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        count += len(labels)
        top1 += int(ranked[:, 0].sum())
        top5 += int(ranked.sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    return Scores(count, 100 * top1 / count, 100 * top5 / count, loss / count)
