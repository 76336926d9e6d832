"""A small residual network whose last stage mixes positions by attention.

Srinivas et al.: "Bottleneck Transformers for Visual Recognition", CVPR 2021, https://arxiv.org/abs/2101.11605: where
the grid is small, the second 3x3 convolution of a residual block is replaced by self-attention over the whole grid.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.models.grid_vit import GridAttention
from vitlet.models.small_resnet import SmallResNet

HEAD_WIDTH = 32
POSITION_GRID = 4
"""Rows and columns of the learned positions, which are interpolated to the grid of the images."""


class GridMixing(nn.Module):
    """Self-attention over the positions of a map ``(B, C, H, W)``, in place of a 3x3 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attn = GridAttention(channels, num_heads=channels // HEAD_WIDTH, qkv_bias=True)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, channels, POSITION_GRID, POSITION_GRID))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[2:]
        positions: Tensor = self.pos_embed
        if size != positions.shape[2:]:
            positions = F.interpolate(positions, size, mode="bicubic", antialias=True)
        tokens = (x + positions.to(x.dtype)).flatten(2).transpose(1, 2)  # B, N, C
        mixed: Tensor = self.attn(tokens).transpose(1, 2).unflatten(2, size)
        return mixed


class AttentionResNet(SmallResNet):
    """A `SmallResNet` with attention in place of the second convolution of each block of its last stage.

    The norm after it starts at zero as in the other blocks, so that the convolutions learn first.

    Args:
        more: arguments of `SmallResNet`.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        blocks: Any = self.get_submodule("layer4")
        for block in blocks:
            block.conv2 = GridMixing(block.conv2.out_channels)

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """Positions, which timm's optimizers leave without decay."""
        return {name for name, _ in self.named_parameters() if name.endswith("pos_embed")}
