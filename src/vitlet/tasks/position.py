"""Absolute position: where in the image is this token?

Camporese, Izzo, Ballan: "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision Transformer"
(RelViT), BMVC 2022. A linear layer sorts every token into one class per cell of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.tasks.task import Places, Task, TaskResult
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.geometry import constant_error

AT_CHANCE = 1.05
"""An accuracy below this multiple of the chance level counts as nothing learned."""


def cell_index(coords: Tensor, width: int) -> Tensor:
    """The cell that each token's place falls into, counted row by row: ``(B, N, 2)`` to ``(B, N)``.

    A place between cells (the centre of a mega-patch) belongs to the nearest.
    """
    row, column = (coords + 0.5).floor().long().unbind(-1)
    return row * width + column


def position_loss(logits: Tensor, cells: Tensor) -> Tensor:
    """Cross-entropy over all tokens: logits ``(B, N, cells)``, cells ``(B, N)`` or ``(1, N)``."""
    return F.cross_entropy(logits.float().flatten(0, 1), cells.expand(len(logits), -1).flatten())


class Position(Task):
    """Tell which cell of the grid a token came from, for every token of an image.

    Args:
        pool: average the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2).
        tap: tokens before or after the final norm.
    """

    name = "position"

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
        self.sides = (0, 0)

    def build(self, shapes: Shapes) -> None:
        shape = shapes.tapped(self.tap).pooled(self.pool)
        self.sides = shape.height, shape.width
        self.head = nn.Linear(shape.channels, shape.height * shape.width)

    def forward(self, features: Features) -> TaskResult:
        grid = features.tapped(self.tap).pooled(self.pool)
        found = grid.shape.height, grid.shape.width
        if found != self.sides:
            raise VitletError(
                f"position has a class for each of {self.sides[0]}x{self.sides[1]} cells, found a grid of"
                f" {found[0]}x{found[1]} tokens. Use images of the size that the objective was built for."
            )
        logits = self.head(grid.sequence())  # B, N, cells
        cells = cell_index(grid.coords, found[1])
        right = logits.detach().argmax(-1) == cells
        metrics: dict[str, Tensor | float] = {
            "accuracy": 100 * right.float().mean(),
            "chance": 100 / (found[0] * found[1]),
        }
        return TaskResult(position_loss(logits, cells), metrics)

    def places(self, features: Features) -> Places:
        """The most likely cell of each token."""
        grid = features.tapped(self.tap).pooled(self.pool)
        cells = self.head(grid.sequence()).argmax(-1)  # B, N
        predicted = torch.stack([cells // self.sides[1], cells % self.sides[1]], dim=-1).float()
        error = (predicted - grid.coords).abs().mean(-1)
        chance = sum(constant_error(torch.arange(side).float()) for side in self.sides) / 2
        return Places(predicted, grid.coords, error, self.sides, None, True, chance)

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        accuracy, chance = metrics["accuracy"], metrics["chance"]
        if accuracy > AT_CHANCE * chance:
            return None
        return (
            f"was not learned: {accuracy:.1f} % of the tokens are placed right, no better than the {chance:.1f} % of"
            " guessing. Train longer, raise its weight, or turn it off."
        )
