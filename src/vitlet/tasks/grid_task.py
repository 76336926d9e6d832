"""Base classes of tasks that read one token grid: on tokens, on pairs of tokens, on cells."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.tasks.heads import RelationHead
from vitlet.tasks.task import LEARNED_ACCURACY, LEARNED_ERROR, Places, Task, TaskResult, chance_verdict
from vitlet.tokens.features import Features, Grid, GridShape, Needs, Shapes
from vitlet.tokens.geometry import constant_error, from_unit_range, spread_coords, to_unit_range


class GridTask(Task):
    """Base class of tasks that read the last token grid, optionally pooled.

    Args:
        pool: average pooling of the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2).
        tap: tokens before or after the final norm.
    """

    def __init__(
        self,
        *,
        pool: Literal["none", "2x2", "3x3/2"] = "none",
        tap: Literal["before_norm", "after_norm"] = "after_norm",
    ) -> None:
        super().__init__()
        self.pool, self.tap = pool, tap
        self.needs = Needs(after_norm=tap == "after_norm")
        self.head: nn.Module = nn.Identity()
        self.chance = 0.0

    def build(self, shapes: Shapes) -> None:
        self.build_head(shapes.tapped(self.tap).pooled(self.pool))

    @abstractmethod
    def build_head(self, shape: GridShape) -> None:
        """Build ``head``, and ``chance``, the metric at chance level, for a grid of this size."""

    def grid(self, features: Features) -> Grid:
        """The grid that the task reads."""
        return features.tapped(self.tap).pooled(self.pool)


def pair_mse(scores: Tensor, values: Tensor) -> Tensor:
    """Squared error of scores ``(B, N, N)`` against values ``(B or 1, N, N)``, scaled from -1 to 1 in each image."""
    return F.mse_loss(scores.float(), to_unit_range(values).expand_as(scores))


class PairValueTask(GridTask):
    """Base class of tasks that predict one number for every pair of tokens."""

    unit: ClassVar[str]
    """Of the error, in words."""
    scale: ClassVar[float] = 1.0
    """From the values to that unit."""
    digits: ClassVar[int] = 2
    """Of the error when printed."""

    @abstractmethod
    def pair_values(self, coords: Tensor, shape: GridShape) -> Tensor:
        """The numbers to predict: coords ``(B or 1, N, 2)`` to ``(B or 1, N, N)``."""

    def build_head(self, shape: GridShape) -> None:
        self.head = RelationHead(shape.channels, 1, shape.channels)
        values = self.pair_values(spread_coords(shape.height, shape.width)[None], shape)
        self.chance = self.scale * constant_error(values)

    def forward(self, features: Features) -> TaskResult:
        grid = self.grid(features)
        scores = self.head(grid.sequence())[:, 0].float()  # B, N, N
        values = self.pair_values(grid.coords, grid.shape)
        error = self.scale * (from_unit_range(scores.detach(), values) - values).abs().mean()
        return TaskResult(pair_mse(scores, values), {"error": error, "chance": self.chance})

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        error, chance = (f"{metrics[name]:.{self.digits}f}" for name in ("error", "chance"))
        finding = f"its error of {error} {self.unit} is no better than the {chance} of a constant guess"
        return chance_verdict(metrics["error"] < LEARNED_ERROR * metrics["chance"], finding)


class CellTask(GridTask):
    """Base class of tasks that predict the cell of every token.

    The head has a score for each cell of the grid that it was built for. On a grid of another size, as in progressive
    resizing, the map of scores is interpolated: a cell keeps its relative position in the image.
    """

    sides: tuple[int, int]
    """Rows and columns of the grid that the head was built for."""

    @abstractmethod
    def cells(self, coords: Tensor, shape: GridShape) -> Tensor:
        """Cell index of each token, row by row: coords ``(B or 1, N, 2)`` to ``(B or 1, N)``."""

    def scores(self, grid: Grid) -> Tensor:
        """Scores of tokens for the cells of their grid, ``(B, N, N)``."""
        scores: Tensor = self.head(grid.sequence())
        here = (grid.shape.height, grid.shape.width)
        if here == self.sides:
            return scores
        maps = scores.flatten(0, 1).unflatten(1, (1, *self.sides))  # B * N, 1, rows, columns
        fitted = F.interpolate(maps.float(), here, mode="bilinear", align_corners=False)
        found: Tensor = fitted.flatten(1).unflatten(0, scores.shape[:2])
        return found

    @abstractmethod
    def loss(self, scores: Tensor, cells: Tensor) -> Tensor:
        """The loss of scores ``(B, N, N)`` of tokens for cells."""

    def chosen(self, scores: Tensor) -> Tensor:
        """The predicted cell of each token, from scores ``(B, N, N)`` to ``(B, N)``."""
        return scores.argmax(-1)

    def build_head(self, shape: GridShape) -> None:
        self.sides = shape.height, shape.width
        self.head = nn.Linear(shape.channels, shape.height * shape.width)
        self.chance = 100 / (shape.height * shape.width)

    def forward(self, features: Features) -> TaskResult:
        grid = self.grid(features)
        scores = self.scores(grid)  # B, N, cells
        cells = self.cells(grid.coords, grid.shape)
        accuracy = 100 * (self.chosen(scores.detach()) == cells).float().mean()
        return TaskResult(self.loss(scores, cells), {"accuracy": accuracy, "chance": self.chance})

    def places(self, features: Features) -> Places:
        """Coordinates of the predicted cell of each token."""
        grid = self.grid(features)
        cells = self.chosen(self.scores(grid))  # B, N
        columns = grid.shape.width
        predicted = torch.stack([cells // columns, cells % columns], dim=-1).float()
        error = (predicted - grid.coords).abs().mean(-1)
        chance = sum(constant_error(torch.arange(side).float()) for side in self.sides) / 2
        return Places(predicted, grid.coords, error, self.sides, None, True, chance)

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        accuracy, chance = metrics["accuracy"], metrics["chance"]
        finding = f"{accuracy:.1f} % of the tokens are placed right, no better than the {chance:.1f} % of guessing"
        return chance_verdict(accuracy > LEARNED_ACCURACY * chance, finding)
