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
Maps = dict[str, Tensor]
CanvasSizes = Sequence[tuple[int, int]]


def region_pool(strides: Sequence[int], cells: int) -> MultiScaleRoIAlign:
    """torchvision's RoIAlign to ``cells x cells`` with the given strides of the maps.

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


class CascadeStage(RoIHeads):  # type: ignore[misc]  # torchvision has no types here
    """torchvision's region heads with one box whatever the class, and a mask head or none."""

    def __init__(
        self, number: int, strides: Sequence[int], channels: int, width: int, classes: int, *, with_mask: bool
    ) -> None:
        super().__init__(
            region_pool(strides, 7),
            FastRCNNConvFCHead((channels, 7, 7), [channels] * 4, [width], norm_layer=nn.BatchNorm2d),
            AgnosticPredictor(width, classes),
            fg_iou_thresh=THRESHOLDS[number],
            bg_iou_thresh=THRESHOLDS[number],
            batch_size_per_image=512,
            positive_fraction=0.25,
            bbox_reg_weights=PRECISION[number],
            score_thresh=0.05,
            nms_thresh=0.5,
            detections_per_img=100,
            mask_roi_pool=region_pool(strides, 14) if with_mask else None,
            mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1) if with_mask else None,
            mask_predictor=MaskRCNNPredictor(channels, channels, classes) if with_mask else None,
        )

    def classified(self, maps: Maps, proposals: Boxes, sizes: CanvasSizes) -> tuple[Tensor, Tensor]:
        """Scores and offsets for the boxes that it is given."""
        scores, offsets = self.box_predictor(self.box_head(self.box_roi_pool(maps, proposals, sizes)))
        return scores, offsets

    @torch.no_grad()
    def refined(self, offsets: Tensor, proposals: Boxes, sizes: CanvasSizes) -> Boxes:
        """The boxes moved by offsets, which are the same for every class, and cut at the image's border."""
        decoded = self.box_coder.decode(offsets, proposals)[:, 0].split([len(each) for each in proposals])
        return [clip_boxes_to_image(boxes, size) for boxes, size in zip(decoded, sizes, strict=True)]

    def mask_logits(self, maps: Maps, boxes: Boxes, sizes: CanvasSizes) -> Tensor:
        """Mask logits of each box, for every class."""
        logits: Tensor = self.mask_predictor(self.mask_head(self.mask_roi_pool(maps, boxes, sizes)))
        return logits

    def losses(self, maps: Maps, proposals: Boxes, sizes: CanvasSizes, targets: Any) -> tuple[dict[str, Tensor], Boxes]:
        """Losses by name, and the boxes for the next stage."""
        proposals, matched, labels, wanted = self.select_training_samples(proposals, targets)
        scores, offsets = self.classified(maps, proposals, sizes)
        for_class, for_box = fastrcnn_loss(scores, offsets, labels, wanted)
        losses = {"class": for_class, "box": for_box}
        if self.has_mask():  # of the boxes that are objects
            objects = [torch.where(label > 0)[0] for label in labels]
            boxes = [box[index] for box, index in zip(proposals, objects, strict=True)]
            which = [match[index] for match, index in zip(matched, objects, strict=True)]
            masks, classes = [each["masks"] for each in targets], [each["labels"] for each in targets]
            losses["mask"] = maskrcnn_loss(self.mask_logits(maps, boxes, sizes), boxes, masks, classes, which)
        return losses, self.refined(offsets, proposals, sizes)


class CascadeHeads(nn.Module):
    """Cascade of three stages in place of torchvision's ``roi_heads``.

    Args:
        strides: strides of the maps that regions are pooled from.
        channels: of these maps.
        width: units of the box heads.
        classes: with the background.
        masks: the stages with a mask head; None for boxes alone.
    """

    def __init__(
        self, strides: Sequence[int], channels: int, width: int, classes: int, masks: Literal["last", "all"] | None
    ) -> None:
        super().__init__()
        last = len(THRESHOLDS) - 1
        having = {"all": range(last + 1), "last": [last], None: []}[masks]
        self.stages = nn.ModuleList(
            CascadeStage(number, strides, channels, width, classes, with_mask=number in having)
            for number in range(last + 1)
        )

    def forward(
        self, maps: Maps, proposals: Boxes, sizes: CanvasSizes, targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections in evaluation, losses in training, as in torchvision."""
        if not self.training:
            return self._detections(maps, proposals, sizes), {}
        losses: dict[str, Tensor] = {}
        stages: Any = self.stages
        for number, (stage, weight) in enumerate(zip(stages, STAGE_WEIGHTS, strict=True), start=1):
            found, proposals = stage.losses(maps, proposals, sizes, targets)
            losses |= {f"{name}_{number}": weight * loss for name, loss in found.items()}
        return [], losses

    def _detections(self, maps: Maps, proposals: Boxes, sizes: CanvasSizes) -> list[dict[str, Tensor]]:
        """Scores are the mean of the stages', each on the boxes that it saw; boxes are the last stage's."""
        stages: Any = self.stages
        total = torch.zeros(())
        for stage in stages:
            seen = proposals
            scores, offsets = stage.classified(maps, seen, sizes)
            total = total.to(scores.device) + scores.softmax(-1) / len(stages)
            proposals = stage.refined(offsets, seen, sizes)
        # torchvision applies a softmax to what it is given: that of logarithms of probabilities gives them back.
        found, scored, labels = stages[-1].postprocess_detections(total.clamp(min=1e-12).log(), offsets, seen, sizes)
        result = [
            {"boxes": box, "labels": label, "scores": score}
            for box, label, score in zip(found, labels, scored, strict=True)
        ]
        with_masks = [stage for stage in stages if stage.has_mask()]
        if with_masks:
            every = [maskrcnn_inference(stage.mask_logits(maps, found, sizes), labels) for stage in with_masks]
            for index, each in enumerate(result):
                each["masks"] = torch.stack([masks[index] for masks in every]).mean(0)
        return result
