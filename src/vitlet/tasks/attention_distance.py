"""A price on attending far.

Mormille, Broni-Bediako, Atsumi: "Regularizing self-attention on vision transformers with 2D spatial distance loss",
Artificial Life and Robotics 27, 2022 (ARViT). The attention of a layer is weighed by a penalty that grows with the
Manhattan distance between patches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from vitlet.tasks.attention_penalty import ROWS, Layers, Reduction, layer_cost, regularize
from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.attention import AttentionMap, AttentionShape, Heads, Rows
from vitlet.tokens.features import Features, Shapes
from vitlet.tokens.geometry import grid_coords

BEST_DEPTH = 3 / 6
"""The paper's best layer on all five datasets is the 3rd of 6."""


def linear_penalty(distances: Tensor) -> Tensor:
    """From 0.1 to about 1 along each row: distances ``(..., R, N)`` in cells to prices."""
    return (distances + 0.1).div_(distances.amax(-1, keepdim=True) + 1)


def smooth_sign_penalty(distances: Tensor) -> Tensor:
    """Below 0 within a quarter of a row's largest distance, up to 1 beyond: near pairs are rewarded."""
    beyond = distances - distances.amax(-1, keepdim=True) / 4
    return beyond.square().add_(0.5).rsqrt_().mul_(beyond)


PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {"linear": linear_penalty, "smooth-sign": smooth_sign_penalty}
PRESETS: dict[str, tuple[str, Reduction]] = {"paper": ("linear", "mean"), "reference": ("smooth-sign", "log")}
"""Penalty and reduction."""


def attention_distance_loss(
    maps: Tensor, size: tuple[int, int], *, preset: Literal["paper", "reference"] = "paper", heads: Heads = "averaged"
) -> Tensor:
    """The loss of attention maps ``(B, h, N, N)`` over a grid of ``size`` rows and columns."""
    penalty, reduction = PRESETS[preset]
    shape = AttentionShape(maps.shape[1], *size, prefix=0, windows=1, tokens=maps.shape[-1], uniform_distance=0.0)
    attention = AttentionMap(shape, grid_coords(*size, device=maps.device)[None, None], maps=maps)
    reading = attention.read(lambda rows, far: PENALTIES[penalty](far), heads=heads, extremes=reduction == "log")
    return layer_cost(reading, shape, reduction)


class AttentionDistance(Task):
    """Make attention costly the farther it reaches.

    Args:
        preset: paper: linear penalty, summed over the map; reference: as the authors' released code has it, a
            smooth-sign penalty on maps stretched to 0 to 1, and the logarithm of the sum.
        layers: which attention layers, counted from 1: 3, or 2,3, or -1 for the last, or all; auto: the middle one
            (the 3rd of 6, the paper's best).
        penalty: linear in the distance, or smooth-sign: near pairs are rewarded (default: by preset).
        heads: averaged: of the average over heads, or each head's own (the same unless maps are stretched).
        rows: where there is a class token: normalised: attention to patches counts as shares of a whole; plain: as it
            is, so that attending to the class token costs nothing (default: paper normalised, reference plain).
    """

    name = "attention-distance"
    suggested_weight = 0.3
    asks_for_places = False

    def __init__(
        self,
        *,
        preset: Literal["paper", "reference"] = "paper",
        layers: str = "auto",
        penalty: Literal["linear", "smooth-sign"] | None = None,
        heads: Literal["averaged", "each"] = "averaged",
        rows: Literal["normalised", "plain"] | None = None,
    ) -> None:
        super().__init__()
        of_preset, self.reduction = PRESETS[preset]
        self.penalty = PENALTIES[penalty or of_preset]
        self.heads: Heads = heads
        self.rows: Rows = rows or ROWS[preset]
        self.chosen = Layers(str(layers), BEST_DEPTH, self.name)
        self.needs = self.chosen.needs
        self.layers: tuple[int, ...] = ()

    def build(self, shapes: Shapes) -> None:
        self.layers = self.chosen.resolve(shapes.attention)
        self.needs = type(self.needs)(attention=self.layers)

    def forward(self, features: Features) -> TaskResult:
        loss, metrics = regularize(
            features, self.layers, self._price, heads=self.heads, rows=self.rows, reduction=self.reduction
        )
        return TaskResult(loss, metrics)

    def _price(self, attention: AttentionMap) -> Callable[[slice, Tensor], Tensor]:
        return lambda rows, distances: self.penalty(distances)
