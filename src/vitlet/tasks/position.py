"""Absolute position (RelViT): predicts the grid cell of a token."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vitlet.tasks.grid_task import CellTask
from vitlet.tokens.features import GridShape

__all__ = ["Position", "cell_index", "position_loss"]


def cell_index(coords: Tensor, width: int) -> Tensor:
    """Index of the grid cell of each token, row by row: ``(B, N, 2)`` to ``(B, N)``.

    A position between cells (the centre of a mega-patch) belongs to the nearest.
    """
    row, column = (coords + 0.5).floor().long().unbind(-1)
    return row * width + column


def position_loss(logits: Tensor, cells: Tensor) -> Tensor:
    """Cross-entropy over all tokens: logits ``(B, N, cells)``, cells ``(B, N)`` or ``(1, N)``."""
    return F.cross_entropy(logits.float().flatten(0, 1), cells.expand(len(logits), -1).flatten())


class Position(CellTask):
    """Predict the grid cell of every token of an image.

    Camporese, Izzo, Ballan: "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision
    Transformer" (RelViT), BMVC 2022, https://arxiv.org/abs/2206.00481. A linear layer classifies every token into one
    class per cell, ``(B, N, H*W)``; ``accuracy`` and ``chance`` are in percent. Options: ``pool`` and ``tap``, as in
    `GridTask`.

    Example:
        >>> attached = vitlet.attach(model, [vitlet.Position()])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "position"

    def cells(self, coords: Tensor, shape: GridShape) -> Tensor:
        return cell_index(coords, shape.width)

    def loss(self, scores: Tensor, cells: Tensor) -> Tensor:
        return position_loss(scores, cells)
