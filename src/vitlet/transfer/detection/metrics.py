"""COCO's average precision of boxes and masks, by faster-coco-eval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitlet.errors import require_extra
from vitlet.transfer.detection.coco import CocoImage, CocoSplit
from vitlet.transfer.detection.masks import encode

COCO_NUMBERS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
"""The first of COCO's twelve numbers."""


@dataclass(frozen=True)
class DetectionScores:
    """COCO metrics over a set, in percent; -1 where no object is of that size.

    Attributes:
        count: images.
        box: metrics of boxes, by `COCO_NUMBERS`.
        mask: metrics of masks, empty for a detector without masks.
        per_class: box AP of each class, None where there is no object of it.
    """

    count: int
    box: Mapping[str, float]
    mask: Mapping[str, float]
    per_class: tuple[float | None, ...] = ()

    def to_dict(self) -> dict[str, float]:
        """The plain numbers, without those of sizes that no object has."""
        found = {"count": float(self.count)}
        for kind, numbers in (("box", self.box), ("mask", self.mask)):
            found |= {f"{kind}_{name}": value for name, value in numbers.items() if value >= 0 or name == "AP"}
        return found

    @classmethod
    def from_dict(cls, numbers: Mapping[str, float]) -> DetectionScores:
        """Create from the values of `to_dict`."""
        box, mask = (
            {name: numbers[f"{kind}_{name}"] for name in COCO_NUMBERS if f"{kind}_{name}" in numbers}
            for kind in ("box", "mask")
        )
        if "AP" not in box:
            raise KeyError("box_AP")
        return cls(int(numbers["count"]), box, mask)


def detections(image: CocoImage, found: Mapping[str, Tensor], categories: Sequence[int]) -> list[dict[str, Any]]:
    """Detections of an image as COCO result entries.

    Args:
        image: which.
        found: ``boxes`` as corners in the image's own pixels, ``labels`` from 1, ``scores``, and maybe ``masks``
            ``(N, 1, height, width)`` as probabilities.
        categories: their ids in COCO's file.
    """
    boxes = found["boxes"].float().cpu()
    boxes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], dim=1)
    masks = [encode(mask[0] > 0.5) for mask in found["masks"]] if "masks" in found else [None] * len(boxes)
    return [
        {"image_id": image.id, "category_id": categories[label - 1], "bbox": box, "score": score}
        | ({} if mask is None else {"segmentation": mask})
        for box, label, score, mask in zip(
            boxes.tolist(), found["labels"].tolist(), found["scores"].float().tolist(), masks, strict=True
        )
    ]


def ground_truth(split: CocoSplit) -> dict[str, Any]:
    """The annotations of a split as the content of a COCO file; crowds and objects without area included."""
    annotations: list[dict[str, Any]] = []
    for image in split.images:
        for thing in image.things:
            mask = thing.segmentation or _filled(image, thing.box)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image.id,
                    "category_id": split.categories[thing.label][0],
                    "bbox": list(thing.box),
                    "area": thing.area,
                    "iscrowd": int(thing.crowd),
                    "segmentation": {"size": list(mask["size"]), "counts": mask["counts"]},
                }
            )
    return {
        "info": {},
        "images": [{"id": image.id, "height": image.height, "width": image.width} for image in split.images],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in split.categories],
    }


def _filled(image: CocoImage, box: tuple[float, float, float, float]) -> dict[str, Any]:
    """A mask for what has none: its box."""
    mask = torch.zeros(image.height, image.width)
    left, top, right, bottom = (round(side) for side in (box[0], box[1], box[0] + box[2], box[1] + box[3]))
    mask[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = 1
    return encode(mask)


def average_precision(split: CocoSplit, results: Sequence[Mapping[str, Any]], *, masks: bool) -> DetectionScores:
    """COCO's numbers of these results."""
    library = require_extra("faster_coco_eval", "detection", "average precision")
    if not results:
        present = {thing.label for image in split.images for thing in image.things if not thing.crowd}
        none = dict.fromkeys(COCO_NUMBERS[:3], 0.0 if present else -1.0)
        by_class = tuple(0.0 if label in present else None for label in range(len(split.categories)))
        return DetectionScores(len(split.images), none, none if masks else {}, by_class)
    truth = library.COCO(ground_truth(split))
    found = truth.loadRes([dict(each) for each in results])
    boxes, of_boxes = _evaluated(library.COCOeval_faster(truth, found, "bbox"))
    of_masks = _evaluated(library.COCOeval_faster(truth, found, "segm"))[1] if masks else {}
    return DetectionScores(len(split.images), of_boxes, of_masks, _per_class(boxes.eval["precision"]))


def _evaluated(evaluation: Any) -> tuple[Any, dict[str, float]]:
    """An evaluation, done, and its numbers."""
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    stats = [float(value) for value in evaluation.stats[: len(COCO_NUMBERS)]]
    return evaluation, {
        name: 100 * value if value >= 0 else -1.0 for name, value in zip(COCO_NUMBERS, stats, strict=True)
    }


def _per_class(precision: Any) -> tuple[float | None, ...]:
    """Mean over overlaps and recalls, all sizes, 100 detections; -1 marks what has no object."""
    found = precision[:, :, :, 0, -1]  # overlaps, recalls, classes
    columns = (found[:, :, index] for index in range(found.shape[2]))
    return tuple(float(100 * each[each > -1].mean()) if (each > -1).any() else None for each in columns)
