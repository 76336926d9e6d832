"""Assignment of tokens to attention windows, which no common interface of models describes.

The table below names the blocks that cut a grid into windows and where they keep the sizes. Blocks that are not in it
are taken to attend over their whole grid, and are refused if the shape of their attention says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Stack = Sequence[tuple[str, nn.Module, tuple[int, ...]]]
"""Modules that are running, outermost first: name, module, shape of its first input."""


@dataclass(frozen=True)
class Windows:
    """Partition of a token grid into windows.

    Attributes:
        size: rows and columns of a window.
        shift: cells by which the grid is rolled up and to the left first.
        strided: a window holds tokens at equal strides over the whole grid, not neighbours.
        layout: layout of the block's input.
    """

    size: tuple[int, int]
    shift: tuple[int, int] = (0, 0)
    strided: bool = False
    layout: Literal["NHWC", "NCHW"] = "NHWC"

    def cells(self, height: int, width: int) -> Tensor:
        """Index of every token of every window in the grid, row by row: ``(G, N)``, -1 for padding."""
        grid = torch.arange(height * width, device="cpu").view(height, width)
        grid = grid.roll((-self.shift[0], -self.shift[1]), (0, 1))
        down, right = self.size
        grid = F.pad(grid, (0, -width % right, 0, -height % down), value=-1)
        rows, columns = grid.shape[0] // down, grid.shape[1] // right
        if self.strided:
            return grid.view(down, rows, right, columns).permute(1, 3, 0, 2).reshape(rows * columns, down * right)
        return grid.view(rows, down, columns, right).transpose(1, 2).reshape(rows * columns, down * right)


def _pair(size: Any) -> tuple[int, int]:
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _shifted(block: Any, shape: tuple[int, ...]) -> Windows:
    return Windows(_pair(block.window_size), _pair(block.shift_size))


def _unshifted(block: Any, shape: tuple[int, ...]) -> Windows | None:
    size = getattr(block, "window_size", None)
    return Windows(_pair(size)) if size and size != (0, 0) else None


def _partitioned(block: Any, shape: tuple[int, ...]) -> Windows:
    layout: Literal["NHWC", "NCHW"] = "NCHW" if type(block).__name__.endswith("2d") else "NHWC"
    return Windows(_pair(block.partition_size), strided=not block.partition_block, layout=layout)


def _strided_patches(block: Any, shape: tuple[int, ...]) -> Windows | None:
    height, width = shape[2:]
    down, right = _pair(block.patch_size)
    if height % down or width % right:
        return None  # the block resizes its grid first
    return Windows((height // down, width // right), strided=True, layout="NCHW")


WINDOWED: dict[str, Callable[[Any, tuple[int, ...]], Windows | None]] = {
    "SwinTransformerBlock": _shifted,
    "SwinTransformerV2Block": _shifted,
    "SwinTransformerV2CrBlock": _shifted,
    "TinyVitBlock": _unshifted,
    "MultiScaleBlock": _unshifted,  # SAM 2's; MViT's has no window_size
    "SpatialBlock": lambda block, shape: Windows(_pair(block.window_size), layout="NCHW"),  # DaViT
    "PartitionAttentionCl": _partitioned,  # MaxViT
    "PartitionAttention2d": _partitioned,
    "GlobalContextVitBlock": lambda block, shape: None if block.attn.use_global else Windows(_pair(block.window_size)),
    "MobileVitBlock": _strided_patches,
    "LocalWindowAttention": lambda block, shape: Windows(  # EfficientViT of MSRA
        _pair(min(block.window_resolution, block.resolution)), layout="NCHW"
    ),
}
"""Class of a block -> its windows, None if this one has none."""

NOT_OVER_PLACES = {
    "XCA": "attends over channels",
    "CrossCovarianceAttn": "attends over channels",
    "ChannelAttention": "attends over channels",
    "ChannelAttentionV2": "attends over channels",
    "HSMSSD": "mixes states, not token positions",
    "MaskUnitAttention": "has its tokens in another order than the grid",
}
"""Attention whose shape could pass for a map over the grid."""


def find_windows(stack: Stack) -> tuple[Windows, tuple[int, int]] | None:
    """The windows of the innermost known block among these, and the grid that it cuts."""
    for _, module, shape in reversed(stack):
        adapter = WINDOWED.get(type(module).__name__)
        if adapter is None or len(shape) != 4:
            continue
        windows = adapter(module, shape)
        if windows is None:
            return None
        grid = shape[1:3] if windows.layout == "NHWC" else shape[2:4]
        return windows, (int(grid[0]), int(grid[1]))
    return None
