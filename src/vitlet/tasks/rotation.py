"""Rotation: predicts by which multiple of 90 degrees an image was rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.tasks.task import Task, TaskResult, chance_verdict
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.rotated import Rotated

__all__ = ["Rotation", "quarter_turns", "rotation_loss"]

CHANCE = 25.0
LEARNED_TURNS = 30.0
"""An accuracy below this, in percent, counts as nothing learned."""


def quarter_turns(coords: Tensor, side: int) -> Tensor:
    """Number of counter-clockwise quarter turns per image, ``(B,)``, from the coordinates of the first and last token.

    Args:
        coords: ``(B, N, 2)`` of a grid of ``side x side`` tokens.
    """
    largest = side - 1
    # The first token of an image that is turned by 0, 1, 2, 3 quarters, and the last one.
    first = coords.new_tensor([[0, 0], [0, largest], [largest, largest], [largest, 0]])
    ends = torch.stack([first, largest - first], dim=1)  # 4 turns, 2 ends, 2 axes
    return (coords[:, None, [0, -1]] == ends).all(-1).all(-1).int().argmax(1)


def rotation_loss(logits: Tensor, turns: Tensor) -> Tensor:
    """Cross-entropy of logits ``(B, 4)`` against quarter turns ``(B,)``."""
    return F.cross_entropy(logits.float(), turns)


class Rotation(Task):
    """Predict by which multiple of 90 degrees an image was rotated.

    Gidaris, Singh, Komodakis: "Unsupervised Representation Learning by Predicting Image Rotations", ICLR 2018,
    https://arxiv.org/abs/1803.07728; the pre-training of ARViT. The view rotates each image by 0, 90, 180 or 270
    degrees; a linear head, ``(B, 4)``, predicts which; the targets follow from the coordinates. ``accuracy`` and
    ``chance`` are in percent.

    Args:
        head: input of the linear layer: mean over tokens, or all tokens, as in the ARViT paper.
        tap: tokens before or after the final norm.

    Example:
        >>> term = vitlet.Term(vitlet.Rotation(), 1.0, vitlet.Rotated())
        >>> outcome = vitlet.Objective(vitlet.TimmBackbone(model), [term])(images, labels)
    """

    name = "rotation"
    suggested_view = Rotated()
    asks_for_places = False

    def __init__(
        self, *, head: Literal["mean", "tokens"] = "mean", tap: Literal["before_norm", "after_norm"] = "before_norm"
    ) -> None:
        super().__init__()
        self.kind, self.tap = head, tap
        self.needs = Needs(after_norm=tap == "after_norm")
        self.norm: nn.Module = nn.Identity()
        self.head: nn.Module = nn.Identity()

    def build(self, shapes: Shapes) -> None:
        shape = shapes.tapped(self.tap)
        if shape.height != shape.width:
            raise VitletError(
                f"rotation needs square images: found a grid of {shape.height}x{shape.width} tokens, which a quarter"
                " turn would change. Use a square --img-size."
            )
        tokens = shape.height * shape.width if self.kind == "tokens" else 1
        self.norm = nn.LayerNorm(shape.channels) if self.tap == "before_norm" else nn.Identity()
        self.head = nn.Linear(tokens * shape.channels, 4)

    def forward(self, features: Features) -> TaskResult:
        grid = features.tapped(self.tap)
        if len(grid.coords) != len(grid.tokens):
            raise VitletError(
                "rotation asks by how much each image was turned: found a view that turns none. Give its term the view"
                " vitlet.Rotated()."
            )
        turns = quarter_turns(grid.coords, grid.shape.height)
        tokens = self.norm(grid.sequence())  # B, N, C
        logits = self.head(tokens.mean(1) if self.kind == "mean" else tokens.flatten(1))
        accuracy = 100 * (logits.detach().argmax(1) == turns).float().mean()
        return TaskResult(rotation_loss(logits, turns), {"accuracy": accuracy, "chance": CHANCE})

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        finding = f"{metrics['accuracy']:.0f} % right where guessing gives 25 %"
        advice = "Train longer, or check that the images have an upright position."
        return chance_verdict(metrics["accuracy"] > LEARNED_TURNS, finding, advice)
