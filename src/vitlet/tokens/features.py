"""Features of a backbone that tasks read, and the needs that tasks declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tokens.attention import AttentionMap, AttentionShape
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.views import Hidden

Pool = Literal["none", "2x2", "3x3/2"]
Tap = Literal["before_norm", "after_norm"]
GridLevels = Literal["shown", "blocks", "merged"]


@dataclass(frozen=True)
class GridShape:
    """Size of a token grid: channels, rows, columns."""

    channels: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width} tokens of {self.channels} channels"

    def pooled(self, pool: Pool) -> GridShape:
        """Size after `Grid.pooled`; refuses what leaves too little for a spatial task."""
        shape = GridShape(self.channels, pooled_size(self.height, pool), pooled_size(self.width, pool))
        if min(shape.height, shape.width) < 2:
            raise VitletError(
                f"pooling leaves {shape.height}x{shape.width} of {self.height}x{self.width} tokens; spatial tasks need"
                " at least 2x2. Use pool 'none'."
            )
        return shape


@dataclass(frozen=True)
class Needs:
    """What a task needs from the forward pass.

    Attributes:
        after_norm: the last grid as the classifier head receives it, after the final norm.
        every_grid: the outputs of several levels of the model.
        levels: levels of ``every_grid``; shown: blocks, or stages where the model exposes stages; blocks: every block;
            merged: every stage, after its tokens were merged for the next.
        attention: maps of these layers, counted from 0, or from the end if negative; layers without a map over the
            token grid are not counted. A task that does not know them yet requests all until it is built.
    """

    after_norm: bool = False
    every_grid: bool = False
    attention: tuple[int, ...] | Literal["all"] = ()
    levels: GridLevels = "shown"

    def __or__(self, other: Needs) -> Needs:
        levels = {needs.levels for needs in (self, other) if needs.every_grid} or {self.levels}
        if len(levels) > 1:
            raise VitletError(
                f"two tasks read the grids of several levels: found {' and '.join(sorted(levels))}, needed the same for"
                " both. Give them the same levels, or different views."
            )
        attention: tuple[int, ...] | Literal["all"] = "all"
        if self.attention != "all" and other.attention != "all":
            attention = tuple(sorted({*self.attention, *other.attention}))
        after_norm, every_grid = self.after_norm or other.after_norm, self.every_grid or other.every_grid
        return Needs(after_norm, every_grid, attention, levels.pop())


@dataclass(frozen=True)
class Shapes:
    """Sizes of the grids of `Features`, known before the first step so that heads can be built.

    Of the images that the model sees too, and whether a part of them is hidden.
    """

    last: GridShape
    after_norm: GridShape | None = None
    every: tuple[GridShape, ...] = ()
    attention: tuple[AttentionShape, ...] = ()
    images: GridShape | None = None
    hides: bool = False

    def tapped(self, tap: Tap) -> GridShape:
        """The last grid before or after the final norm."""
        return self.after_norm if tap == "after_norm" and self.after_norm else self.last


@dataclass(frozen=True)
class Grid:
    """Token grid with the coordinates of each token.

    Attributes:
        tokens: ``(B, C, H, W)``.
        coords: ``(B, H*W, 2)`` or ``(1, H*W, 2)``: row and column, in cells of this grid.
    """

    tokens: Tensor
    coords: Tensor

    @property
    def shape(self) -> GridShape:
        return GridShape(self.tokens.shape[1], self.tokens.shape[2], self.tokens.shape[3])

    def sequence(self) -> Tensor:
        """Tokens row by row: ``(B, N, C)``, contiguous, so that gathering a token reads one run of memory."""
        return self.tokens.flatten(2).transpose(1, 2).contiguous()

    def pooled(self, pool: Pool) -> Grid:
        """Average-pooled grid; no token is dropped where a side is odd."""
        if pool == "none":
            return self
        if self.coords.shape[0] != 1:
            raise VitletError(
                "pooling mixes the tokens of a view whose patches were moved: found coordinates that differ from"
                " image to image, needed a regular grid. Use pool='none' with this view."
            )
        # Token by token in memory: `sequence` needs no copy then, and the gradient comes back in the same layout.
        tokens = self.tokens.contiguous(memory_format=torch.channels_last)
        if pool == "2x2":
            tokens = F.avg_pool2d(tokens, 2, ceil_mode=True)
        else:
            tokens = F.avg_pool2d(tokens, 3, stride=2, padding=1, count_include_pad=False)
        height, width = tokens.shape[2:]
        return Grid(tokens, grid_coords(height, width, device=tokens.device)[None])


def pooled_size(size: int, pool: Pool) -> int:
    """Cells along an axis after `Grid.pooled`."""
    return size if pool == "none" else (size + 1) // 2


@dataclass(frozen=True)
class Features:
    """Outputs of the backbone that tasks read.

    Attributes:
        images: what the model saw, ``(B, channels, height, width)``.
        last: output of the last block, before the final norm.
        logits: class scores ``(B, classes)``.
        after_norm: the last grid after the final norm, if a task needs it.
        every: one grid per block or stage, if a task needs them.
        attention: attention maps by layer, counted from 0, if a task needs them.
        hidden: what the view hides from the model, if it hides anything.
    """

    images: Tensor
    last: Grid
    logits: Tensor | None = None
    after_norm: Grid | None = None
    every: tuple[Grid, ...] = ()
    attention: Mapping[int, AttentionMap] = field(default_factory=dict)
    hidden: Hidden | None = None

    def tapped(self, tap: Tap) -> Grid:
        """The last grid before or after the final norm."""
        return self.after_norm if tap == "after_norm" and self.after_norm else self.last

    def in_precision(self, dtype: torch.dtype) -> Features:
        """Copy with the tokens of every grid in this data type."""
        if self.last.tokens.dtype == dtype:
            return self
        last, *every = (Grid(grid.tokens.to(dtype), grid.coords) for grid in (self.last, *self.every))
        normed = self.after_norm and Grid(self.after_norm.tokens.to(dtype), self.after_norm.coords)
        return replace(self, last=last, after_norm=normed, every=tuple(every))
