"""Distances: how far is one token from another, as the crow flies?

Camporese, Izzo, Ballan: "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision Transformer"
(RelViT), BMVC 2022. One score per pair of tokens is drawn to the distance of their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.tasks.heads import RelationHead
from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.geometry import constant_error, from_unit_range, spread_coords, to_unit_range

AT_CHANCE = 0.95
"""A mean error above this share of the chance level counts as nothing learned."""


def pair_distances(coords: Tensor) -> Tensor:
    """Euclidean distance of all pairs, in cells: coords ``(B, N, 2)`` or ``(1, N, 2)`` to ``(B or 1, N, N)``."""
    rows, columns = (axis[:, :, None] - axis[:, None] for axis in coords.unbind(-1))
    return torch.hypot(rows, columns)


def distance_loss(scores: Tensor, distances: Tensor) -> Tensor:
    """Squared error of scores ``(B, N, N)`` against distances ``(B or 1, N, N)``, scaled from -1 to 1."""
    return F.mse_loss(scores.float(), to_unit_range(distances).expand_as(scores))


class Distance(Task):
    """Tell how far apart two tokens are, for all pairs of tokens of an image.

    Args:
        pool: average the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2).
        tap: tokens before or after the final norm.
    """

    name = "distance"

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
        self.chance = constant_error(pair_distances(spread_coords(shape.height, shape.width)[None]))

    def forward(self, features: Features) -> TaskResult:
        grid = features.tapped(self.tap).pooled(self.pool)
        scores = self.head(grid.sequence())[:, 0].float()  # B, N, N
        distances = pair_distances(grid.coords)
        error = (from_unit_range(scores.detach(), distances) - distances).abs().mean()
        return TaskResult(distance_loss(scores, distances), {"error": error, "chance": self.chance})

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        error, chance = metrics["error"], metrics["chance"]
        if error < AT_CHANCE * chance:
            return None
        return (
            f"was not learned: its error of {error:.2f} cells is no better than the {chance:.2f} of a constant guess."
            " Train longer, raise its weight, or turn it off."
        )
