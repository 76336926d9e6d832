"""Mask R-CNN with a feature pyramid, of torchvision's parts, on the grids of any backbone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from vitlet.tokens.features import Features
from vitlet.transfer.common.objective import DenseHead
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.detection.cascade import CascadeHeads, region_pool

ANCHOR = 8
"""Side of an anchor in cells of its map: 32 pixels at stride 4, as usual."""


class Neck(nn.Module):
    """A norm for every level of the backbone, then a feature pyramid with one coarser level."""

    def __init__(self, levels: Levels, channels: int) -> None:
        super().__init__()
        self.levels, self.out_channels = levels, channels
        self.norms = nn.ModuleList(LayerNorm2d(level.channels, eps=1e-6) for level in levels.levels)
        self.pyramid = FeaturePyramidNetwork(
            [level.channels for level in levels.levels], channels, extra_blocks=LastLevelMaxPool()
        )

    def forward(self, grids: Sequence[Tensor]) -> dict[str, Tensor]:
        """Maps by name from fine to coarse: ``0``, ``1``, ... and ``pool``."""
        maps = [norm(level) for norm, level in zip(self.norms, self.levels(grids), strict=True)]
        found: dict[str, Tensor] = self.pyramid(OrderedDict((str(index), each) for index, each in enumerate(maps)))
        return found


class DetectionHead(DenseHead):
    """Everything of a detector but its backbone.

    Args:
        levels: levels of the backbone.
        classes: without the background.
        kind: one stage, or a cascade.
        masks: stages of a cascade that have a mask head; None for boxes alone.
        channels: channels of the pyramid and the mask head.
        width: units of the box head.
    """

    def __init__(
        self,
        levels: Levels,
        classes: int,
        *,
        kind: Literal["mask-rcnn", "cascade"] = "mask-rcnn",
        masks: Literal["last", "all"] | None = "last",
        channels: int = 256,
        width: int = 1024,
    ) -> None:
        super().__init__()
        strides = [level.stride for level in levels.levels]
        sizes = tuple((ANCHOR * stride,) for stride in (*strides, 2 * strides[-1]))
        rcnn: Any = MaskRCNN(
            Neck(levels, channels),
            rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
            box_roi_pool=region_pool(strides, 7),
            box_head=TwoMLPHead(channels * 7 * 7, width),
            box_predictor=FastRCNNPredictor(width, classes + 1),
            mask_roi_pool=region_pool(strides, 14),
            mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1),
            mask_predictor=MaskRCNNPredictor(channels, channels, classes + 1),
        )
        if kind == "cascade":
            rcnn.roi_heads = CascadeHeads(strides, channels, width, classes + 1, masks)
        elif masks is None:
            rcnn.roi_heads.mask_roi_pool = rcnn.roi_heads.mask_head = rcnn.roi_heads.mask_predictor = None
        self.neck, self.rpn, self.roi_heads, self.transform = rcnn.backbone, rcnn.rpn, rcnn.roi_heads, rcnn.transform

    def losses(self, features: Features, targets: Any) -> dict[str, Tensor]:
        """Losses of the region proposals and of the region heads.

        Args:
            features: features of the padded images.
            targets: for each image ``boxes`` ``(N, 4)`` as corners in pixels, ``labels`` from 1, ``masks``
                ``(N, h, w)`` and ``size``, its height and width before padding.
        """
        sizes = [tuple(target["size"]) for target in targets]
        maps = self.neck([grid.tokens for grid in features.every])
        proposals, of_proposals = self.rpn(ImageList(features.images, sizes), maps, targets)
        _, of_regions = self.roi_heads(maps, proposals, sizes, targets)
        return {name.removeprefix("loss_"): loss for name, loss in {**of_regions, **of_proposals}.items()}

    def predict(self, features: Features, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Tensor]]:
        """``boxes``, ``labels``, ``scores`` and ``masks`` ``(N, 1, 28, 28)`` of each image, in its own pixels."""
        maps = self.neck([grid.tokens for grid in features.every])
        proposals, _ = self.rpn(ImageList(features.images, list(sizes)), maps, None)
        found: list[dict[str, Tensor]] = self.roi_heads(maps, proposals, list(sizes), None)[0]
        return found

    def at_size(self, found: dict[str, Tensor], size: tuple[int, int], original: tuple[int, int]) -> dict[str, Tensor]:
        """Detections scaled to another image size, with masks pasted into it: ``(N, 1, height, width)``."""
        fitted: dict[str, Tensor] = self.transform.postprocess([dict(found)], [size], [original])[0]
        return fitted
