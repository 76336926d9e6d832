"""Cascade R-CNN on torchvision's region heads: three stages, each trained on the boxes that the one before refined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, clip_boxes_to_image
from torchvision.ops.poolers import initLevelMapper

THRESHOLDS = (0.5, 0.6, 0.7)
"""Overlap with an object from which a box counts as that object, by stage."""

PRECISION = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
"""By what box offsets are multiplied before they are learned: later stages correct less."""

STAGE_WEIGHTS = (1.0, 0.5, 0.25)
"""Of the stages' losses."""

Boxes = list[Tensor]
ImageSizes = Sequence[tuple[int, int]]


def region_pool(strides: Sequence[int], cells: int) -> MultiScaleRoIAlign:
    """torchvision's pooling of regions to ``cells x cells``, told the strides of the maps.

    Left alone it infers them from the first image that it sees: wrongly where that image is much lower than the canvas
    it is padded to, and for good. No checkpoint would hold them either.
    """
    pool = MultiScaleRoIAlign([str(index) for index in range(len(strides))], cells, sampling_ratio=2)
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = initLevelMapper(int(math.log2(strides[0])), int(math.log2(strides[-1])))
    return pool


class AgnosticPredictor(nn.Module):
    """Class scores, and one box whatever the class, repeated for each so that torchvision's losses can read it."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cls_score, self.bbox_pred = nn.Linear(width, classes), nn.Linear(width, 4)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """``(R, width)`` -> ``(R, classes)`` and ``(R, classes * 4)``."""
        scores = self.cls_score(features)
        return scores, self.bbox_pred(features).repeat(1, scores.shape[1])


class CascadeHeads(nn.Module):
    """In place of torchvision's ``roi_heads``: three of them.

    Args:
        strides: of the maps that regions are pooled from.
        channels: of these maps.
        width: units of the box heads.
        classes: with the background.
        masks: the stages with a mask head; None for boxes alone.
    """

    def __init__(
        self, strides: Sequence[int], channels: int, width: int, classes: int, masks: Literal["last", "all"] | None
    ) -> None:
        super().__init__()
        stages = []
        for number, (threshold, precision) in enumerate(zip(THRESHOLDS, PRECISION, strict=True), start=1):
            with_mask = masks == "all" or (masks == "last" and number == len(THRESHOLDS))
            convolutions = [channels] * 4
            stages.append(
                RoIHeads(
                    region_pool(strides, 7),
                    FastRCNNConvFCHead((channels, 7, 7), convolutions, [width], norm_layer=nn.BatchNorm2d),
                    AgnosticPredictor(width, classes),
                    fg_iou_thresh=threshold,
                    bg_iou_thresh=threshold,
                    batch_size_per_image=512,
                    positive_fraction=0.25,
                    bbox_reg_weights=precision,
                    score_thresh=0.05,
                    nms_thresh=0.5,
                    detections_per_img=100,
                    mask_roi_pool=region_pool(strides, 14) if with_mask else None,
                    mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1) if with_mask else None,
                    mask_predictor=MaskRCNNPredictor(channels, channels, classes) if with_mask else None,
                )
            )
        self.stages = nn.ModuleList(stages)

    def forward(
        self, features: dict[str, Tensor], proposals: Boxes, sizes: ImageSizes, targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """As torchvision's: detections in evaluation, losses in training."""
        if self.training:
            return [], self._losses(features, proposals, sizes, targets)
        return self._detections(features, proposals, sizes), {}

    def _losses(
        self, features: dict[str, Tensor], proposals: Boxes, sizes: ImageSizes, targets: Any
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for number, (stage, weight) in enumerate(zip(self.stages, STAGE_WEIGHTS, strict=True), start=1):
            assert isinstance(stage, RoIHeads)
            proposals, matched, labels, offsets = stage.select_training_samples(proposals, targets)
            scores, boxes = _boxes(stage, features, proposals, sizes)
            for_class, for_box = fastrcnn_loss(scores, boxes, labels, offsets)
            losses[f"class_{number}"], losses[f"box_{number}"] = weight * for_class, weight * for_box
            if stage.has_mask():
                losses[f"mask_{number}"] = weight * _mask_loss(
                    stage, features, proposals, sizes, targets, matched, labels
                )
            proposals = _refined(stage, boxes, proposals, sizes)
        return losses

    def _detections(self, features: dict[str, Tensor], proposals: Boxes, sizes: ImageSizes) -> list[dict[str, Tensor]]:
        """Scores are the mean of the stages', each on the boxes that it saw; boxes are the last stage's."""
        total: Tensor | None = None
        for stage in self.stages:
            seen = proposals
            scores, boxes = _boxes(stage, features, seen, sizes)
            share = scores.softmax(-1) / len(self.stages)
            total = share if total is None else total + share
            proposals = _refined(stage, boxes, seen, sizes)
        assert total is not None
        last: Any = self.stages[-1]
        # torchvision applies a softmax to what it is given: that of logarithms of probabilities gives them back.
        found, scored, labels = last.postprocess_detections(total.clamp(min=1e-12).log(), boxes, seen, sizes)
        result = [
            {"boxes": box, "labels": label, "scores": score}
            for box, label, score in zip(found, labels, scored, strict=True)
        ]
        with_masks: list[Any] = [stage for stage in self.stages if stage.has_mask()]  # type: ignore[operator]
        if with_masks:
            every = [maskrcnn_inference(_mask_logits(stage, features, found, sizes), labels) for stage in with_masks]
            for index, each in enumerate(result):
                each["masks"] = torch.stack([masks[index] for masks in every]).mean(0)
        return result


def _boxes(stage: Any, features: dict[str, Tensor], proposals: Boxes, sizes: ImageSizes) -> tuple[Tensor, Tensor]:
    """Scores and offsets of a stage for the boxes it is given."""
    pooled = stage.box_roi_pool(features, proposals, sizes)
    scores, offsets = stage.box_predictor(stage.box_head(pooled))
    return scores, offsets


@torch.no_grad()
def _refined(stage: Any, offsets: Tensor, proposals: Boxes, sizes: ImageSizes) -> Boxes:
    """The boxes moved by a stage's offsets, which are the same for every class, and cut at the image's border."""
    counts = [len(each) for each in proposals]
    decoded = stage.box_coder.decode(offsets, proposals)[:, 0].split(counts)
    return [clip_boxes_to_image(boxes, size) for boxes, size in zip(decoded, sizes, strict=True)]


def _mask_logits(stage: Any, features: dict[str, Tensor], boxes: Boxes, sizes: ImageSizes) -> Tensor:
    logits: Tensor = stage.mask_predictor(stage.mask_head(stage.mask_roi_pool(features, boxes, sizes)))
    return logits


def _mask_loss(
    stage: Any,
    features: dict[str, Tensor],
    proposals: Boxes,
    sizes: ImageSizes,
    targets: Any,
    matched: list[Tensor],
    labels: list[Tensor],
) -> Tensor:
    """Of the boxes that are objects."""
    objects = [torch.where(label > 0)[0] for label in labels]
    boxes = [box[index] for box, index in zip(proposals, objects, strict=True)]
    which = [match[index] for match, index in zip(matched, objects, strict=True)]
    masks, classes = [each["masks"] for each in targets], [each["labels"] for each in targets]
    loss: Tensor = maskrcnn_loss(_mask_logits(stage, features, boxes, sizes), boxes, masks, classes, which)
    return loss
