"""A price on attention as a loss: what the tasks on attention maps share.

Mormille, Broni-Bediako, Atsumi: "Regularizing self-attention on vision transformers with 2D spatial distance loss",
Artificial Life and Robotics 27, 2022, and Mormille's dissertation on inductive bias through self-attention
regularization.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tokens.attention import AttentionMap, AttentionShape, Heads, Price, Reading, Rows
from vitlet.tokens.features import Features, Needs

Reduction = Literal["mean", "log"]

ROWS: dict[str, Rows] = {"paper": "normalised", "reference": "plain"}
"""By preset. ARViT has no class token, and there the two are the same. Where there is one, a plain price is soon paid
by nobody: all attention flees to the class token. A map that is stretched cannot flee."""


@dataclass(frozen=True)
class Layers:
    """Which layers a task reads, as a person writes it: ``3``, ``2,3``, ``-1``, ``all`` or ``auto``.

    Attributes:
        text: layers counted from 1, as in the paper.
        depth: where ``auto`` stands, as a share of all layers.
        task: whose they are.
    """

    text: str
    depth: float
    task: str

    def __post_init__(self) -> None:
        if self.text in ("all", "auto"):
            return
        parts = self.text.replace(" ", "").split(",")
        if not all(re.fullmatch(r"-?[1-9]\d*", part) for part in parts):
            raise VitletError(
                f"the layers of {self.task} are {self.text!r}; they need to be numbers from 1 such as 3 or 2,3 (-1 is"
                " the last), all, or auto."
            )

    @property
    def needs(self) -> Needs:
        """What to ask for before the number of layers is known."""
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
        needs = self.needs.attention
        return tuple(dict.fromkeys(int(index) % count for index in needs))


def layer_cost(reading: Reading, shape: AttentionShape, reduction: Reduction) -> Tensor:
    """One layer's loss.

    ``mean``: the sum over pairs divided by the number of tokens, so that even attention costs about its mean price;
    mean over heads and images. ``log``: the map of each image is stretched to reach from 0 to 1 first, and the loss is
    the logarithm of the sum over pairs and images, or 0 where the sum is below 1.
    """
    if reduction == "mean":
        return reading.cost.mean() / (shape.height * shape.width)
    assert reading.low is not None and reading.high is not None
    stretched = (reading.cost - reading.low * reading.price[:, None]) / (reading.high - reading.low).clamp(min=1e-12)
    return stretched.mean(1).sum().clamp(min=1).log()


def regularize(
    features: Features,
    layers: Sequence[int],
    price: Callable[[AttentionMap], Price],
    *,
    heads: Heads,
    rows: Rows,
    reduction: Reduction,
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """Loss over several layers, and each layer's mean attention distance beside that of even attention.

    The mean over layers under ``mean``, their sum under ``log``.
    """
    losses = []
    metrics: dict[str, Tensor | float] = {}
    for index in layers:
        attention = features.attention[index]
        reading = attention.read(price(attention), heads=heads, rows=rows, extremes=reduction == "log")
        losses.append(layer_cost(reading, attention.shape, reduction))
        metrics[f"layer{index + 1}_distance"] = reading.distance
        metrics[f"layer{index + 1}_uniform"] = attention.shape.uniform_distance
    stacked = torch.stack(losses)
    return (stacked.mean() if reduction == "mean" else stacked.sum()), metrics
