"""COCO's average precision of boxes and masks, by faster-coco-eval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitlet.errors import require_extra
from vitlet.transfer.detection.coco import CocoImage
from vitlet.transfer.detection.masks import encode

COCO_NUMBERS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
"""The first of COCO's twelve numbers."""


@dataclass(frozen=True)
class DetectionScores:
    """COCO's numbers over a whole set, in percent; -1 where no object is of that size.

    Attributes:
        count: images.
        box: of boxes, by `COCO_NUMBERS`.
        mask: of masks, empty for a detector without.
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
        """From the numbers of `to_dict`."""
        box, mask = (
            {name: numbers[f"{kind}_{name}"] for name in COCO_NUMBERS if f"{kind}_{name}" in numbers}
            for kind in ("box", "mask")
        )
        if "AP" not in box:
            raise KeyError("box_AP")
        return cls(int(numbers["count"]), box, mask)


def detections(image: CocoImage, found: Mapping[str, Tensor], categories: Sequence[int]) -> list[dict[str, Any]]:
    """What was found in an image as COCO's result entries.

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


def ground_truth(images: Sequence[CocoImage], categories: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """The annotations of these images as the content of a COCO file; crowds and objects without area included."""
    annotations: list[dict[str, Any]] = []
    for image in images:
        for thing in image.things:
            left, top, width, height = thing.box
            mask = thing.segmentation or _filled(image, thing.box)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image.id,
                    "category_id": categories[thing.label][0],
                    "bbox": [left, top, width, height],
                    "area": thing.area,
                    "iscrowd": int(thing.crowd),
                    "segmentation": {"size": list(mask["size"]), "counts": mask["counts"]},
                }
            )
    return {
        "info": {},
        "images": [{"id": image.id, "height": image.height, "width": image.width} for image in images],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in categories],
    }


def _filled(image: CocoImage, box: tuple[float, float, float, float]) -> dict[str, Any]:
    """A mask for what has none: its box."""
    mask = torch.zeros(image.height, image.width)
    left, top, right, bottom = (round(side) for side in (box[0], box[1], box[0] + box[2], box[1] + box[3]))
    mask[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = 1
    return encode(mask)


def average_precision(
    images: Sequence[CocoImage],
    categories: Sequence[tuple[int, str]],
    results: Sequence[Mapping[str, Any]],
    *,
    masks: bool,
) -> DetectionScores:
    """COCO's numbers of these results."""
    library = require_extra("faster_coco_eval", "detection", "average precision")
    truth = library.COCO(ground_truth(images, categories))
    kinds: dict[str, dict[str, float]] = {"bbox": {}, "segm": {}}
    per_class: tuple[float | None, ...] = ()
    for kind, numbers in kinds.items():
        if kind == "segm" and not masks:
            continue
        if not results:
            present = {thing.label for image in images for thing in image.things if not thing.crowd}
            numbers |= dict.fromkeys(COCO_NUMBERS[:3], 0.0 if present else -1.0)
            per_class = tuple(0.0 if label in present else None for label in range(len(categories)))
            continue
        evaluation = library.COCOeval_faster(truth, truth.loadRes([dict(each) for each in results]), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        stats = [float(value) for value in evaluation.stats[: len(COCO_NUMBERS)]]
        numbers |= {name: 100 * value if value >= 0 else -1.0 for name, value in zip(COCO_NUMBERS, stats, strict=True)}
        if kind == "bbox":
            per_class = _per_class(evaluation.eval["precision"])
    return DetectionScores(len(images), kinds["bbox"], kinds["segm"], per_class)


def _per_class(precision: Any) -> tuple[float | None, ...]:
    """Mean over overlaps and recalls, all sizes, 100 detections; -1 marks what has no object."""
    found = precision[:, :, :, 0, -1]  # overlaps, recalls, classes
    columns = (found[:, :, index] for index in range(found.shape[2]))
    return tuple(float(100 * each[each > -1].mean()) if (each > -1).any() else None for each in columns)
