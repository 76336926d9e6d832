"""Angles (RelViT): predicts the angle between the position vectors of two tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitlet.tasks.grid_task import PairValueTask, pair_mse
from vitlet.tokens.features import GridShape

__all__ = ["Angle", "angle_loss", "pair_angles"]

EPSILON = 1e-4
"""Added to the product of the lengths, as in the released code."""


def pair_angles(coords: Tensor, height: int, width: int) -> Tensor:
    """Angle between the position vectors of all pairs, in half turns (0 to 1).

    As in the released code, half the rows and half the columns are added to a token's indices, so that all vectors
    point into one quadrant; the angle of a token with itself is 0.

    Args:
        coords: ``(B, N, 2)``, or ``(1, N, 2)`` where every image has the same grid of ``height x width``.

    Returns:
        ``(B, N, N)`` or ``(1, N, N)``.
    """
    vectors = coords + coords.new_tensor([height / 2, width / 2])
    rows, columns = vectors.unbind(-1)
    product = rows[:, :, None] * rows[:, None] + columns[:, :, None] * columns[:, None]
    length = torch.hypot(rows, columns)
    cosine = product / (length[:, :, None] * length[:, None] + EPSILON)
    angles = cosine.clamp(-1, 1).acos() / math.pi
    return angles.masked_fill(torch.eye(coords.shape[1], dtype=torch.bool, device=coords.device), 0)


def angle_loss(scores: Tensor, angles: Tensor) -> Tensor:
    """Squared error of scores ``(B, N, N)`` against angles ``(B or 1, N, N)``, scaled from -1 to 1."""
    return pair_mse(scores, angles)


class Angle(PairValueTask):
    """Predict the angle between the position vectors of two tokens, for all pairs of tokens of an image.

    Camporese, Izzo, Ballan: "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision
    Transformer" (RelViT), BMVC 2022, https://arxiv.org/abs/2206.00481. One score per pair, ``(B, N, N)``, is regressed
    on the angle; ``error`` and ``chance`` are in degrees. Options: ``pool`` and ``tap``, as in `GridTask`.

    Example:
        >>> attached = vitlet.attach(model, [vitlet.Angle(pool="2x2")])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "angle"
    unit, scale, digits = "degrees", 180.0, 1

    def pair_values(self, coords: Tensor, shape: GridShape) -> Tensor:
        return pair_angles(coords, shape.height, shape.width)
