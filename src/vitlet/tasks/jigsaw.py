"""Jigsaw: put all pieces of the image back, each cell used once.

Santa Cruz, Fernando, Cherian, Gould: "DeepPermNet: Visual Permutation Learning", CVPR 2017; Mena, Belanger, Linderman,
Snoek: "Learning Latent Permutations with Gumbel-Sinkhorn Networks", ICLR 2018. Every token scores every cell, and
Sinkhorn's steps make the scores of an image an assignment: a cell that one token takes is taken from the others. Here
over the token grid of any network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.tasks.task import Places, Task, TaskResult
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.geometry import constant_error

AT_CHANCE = 1.05
"""An accuracy below this multiple of the chance level counts as nothing learned."""


def places_in_order(coords: Tensor, height: int, width: int) -> Tensor:
    """The cell of each token, counted row by row: ``(B or 1, N, 2)`` to ``(B or 1, N)``, every cell once.

    Places between cells, such as the centres of mega-patches, are put in order: the cells of an image are given away
    by row, then by column within the row.
    """
    batch, count = coords.shape[:2]
    by_row = coords[..., 0].argsort(dim=1, stable=True)
    columns = coords[..., 1].gather(1, by_row).view(batch, height, width)
    starts = torch.arange(0, count, width, device=coords.device)[:, None]  # where each row begins
    by_column = columns.argsort(dim=2, stable=True) + starts
    tokens = by_row.gather(1, by_column.view(batch, count))  # the token that belongs into each cell
    return tokens.argsort(1)


def assignment(scores: Tensor, steps: int) -> Tensor:
    """Logarithms of a nearly doubly stochastic matrix: tokens by cells ``(B, N, N)``, by Sinkhorn's steps.

    A step makes the columns sum to 1, then the rows; the rows, one per token, sum to 1 in the end.
    """
    scores = scores.float().log_softmax(2)
    for _ in range(steps):
        scores = scores.log_softmax(1).log_softmax(2)
    return scores


def jigsaw_loss(scores: Tensor, cells: Tensor, steps: int = 3) -> Tensor:
    """Mean negative log-likelihood of every token's own cell under the joint assignment.

    Args:
        scores: ``(B, N, N)``, of each token for each cell.
        cells: ``(B, N)`` or ``(1, N)``, a permutation of the cells per image.
        steps: of Sinkhorn's normalisation; 0 leaves every token a choice of its own.
    """
    chances = assignment(scores, steps)
    return -chances.gather(2, cells.expand(len(scores), -1)[..., None]).mean()


class Jigsaw(Task):
    """Put all tokens of an image back into their cells at once, each cell used once.

    Args:
        steps: Sinkhorn steps that make the tokens' choices agree; 0: each token chooses for itself.
        pool: average the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2).
        tap: tokens before or after the final norm.
    """

    name = "jigsaw"
    suggested_weight = 0.1

    def __init__(
        self,
        *,
        steps: int = 3,
        pool: Literal["none", "2x2", "3x3/2"] = "none",
        tap: Literal["before_norm", "after_norm"] = "after_norm",
    ) -> None:
        super().__init__()
        if steps < 0:
            raise VitletError(f"jigsaw needs 0 or more Sinkhorn steps, found {steps}.")
        self.steps, self.pool, self.tap = steps, pool, tap
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
                f"jigsaw has {self.sides[0]}x{self.sides[1]} cells to fill, found a grid of {found[0]}x{found[1]}"
                " tokens. Use images of the size that the objective was built for."
            )
        scores = self.head(grid.sequence())  # B, N, N
        cells = places_in_order(grid.coords, *found)
        right = assignment(scores.detach(), self.steps).argmax(2) == cells
        metrics: dict[str, Tensor | float] = {
            "accuracy": 100 * right.float().mean(),
            "chance": 100 / (found[0] * found[1]),
        }
        return TaskResult(jigsaw_loss(scores, cells, self.steps), metrics)

    def places(self, features: Features) -> Places:
        """The most likely cell of each token under the joint assignment."""
        grid = features.tapped(self.tap).pooled(self.pool)
        cells = assignment(self.head(grid.sequence()), self.steps).argmax(2)  # B, N
        predicted = torch.stack([cells // self.sides[1], cells % self.sides[1]], dim=-1).float()
        error = (predicted - grid.coords).abs().mean(-1)
        chance = sum(constant_error(torch.arange(side).float()) for side in self.sides) / 2
        return Places(predicted, grid.coords, error, self.sides, None, True, chance)

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        accuracy, chance = metrics["accuracy"], metrics["chance"]
        if accuracy > AT_CHANCE * chance:
            return None
        return (
            f"was not learned: {accuracy:.1f} % of the tokens are put where they belong, no better than the"
            f" {chance:.1f} % of guessing. Train longer, raise its weight, or turn it off."
        )
