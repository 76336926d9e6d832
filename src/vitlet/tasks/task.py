"""The contract of a task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.views import PlainView, ViewMaker

LEARNED_ERROR = 0.95
"""A mean error above this share of the chance level counts as nothing learned."""
LEARNED_ACCURACY = 1.05
"""An accuracy below this multiple of the chance level counts as nothing learned."""


class TaskResult(NamedTuple):
    """Loss of a task, and metrics in plain units (detached)."""

    loss: Tensor
    metrics: dict[str, Tensor | float]


class Places(NamedTuple):
    """Predicted and true positions of the tokens of images, in cells of the task's grid.

    Attributes:
        predicted: ``(B, N, 2)``: row and column.
        true: the same, or ``(1, N, 2)``.
        error: ``(B, N)``: mean error per axis of a token's predictions.
        sides: rows and columns of the grid.
        origin: the token that the others are seen from, None where places are absolute.
        signed: whether the head tells directions; where it does not, those drawn are the true ones.
        chance: mean error per axis of a constant guess.
    """

    predicted: Tensor
    true: Tensor
    error: Tensor
    sides: tuple[int, int]
    origin: int | None
    signed: bool
    chance: float


class Task(nn.Module):
    """Base class of tasks: declares what it needs, builds its heads once the sizes are known, returns a loss.

    Constructors take keyword-only options with literal defaults: the command line and YAML files offer the same.
    """

    name: ClassVar[str]
    """What the loss and the metrics are called."""

    needs: Needs = Needs()
    """What this task reads beyond the last grid."""

    suggested_weight: ClassVar[float] = 1.0
    """Its weight unless the user gives one; a literal, for it is read without importing the task."""

    suggested_schedule: Literal["constant", "ramp"] = "constant"
    """How its weight runs over the epochs unless the user says otherwise."""

    suggested_view: ViewMaker = PlainView()
    """Default view of the task."""

    asks_for_places: ClassVar[bool] = True
    """Whether its answers are places of tokens, which a positional embedding would give away."""

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def build(self, shapes: Shapes) -> None:
        """Make the heads for grids of these sizes; refuse sizes the task cannot use."""

    @abstractmethod
    def forward(self, features: Features) -> TaskResult:
        """The loss of a batch and its metrics."""

    def places(self, features: Features) -> Places | None:
        """Predicted token positions, for pictures; None if the task does not locate tokens."""
        return None

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        """Message if the metrics of the last epoch show that the task was not learned."""
        return None


def chance_verdict(
    learned: bool, finding: str, advice: str = "Train longer, raise its weight, or turn it off."
) -> str | None:
    """Message that a task was not learned, with what to do; None if it was learned."""
    return None if learned else f"was not learned: {finding}. {advice}"


def ask(task: nn.Module, features: Features) -> TaskResult:
    """Evaluate a task; outside autocast its heads get tokens in their own precision, whatever the model's."""
    head, device = next(task.parameters(), None), features.last.tokens.device.type
    casting = device != "meta" and torch.is_autocast_enabled(device)  # the meta device knows no autocast
    if head is not None and not casting:
        features = features.in_precision(head.dtype)
    return task(features)  # type: ignore[no-any-return]
