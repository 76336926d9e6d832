"""Angles: how far apart do two tokens stand, as seen from the middle of the image?

Camporese, Izzo, Ballan: "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision Transformer"
(RelViT), BMVC 2022. One score per pair of tokens is drawn to the angle between their position vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.tasks.heads import RelationHead
from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.geometry import constant_error, from_unit_range, spread_coords, to_unit_range

EPSILON = 1e-4
"""Keeps the angle of a token in the very middle defined, as in the released code."""
AT_CHANCE = 0.95
"""A mean error above this share of the chance level counts as nothing learned."""


def pair_angles(coords: Tensor, height: int, width: int) -> Tensor:
    """Angle between the position vectors of all pairs, in half turns (0 to 1).

    The vectors start at half the rows and half the columns, so half a cell right of and below the middle, as in the
    released code; a token makes no angle with itself.

    Args:
        coords: ``(B, N, 2)``, or ``(1, N, 2)`` where every image has the same grid of ``height x width``.

    Returns:
        ``(B, N, N)`` or ``(1, N, N)``.
    """
    vectors = coords - coords.new_tensor([height / 2, width / 2])
    rows, columns = vectors.unbind(-1)
    product = rows[:, :, None] * rows[:, None] + columns[:, :, None] * columns[:, None]
    length = torch.hypot(rows, columns)
    cosine = product / (length[:, :, None] * length[:, None] + EPSILON)
    angles = cosine.clamp(-1, 1).acos() / math.pi
    return angles.masked_fill(torch.eye(coords.shape[1], dtype=torch.bool, device=coords.device), 0)


def angle_loss(scores: Tensor, angles: Tensor) -> Tensor:
    """Squared error of scores ``(B, N, N)`` against angles ``(B or 1, N, N)``, scaled from -1 to 1."""
    return F.mse_loss(scores.float(), to_unit_range(angles).expand_as(scores))


class Angle(Task):
    """Tell the angle between two tokens' position vectors, for all pairs of tokens of an image.

    Args:
        pool: average the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2).
        tap: tokens before or after the final norm.
    """

    name = "angle"

    def __init__(
        self,
        *,
        pool: Literal["none", "2x2", "3x3/2"] = "none",
        tap: Literal["before_norm", "after_norm"] = "after_norm",
    ) -> None:
        super().__init__()
        self.pool, self.tap = pool, tap
        self.needs = Needs(after_norm=tap == "after_norm")
        self.head: nn.Module = nn.Identity()
        self.chance = 0.0

    def build(self, shapes: Shapes) -> None:
        shape = shapes.tapped(self.tap).pooled(self.pool)
        self.head = RelationHead(shape.channels, 1, shape.channels)
        angles = pair_angles(spread_coords(shape.height, shape.width)[None], shape.height, shape.width)
        self.chance = 180 * constant_error(angles)

    def forward(self, features: Features) -> TaskResult:
        grid = features.tapped(self.tap).pooled(self.pool)
        scores = self.head(grid.sequence())[:, 0].float()  # B, N, N
        angles = pair_angles(grid.coords, grid.shape.height, grid.shape.width)
        error = 180 * (from_unit_range(scores.detach(), angles) - angles).abs().mean()
        return TaskResult(angle_loss(scores, angles), {"error": error, "chance": self.chance})

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        error, chance = metrics["error"], metrics["chance"]
        if error < AT_CHANCE * chance:
            return None
        return (
            f"was not learned: its error of {error:.1f} degrees is no better than the {chance:.1f} of a constant guess."
            " Train longer, raise its weight, or turn it off."
        )
