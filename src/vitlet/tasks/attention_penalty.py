"""Attention penalties as losses: the common part of the tasks on attention maps.

Mormille, Broni-Bediako, Atsumi: "Regularizing self-attention on vision transformers with 2D spatial distance loss",
Artificial Life and Robotics 27, 2022, and Mormille's dissertation on inductive bias through self-attention
regularization.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.attention import AttentionMap, AttentionShape, Heads, Penalty, Reading, Rows
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.geometry import grid_coords

LayerReduction = Literal["mean", "log"]

LAYER_REDUCTIONS: dict[str, LayerReduction] = {"paper": "mean", "reference": "log"}
"""By preset."""
ROWS: dict[str, Rows] = {"paper": "normalised", "reference": "plain"}
"""By preset. ARViT has no class token, and there the two are the same. Where there is one, a plain penalty is soon paid
by nobody: all attention flees to the class token. A map that is stretched cannot flee."""


@dataclass(frozen=True)
class Layers:
    """The attention layers that a task reads, as text: ``3``, ``2,3``, ``-1``, ``all`` or ``auto``.

    Attributes:
        text: layers counted from 1, as in the paper.
        depth: relative depth of the layer that ``auto`` selects.
        task: name of the task, for error messages.
    """

    text: str
    depth: float
    task: str

    def __post_init__(self) -> None:
        parts = self.text.replace(" ", "").split(",")
        if self.text not in ("all", "auto") and not all(re.fullmatch(r"-?[1-9]\d*", part) for part in parts):
            raise VitletError(
                f"the layers of {self.task} are {self.text!r}; they need to be numbers from 1 such as 3 or 2,3 (-1 is"
                " the last), all, or auto."
            )

    @property
    def needs(self) -> Needs:
        """Features to request before the number of layers is known."""
        if self.text in ("all", "auto"):
            return Needs(attention="all")
        numbers = [int(part) for part in self.text.split(",")]
        return Needs(attention=tuple(number - 1 if number > 0 else number for number in numbers))

    def resolve(self, shapes: Sequence[AttentionShape]) -> tuple[int, ...]:
        """Indices from 0, once the layers are known."""
        count = len(shapes)
        if self.text == "all":
            return tuple(range(count))
        if self.text == "auto":
            return (math.ceil(self.depth * count) - 1,)
        return tuple(dict.fromkeys(int(index) % count for index in self.needs.attention))


def layer_cost(reading: Reading, shape: AttentionShape, reduction: LayerReduction) -> Tensor:
    """Loss of one layer.

    ``mean``: the sum over pairs divided by the number of tokens, so that uniform attention costs about the mean
    penalty; mean over heads and images. ``log``: the map of each image is first rescaled to [0, 1], and the loss is the
    logarithm of the sum over pairs and images, or 0 where the sum is below 1.
    """
    if reduction == "mean":
        return reading.cost.mean() / (shape.height * shape.width)
    assert reading.low is not None and reading.high is not None
    stretched = (reading.cost - reading.low * reading.penalty[:, None]) / (reading.high - reading.low).clamp(min=1e-12)
    return stretched.mean(1).sum().clamp(min=1).log()


def cost_of_maps(maps: Tensor, size: tuple[int, int], penalty: Penalty, preset: str, heads: Heads) -> Tensor:
    """The loss of attention maps ``(B, h, N, N)`` over a grid of ``size`` rows and columns, by a preset's reduction."""
    shape = AttentionShape(maps.shape[1], *size, prefix=0, windows=1, tokens=maps.shape[-1], uniform_distance=0.0)
    attention = AttentionMap(shape, grid_coords(*size, device=maps.device)[None, None], maps=maps)
    reduction = LAYER_REDUCTIONS[preset]
    return layer_cost(attention.read(penalty, heads=heads, extremes=reduction == "log"), shape, reduction)


class AttentionTask(Task):
    """Base class of tasks that penalize attention in some layers."""

    asks_for_places = False
    best_depth: ClassVar[float]
    """Where the paper's best layer stands, as a share of all layers."""

    def __init__(self, *, preset: str, layers: str, heads: Heads, rows: Rows | None) -> None:
        super().__init__()
        self.heads, self.rows = heads, rows or ROWS[preset]
        self.reduction = LAYER_REDUCTIONS[preset]
        self.chosen = Layers(str(layers), self.best_depth, self.name)
        self.needs = self.chosen.needs
        self.layers: tuple[int, ...] = ()

    @abstractmethod
    def penalty_of(self, attention: AttentionMap, images: Tensor) -> Penalty:
        """The penalty on the pairs of one layer's tokens, for these images ``(B, C, height, width)``."""

    def build(self, shapes: Shapes) -> None:
        self.layers = self.chosen.resolve(shapes.attention)
        self.needs = Needs(attention=self.layers)

    def forward(self, features: Features) -> TaskResult:
        """The mean over layers of the preset ``paper``, their sum of ``reference``.

        The metrics are each layer's mean attention distance, in cells, beside that of uniform attention.
        """
        losses = []
        metrics: dict[str, Tensor | float] = {}
        for index in self.layers:
            attention = features.attention[index]
            penalty = self.penalty_of(attention, features.images)
            reading = attention.read(penalty, heads=self.heads, rows=self.rows, extremes=self.reduction == "log")
            losses.append(layer_cost(reading, attention.shape, self.reduction))
            metrics[f"layer{index + 1}_distance"] = reading.distance
            metrics[f"layer{index + 1}_uniform"] = attention.shape.uniform_distance
        stacked = torch.stack(losses)
        return TaskResult(stacked.mean() if self.reduction == "mean" else stacked.sum(), metrics)
