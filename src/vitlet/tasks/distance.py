"""Distances (RelViT): predicts the Euclidean distance between two tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from vitlet.tasks.grid_task import PairValueTask, pair_mse
from vitlet.tokens.features import GridShape

__all__ = ["Distance", "distance_loss", "pair_distances"]


def pair_distances(coords: Tensor) -> Tensor:
    """Euclidean distance of all pairs, in cells: coords ``(B, N, 2)`` or ``(1, N, 2)`` to ``(B or 1, N, N)``."""
    rows, columns = (axis[:, :, None] - axis[:, None] for axis in coords.unbind(-1))
    return torch.hypot(rows, columns)


def distance_loss(scores: Tensor, distances: Tensor) -> Tensor:
    """Squared error of scores ``(B, N, N)`` against distances ``(B or 1, N, N)``, scaled from -1 to 1."""
    return pair_mse(scores, distances)


class Distance(PairValueTask):
    """Predict the distance between two tokens, for all pairs of tokens of an image.

    Camporese, Izzo, Ballan: "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision
    Transformer" (RelViT), BMVC 2022, https://arxiv.org/abs/2206.00481. One score per pair, ``(B, N, N)``, is regressed
    on the distance between them; ``error`` and ``chance`` are in cells. Options: ``pool`` and ``tap``, see `GridTask`.

    Example:
        >>> attached = vitlet.attach(model, [vitlet.Distance(pool="2x2")])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "distance"
    unit = "cells"

    def pair_values(self, coords: Tensor, shape: GridShape) -> Tensor:
        return pair_distances(coords)
