"""Jigsaw: predicts the permutation of all tokens over the grid cells."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tasks.grid_task import CellTask
from vitlet.tokens.features import GridShape

__all__ = ["Jigsaw", "jigsaw_loss", "places_in_order"]


def places_in_order(coords: Tensor, height: int, width: int) -> Tensor:
    """Cell index of each token, row by row, every cell once: ``(B or 1, N, 2)`` to ``(B or 1, N)``.

    Positions between cells, such as the centres of mega-patches, are ranked: the cells of an image are given away
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
    """Logarithm of a nearly doubly stochastic matrix, tokens by cells ``(B, N, N)``, by Sinkhorn normalization.

    A step makes the columns sum to 1, then the rows; the rows, one per token, sum to 1 in the end.
    """
    scores = scores.float().log_softmax(2)
    for _ in range(steps):
        scores = scores.log_softmax(1).log_softmax(2)
    return scores


def jigsaw_loss(scores: Tensor, cells: Tensor, steps: int = 3) -> Tensor:
    """Mean negative log-likelihood of every token's own cell under the joint assignment.

    Args:
        scores: ``(B, N, N)``, score of each token for each cell.
        cells: ``(B, N)`` or ``(1, N)``, a permutation of the cells per image.
        steps: number of Sinkhorn steps; 0: every token is classified independently.
    """
    chances = assignment(scores, steps)
    return -chances.gather(2, cells.expand(len(scores), -1)[..., None]).mean()


class Jigsaw(CellTask):
    """Predict the permutation that puts all tokens of an image back into their cells.

    Santa Cruz, Fernando, Cherian, Gould: "DeepPermNet: Visual Permutation Learning", CVPR 2017,
    https://arxiv.org/abs/1704.02729; Mena, Belanger, Linderman, Snoek: "Learning Latent Permutations with
    Gumbel-Sinkhorn Networks", ICLR 2018, https://arxiv.org/abs/1802.08665; here over the token grid of any model. Every
    token has a score for every cell, ``(B, N, N)``, and Sinkhorn normalization turns the scores of an image into an
    assignment in which each cell is used once. ``accuracy`` and ``chance`` are in percent.

    Args:
        steps: number of Sinkhorn steps; 0: every token is classified independently.
        pool: average pooling of the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2).
        tap: tokens before or after the final norm.

    Example:
        >>> attached = vitlet.attach(model, [vitlet.Jigsaw(steps=3)])
        >>> loss = criterion(model(images), labels) + attached.loss()
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
        super().__init__(pool=pool, tap=tap)
        if steps < 0:
            raise VitletError(f"jigsaw needs 0 or more Sinkhorn steps, found {steps}.")
        self.steps = steps

    def cells(self, coords: Tensor, shape: GridShape) -> Tensor:
        return places_in_order(coords, shape.height, shape.width)

    def loss(self, scores: Tensor, cells: Tensor) -> Tensor:
        return jigsaw_loss(scores, cells, self.steps)

    def chosen(self, scores: Tensor) -> Tensor:
        """The most likely cell of each token under the joint assignment."""
        return assignment(scores, self.steps).argmax(2)
