"""UPerNet, its decoder from segmentation-models-pytorch, on the grids of any backbone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.errors import require_extra
from vitlet.tokens.features import Features
from vitlet.transfer.common.objective import DenseHead
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.segmentation.masks import IGNORED

AUXILIARY_CHANNELS = 256


class SegmentationHead(DenseHead):
    """Everything of a segmenter but its backbone.

    Args:
        levels: levels of the backbone.
        classes: classes of pixels.
        channels: channels of the decoder.
        auxiliary: weight of a small head on the last level but one, which helps the backbone to learn; 0 for none.
    """

    def __init__(self, levels: Levels, classes: int, *, channels: int = 512, auxiliary: float = 0.4) -> None:
        super().__init__()
        library = require_extra("segmentation_models_pytorch.decoders.upernet.decoder", "segmentation", "segmentation")
        widths = [level.channels for level in levels.levels]
        self.levels, self.weight = levels, auxiliary
        # The library counts two levels above ours, at full and half size, which it does not read.
        self.decoder = library.UPerNetDecoder((0, 0, *widths), encoder_depth=5, decoder_channels=channels)
        self.classify = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(channels, classes, 1))
        self.auxiliary = _small_head(widths[-2], classes) if auxiliary else None

    def logits(self, features: Features) -> tuple[Tensor, list[Tensor]]:
        """Class scores at the stride of the finest level, and the levels."""
        maps = self.levels([grid.tokens for grid in features.every])
        scores: Tensor = self.classify(self.decoder([None, None, *maps]))
        return scores, maps

    def losses(self, features: Features, targets: Any) -> dict[str, Tensor]:
        """Cross-entropy of the decoder and of the auxiliary head.

        Args:
            features: features of the crops.
            targets: classes ``(B, height, width)``, `IGNORED` where none counts.
        """
        scores, maps = self.logits(features)
        losses = {"decoder": pixel_loss(scores, targets)}
        if self.auxiliary is not None:
            losses["auxiliary"] = self.weight * pixel_loss(self.auxiliary(maps[-2]), targets)
        return losses

    def predict(self, features: Features, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Class scores ``(classes, height, width)`` of each image at its size before padding."""
        scores = F.interpolate(
            self.logits(features)[0], features.images.shape[2:], mode="bilinear", align_corners=False
        )
        return [each[:, : size[0], : size[1]] for each, size in zip(scores, sizes, strict=True)]


def _small_head(width: int, classes: int) -> nn.Module:
    """A convolution and a classifier."""
    return nn.Sequential(
        nn.Conv2d(width, AUXILIARY_CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(AUXILIARY_CHANNELS),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
        nn.Conv2d(AUXILIARY_CHANNELS, classes, 1),
    )


def pixel_loss(scores: Tensor, masks: Tensor) -> Tensor:
    """Mean cross-entropy over the pixels that count, at the size of the masks; 0 if none does."""
    scores = F.interpolate(scores.float(), masks.shape[1:], mode="bilinear", align_corners=False)
    total = F.cross_entropy(scores, masks.long(), ignore_index=IGNORED, reduction="sum")
    return total / torch.clamp((masks != IGNORED).sum(), min=1)
