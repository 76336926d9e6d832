"""Token coordinates of a grid, pairs of tokens, offsets, and chance levels.

Coordinates are ``(row, column)`` in cells of their own grid, the centre of the top-left cell at ``(0, 0)``.
Letters: B batch, N tokens, M sampled pairs, H and W rows and columns of the grid.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_SPREAD = 64
"""All pairs of 64 x 64 places are 17 million; of 128 x 128 they would be 268 million."""


def grid_coords(height: int, width: int, *, device: torch.device | None = None) -> Tensor:
    """Coordinates of a regular grid, row by row: ``(H*W, 2)``."""
    rows = torch.arange(height, device=device, dtype=torch.float32)
    columns = torch.arange(width, device=device, dtype=torch.float32)
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)


def spread_coords(height: int, width: int) -> Tensor:
    """Coordinates as of `grid_coords`, of at most 64 rows and columns spread over the grid: enough for a mean."""
    sides = min(height, MOST_SPREAD), min(width, MOST_SPREAD)
    step = torch.tensor([(height - 1) / max(1, sides[0] - 1), (width - 1) / max(1, sides[1] - 1)])
    return grid_coords(*sides) * step


def sample_pairs(
    batch: int, tokens: int, pairs: int, *, generator: torch.Generator | None = None, device: torch.device | None = None
) -> Tensor:
    """Random token indices ``(B, M, 2)``: uniform, independent, with replacement, so a token may meet itself."""
    return torch.randint(tokens, (batch, pairs, 2), generator=generator, device=device)


def pair_offsets(coords: Tensor, pairs: Tensor) -> Tensor:
    """Offset of each pair's first token from its second, in cells.

    Args:
        coords: ``(B, N, 2)``, or ``(1, N, 2)`` where every image has the same grid.
        pairs: ``(B, M, 2)`` token indices.

    Returns:
        ``(B, M, 2)``: rows, columns.
    """
    if coords.shape[0] == 1:
        ends = coords[0][pairs]  # B, M, 2 ends, 2 axes
    else:
        image = torch.arange(len(pairs), device=pairs.device)[:, None, None]
        ends = coords[image, pairs]
    return ends[:, :, 0] - ends[:, :, 1]


def manhattan(first: Tensor, second: Tensor) -> Tensor:
    """Manhattan distance between all pairs of positions: ``(..., R, 2)`` and ``(..., N, 2)`` to ``(..., R, N)``."""
    return torch.cdist(first, second, p=1.0)


def chance_error(size: int, *, signed: bool) -> float:
    """Mean absolute error, in cells, of the best constant guess of the offset along an axis of ``size`` cells.

    The two ends are uniform and independent. A signed offset is best guessed as 0, an absolute one by its median.
    """
    offsets = [first - second for first in range(size) for second in range(size)]
    if not signed:
        offsets = sorted(abs(offset) for offset in offsets)
    guess = 0 if signed else offsets[len(offsets) // 2]
    return sum(abs(offset - guess) for offset in offsets) / len(offsets)


def constant_error(values: Tensor) -> float:
    """Mean absolute error of the best constant guess of these values, their median."""
    return (values - values.median()).abs().mean().item()


def to_unit_range(values: Tensor) -> Tensor:
    """Values from 0 up, of every pair of tokens ``(B, N, N)``, as -1 to 1 (the image's largest)."""
    return values / values.amax((1, 2), keepdim=True) * 2 - 1


def from_unit_range(scores: Tensor, values: Tensor) -> Tensor:
    """Scores ``(B, N, N)`` in the units of the values that `to_unit_range` scaled."""
    return (scores + 1) / 2 * values.amax((1, 2), keepdim=True)
