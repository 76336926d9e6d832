"""Spatial relations (RelViT): predicts the direction of one token relative to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from vitlet.tasks.grid_task import GridTask
from vitlet.tasks.heads import RelationHead
from vitlet.tasks.task import LEARNED_ACCURACY, TaskResult, chance_verdict
from vitlet.tokens.features import Features, GridShape

__all__ = ["SpatialRelations", "relation_classes", "relation_loss"]

CLASSES = 9


def relation_classes(coords: Tensor) -> Tensor:
    """Class of every ordered pair, the first token as seen from the second: 0 is up and left, 4 the same position.

    Args:
        coords: ``(B, N, 2)``, or ``(1, N, 2)`` where every image has the same grid.

    Returns:
        ``(B, N, N)`` or ``(1, N, N)`` classes: three for the rows (up, level, down), in each three for the columns.
    """
    down, right = ((axis[:, :, None] - axis[:, None]).sign() for axis in coords.unbind(-1))
    return (3 * down + right + 4).long()


def relation_loss(logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy over all pairs, and accuracy in percent (ties count in part).

    One pass for both: these are the largest tensors of the task, and an argmax over their classes takes ten times as
    long as a maximum.

    Args:
        logits: ``(B, 9, N, N)``.
        classes: ``(B, N, N)`` or ``(1, N, N)``.
    """
    chances = logits.float().log_softmax(1)
    chosen = chances.gather(1, classes[:, None].expand(len(logits), -1, -1, -1))  # B, 1, N, N
    best = chances.detach().amax(1, keepdim=True)
    right = torch.count_nonzero(chosen.detach() == best) / torch.count_nonzero(chances.detach() == best)
    return -chosen.mean(), 100 * right


def majority(shape: GridShape) -> float:
    """Fraction of the most frequent class among all pairs of a grid."""
    level, centred = 1 / shape.height, 1 / shape.width
    return max(level, (1 - level) / 2) * max(centred, (1 - centred) / 2)


class SpatialRelations(GridTask):
    """Predict the direction of one token relative to another, for all pairs of tokens of an image.

    Camporese, Izzo, Ballan: "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision
    Transformer" (RelViT), BMVC 2022, https://arxiv.org/abs/2206.00481. Every ordered pair of tokens is classified into
    nine classes, ``(B, 9, N, N)``: up, level or down, and left, centred or right. ``accuracy`` and ``chance``, the
    fraction of the most frequent class, are in percent.

    Args:
        head: width of the nine score heads. reference: the tokens' channels divided by nine, as in the released code;
            paper: as wide as the tokens.
        pool: average pooling of the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2).
        tap: tokens before or after the final norm.

    Example:
        >>> attached = vitlet.attach(model, [vitlet.SpatialRelations(pool="2x2")])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "sprel"

    def __init__(
        self,
        *,
        head: Literal["reference", "paper"] = "reference",
        pool: Literal["none", "2x2", "3x3/2"] = "none",
        tap: Literal["before_norm", "after_norm"] = "after_norm",
    ) -> None:
        super().__init__(pool=pool, tap=tap)
        self.width = head

    def build_head(self, shape: GridShape) -> None:
        width = shape.channels if self.width == "paper" else max(1, shape.channels // CLASSES)
        self.head = RelationHead(shape.channels, CLASSES, width)
        self.chance = 100 * majority(shape)

    def forward(self, features: Features) -> TaskResult:
        grid = self.grid(features)
        logits = self.head(grid.sequence())  # B, 9, N, N
        loss, accuracy = relation_loss(logits, relation_classes(grid.coords))
        return TaskResult(loss, {"accuracy": accuracy, "chance": self.chance})

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        accuracy, chance = metrics["accuracy"], metrics["chance"]
        finding = f"{accuracy:.1f} % of the relations are right, no better than the {chance:.1f} % of always guessing"
        return chance_verdict(accuracy > LEARNED_ACCURACY * chance, f"{finding} the most frequent one")
