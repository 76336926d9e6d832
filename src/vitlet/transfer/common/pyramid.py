"""Feature maps at several strides: the backbone's stages, or a pyramid made from its one grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d

from vitlet.errors import VitletError
from vitlet.transfer.common.backbone import Opened

LEVELS = 4
"""Maps at most."""

FINEST = 4
"""Stride of the finest map that is made of a single grid, if that grid is not finer."""


@dataclass(frozen=True)
class Level:
    """One map: pixels along an axis for each of its cells, and channels."""

    stride: int
    channels: int


class Levels(nn.Module):
    """Maps from fine to coarse, each at twice the stride of the one before.

    A model with stages gives the last grid of each stride, the last four at most; one with a single stride gets a
    simple feature pyramid: transposed convolutions for finer maps, pooling for coarser ones.
    """

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        strides = [_stride(opened, index) for index in range(len(opened.grids))]
        last = {stride: index for index, stride in enumerate(strides)}
        self.indices = [last[stride] for stride in sorted(last)][-LEVELS:]
        self.single = len(last) == 1
        if self.single:
            channels, stride = opened.grids[-1].channels, strides[-1]
            finest = max(FINEST, stride // 4) if stride >= FINEST else stride
            self.branches = nn.ModuleList(_branch(channels, stride, finest << step) for step in range(LEVELS))
            self.levels = [_made(channels, stride, finest << step) for step in range(LEVELS)]
        else:
            self.levels = [Level(strides[index], opened.grids[index].channels) for index in self.indices]
        for fine, coarse in zip(self.levels, self.levels[1:], strict=False):
            if coarse.stride != 2 * fine.stride:
                raise VitletError(
                    f"{opened.architecture} has grids of strides {', '.join(str(each.stride) for each in self.levels)};"
                    " each must be twice the previous one. Use another backbone."
                )
        self.divisor = max(level.stride for level in self.levels)

    def forward(self, grids: Sequence[Tensor]) -> list[Tensor]:
        """``grids`` as ``forward_intermediates`` gives them, each ``(B, C, H, W)``."""
        if self.single:
            return [branch(grids[-1]) for branch in self.branches]
        return [grids[index] for index in self.indices]


def _stride(opened: Opened, index: int) -> int:
    """Pixels for each cell of a grid; refuses what the pooling of regions cannot use."""
    grid, (height, width) = opened.grids[index], opened.probed
    stride = height // grid.height
    if grid.height * stride != height or grid.width * stride != width or stride & (stride - 1):
        raise VitletError(
            f"{opened.architecture} has no usable grid: found {grid.height}x{grid.width} tokens over images of"
            f" {height}x{width} pixels, needed one token for every 2, 4, 8, 16 or 32 pixels of both sides. Use another"
            " backbone, or a patch size that is a power of two."
        )
    return stride


def _made(channels: int, stride: int, wanted: int) -> Level:
    return Level(wanted, max(1, channels * wanted // stride) if wanted < stride else channels)


def _branch(channels: int, stride: int, wanted: int) -> nn.Module:
    """Layers that resample a grid to a map of another stride."""
    if wanted >= stride:
        factor = wanted // stride
        return nn.MaxPool2d(factor) if factor > 1 else nn.Identity()
    layers: list[nn.Module] = []
    for step in range(int(math.log2(stride // wanted))):
        half = max(1, channels // 2)
        if step:
            layers += [LayerNorm2d(channels, eps=1e-6), nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, half, 2, stride=2))
        channels = half
    return nn.Sequential(*layers)


def scaled_size(height: int, width: int, short: float, long: float = math.inf) -> tuple[int, int]:
    """Height and width with this shorter side, or with the longer one at its limit."""
    factor = min(short / min(height, width), long / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def padded_size(height: int, width: int, divisor: int) -> tuple[int, int]:
    """The next sizes that the strides divide."""
    return -(-height // divisor) * divisor, -(-width // divisor) * divisor


def pad_to(image: Tensor, size: tuple[int, int], value: float = 0.0) -> Tensor:
    """Pad an image at the bottom and on the right."""
    return F.pad(image, (0, size[1] - image.shape[-1], 0, size[0] - image.shape[-2]), value=value)
