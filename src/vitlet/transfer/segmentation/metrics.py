"""Segmentation metrics, exact over all pixels of a set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitlet.statistics import confusion
from vitlet.transfer.segmentation.masks import IGNORED


@dataclass(frozen=True)
class SegmentationScores:
    """Segmentation metrics in percent; classes absent from both masks and predictions do not count.

    Attributes:
        count: images.
        miou: mean over classes of intersection over union.
        macc: mean over classes of the share of their pixels that is right.
        accuracy: share of all pixels that is right.
        per_class: intersection over union of each class, None where it does not occur.
    """

    count: int
    miou: float
    macc: float
    accuracy: float
    per_class: tuple[float | None, ...] = ()

    def to_dict(self) -> dict[str, float]:
        """The plain numbers."""
        return {"count": float(self.count), "mIoU": self.miou, "mAcc": self.macc, "pixel_accuracy": self.accuracy}

    @classmethod
    def from_dict(cls, numbers: Mapping[str, float]) -> SegmentationScores:
        """Create from the values of `to_dict`."""
        return cls(int(numbers["count"]), numbers["mIoU"], numbers["mAcc"], numbers["pixel_accuracy"])


def pixel_confusion(predicted: Tensor, mask: Tensor, classes: int) -> Tensor:
    """``(classes, classes)`` counts of pixels: row by the mask, column by the prediction; ignored pixels left out."""
    counted = mask != IGNORED
    return torch.from_numpy(confusion(mask[counted].long().numpy(), predicted[counted].long().numpy(), classes))


def segmentation_scores(matrix: Tensor, images: int) -> SegmentationScores:
    """The numbers of a confusion matrix."""
    counts = matrix.double()
    right, truth, answers = counts.diag(), counts.sum(1), counts.sum(0)
    union = truth + answers - right
    overlap = right[union > 0] / union[union > 0]
    share = right[truth > 0] / truth[truth > 0]
    per_class = tuple(
        100 * float(right[index] / union[index]) if union[index] > 0 else None for index in range(len(union))
    )
    total = float(counts.sum())
    return SegmentationScores(
        images,
        100 * float(overlap.mean()) if len(overlap) else 0.0,
        100 * float(share.mean()) if len(share) else 0.0,
        100 * float(right.sum()) / total if total else 0.0,
        per_class,
    )
