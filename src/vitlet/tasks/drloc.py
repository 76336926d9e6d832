"""Dense relative localization (DRLoc): predicts the offset between two tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import nn

from vitlet.errors import VitletError
from vitlet.tasks.heads import PairHead
from vitlet.tasks.offset_targets import (
    ClassTarget,
    CrossEntropyTarget,
    GaussianTarget,
    OffsetTarget,
    Sides,
    localization_ce,
    localization_l1,
    localization_reg,
)
from vitlet.tasks.task import LEARNED_ERROR, Places, Task, TaskResult, chance_verdict
from vitlet.tokens.features import Features, Grid, GridLevels, GridShape, Needs, Pool, Shapes, pooled_size
from vitlet.tokens.geometry import chance_error, pair_offsets, sample_pairs

__all__ = ["DRLoc", "localization_ce", "localization_l1", "localization_reg"]


class Choices(NamedTuple):
    """Options in which the paper and its released code differ."""

    targets: Literal["fraction", "cells"]
    classes: Literal["wide", "tight", "absolute"]
    spread: Literal["log_sigma", "log_variance"]
    extra_linear: bool
    pool: Pool
    schedule: Literal["constant", "ramp"]
    levels: Literal["blocks", "stages"]


CHOICES = {
    "paper": Choices("fraction", "wide", "log_sigma", False, "2x2", "constant", "blocks"),
    "reference": Choices("cells", "tight", "log_variance", True, "3x3/2", "ramp", "stages"),
}
"""By preset."""
GRID_LEVELS: dict[str, GridLevels] = {"blocks": "blocks", "stages": "merged"}
"""What `Needs` calls the levels of the variant all."""


class DRLoc(Task):
    """Predict the offset between random pairs of tokens of one image.

    Liu, Sangineto, Bi, Sebe, Lepri, De Nadai: "Efficient Training of Visual Transformers with Small Datasets", NeurIPS
    2021, https://arxiv.org/abs/2106.03746. A small MLP takes pairs of final tokens, ``(B, M, 2C)``, and predicts their
    offset on the grid; ``error_cells`` and ``chance_cells`` are mean errors per axis, in cells. Options that are None
    follow the preset.

    Args:
        variant: loss; l1: absolute offsets; signed: signed offsets; ce: offsets as classes; reg: a Gaussian over the
            classes; all: l1 at every block or stage, each with its own head.
        preset: defaults of the other options; paper: as published; reference: as in the authors' released code.
        pairs: number of token pairs sampled per image (m in the paper).
        hidden: hidden units of the head.
        pool: average pooling of the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2), or auto: the preset's
            kernel while both sides stay at 7 or more (14x14 becomes 7x7).
        tap: tokens before or after the final norm.
        levels: grids that variant all reads: after every block, or after every stage (default: by preset).
        targets: unit of the offsets in l1, signed and all: fraction of the grid's side, or cells (default: by preset).
        classes: number of classes in ce and reg for a side of k cells: wide 2k+1, tight 2k-1, absolute k (default: by
            preset).
        spread: output of the head in reg: logarithm of sigma or of the variance (default: by preset).
        extra_linear: third hidden layer, without activation, in ce and reg (default: by preset).
        alpha: weight of the penalty on the spread in reg.
        reduction: mean over images, pairs and axes, or the paper's formula, a sum over the batch.

    Example:
        >>> attached = vitlet.attach(model, [vitlet.DRLoc(variant="ce", pairs=32)])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "drloc"
    suggested_weight = 0.5

    def __init__(
        self,
        *,
        variant: Literal["l1", "signed", "ce", "reg", "all"] = "l1",
        preset: Literal["paper", "reference"] = "paper",
        pairs: int = 64,
        hidden: int = 512,
        pool: Literal["auto", "none", "2x2", "3x3/2"] = "auto",
        tap: Literal["before_norm", "after_norm"] = "before_norm",
        levels: Literal["blocks", "stages"] | None = None,
        targets: Literal["fraction", "cells"] | None = None,
        classes: Literal["wide", "tight", "absolute"] | None = None,
        spread: Literal["log_sigma", "log_variance"] | None = None,
        extra_linear: bool | None = None,
        alpha: float = 0.001,
        reduction: Literal["mean", "formula"] = "mean",
    ) -> None:
        super().__init__()
        if pairs < 1 or hidden < 1:
            raise VitletError(f"drloc needs at least one pair and one hidden unit, found {pairs} and {hidden}.")
        self.every_block = variant == "all"
        if self.every_block and tap == "after_norm":
            raise VitletError("drloc variant 'all' reads every block, which has no final norm: use tap 'before_norm'.")
        choices = CHOICES[preset]
        self.target: OffsetTarget | CrossEntropyTarget | GaussianTarget
        if variant == "ce":
            self.target = CrossEntropyTarget(classes or choices.classes, reduction)
        elif variant == "reg":
            self.target = GaussianTarget(classes or choices.classes, reduction, alpha, spread or choices.spread)
        else:
            self.target = OffsetTarget(variant == "signed", targets or choices.targets, reduction)
        extra = choices.extra_linear if extra_linear is None else extra_linear
        self.extra_linear = extra and isinstance(self.target, ClassTarget)
        self.pairs, self.hidden, self.pool, self.tap = pairs, hidden, pool, tap
        self.preset_pool = choices.pool
        self.suggested_schedule = choices.schedule
        self.needs = Needs(after_norm=tap == "after_norm")
        if self.every_block:
            self.needs = Needs(every_grid=True, levels=GRID_LEVELS[levels or choices.levels])
        self.heads = nn.ModuleList()
        self.pools: list[tuple[Pool, ...]] = []
        self.chance_cells = 0.0

    def build(self, shapes: Shapes) -> None:
        grids = shapes.every if self.every_block else (shapes.tapped(self.tap),)
        self.pools = [self._pools(grid) for grid in grids]
        sides = [self._sides(grid, pools) for grid, pools in zip(grids, self.pools, strict=True)]
        self.heads = nn.ModuleList(
            PairHead(grid.channels, self.hidden, self.target.outputs(side), extra_linear=self.extra_linear)
            for grid, side in zip(grids, sides, strict=True)
        )
        chances = [chance_error(size, signed=self.target.signed) for side in sides for size in side]
        self.chance_cells = sum(chances) / len(chances)

    def _pools(self, grid: GridShape) -> tuple[Pool, ...]:
        """Poolings to apply in sequence to a grid of this size."""
        if self.pool != "auto":
            return (self.pool,)
        pools: list[Pool] = []
        side = min(grid.height, grid.width)
        while side >= 14 and not self.every_block:  # the paper reads every block on its own grid
            pools.append(self.preset_pool)
            side = pooled_size(side, self.preset_pool)
        return tuple(pools)

    def _sides(self, grid: GridShape, pools: tuple[Pool, ...]) -> Sides:
        """Rows and columns that the task sees of a grid."""
        height, width = grid.height, grid.width
        for pool in pools:
            height, width = pooled_size(height, pool), pooled_size(width, pool)
        if min(height, width) < 2:
            raise VitletError(
                f"drloc would see a grid of {height}x{width} tokens after pooling {grid.height}x{grid.width};"
                " it needs at least 2x2. Use pool 'none'."
            )
        return height, width

    def _grids(self, features: Features) -> list[Grid]:
        """The grids that the task reads, after pooling."""
        grids = list(features.every if self.every_block else (features.tapped(self.tap),))
        for index, pools in enumerate(self.pools):
            for pool in pools:
                grids[index] = grids[index].pooled(pool)
        return grids

    def forward(self, features: Features) -> TaskResult:
        losses, errors = [], []
        for grid, head in zip(self._grids(features), self.heads, strict=True):
            tokens = grid.sequence()
            pairs = sample_pairs(len(tokens), tokens.shape[1], self.pairs, device=tokens.device)
            offsets = pair_offsets(grid.coords, pairs)  # B, M, 2
            offsets = offsets if self.target.signed else offsets.abs()
            sides = grid.shape.height, grid.shape.width
            loss, error = self.target.loss_and_error(head(tokens, pairs), offsets, sides)
            losses.append(loss)
            errors.append(error)
        error = torch.stack(errors).mean()
        return TaskResult(torch.stack(losses).sum(), {"error_cells": error, "chance_cells": self.chance_cells})

    def places(self, features: Features) -> Places:
        """Predicted position of every token as seen from the grid's centre; the error is a mean over 16 origins."""
        grid, signed = self._grids(features)[-1], self.target.signed
        tokens, sides = grid.sequence(), (grid.shape.height, grid.shape.width)
        batch, count = tokens.shape[:2]
        middle = sides[0] // 2 * sides[1] + sides[1] // 2
        origins = torch.cat([torch.tensor([middle]), torch.arange(0, count, max(1, count // 15))[:15]])
        firsts = torch.arange(count).repeat(len(origins))  # all tokens seen from the first origin, then from the next
        pairs = torch.stack([firsts, origins.repeat_interleave(count)], dim=-1).to(tokens.device).expand(batch, -1, -1)
        true = pair_offsets(grid.coords, pairs)  # B, origins*N, 2
        predicted = self.target.in_cells(self.heads[-1](tokens, pairs).float(), sides)
        error = (predicted - (true if signed else true.abs())).abs().mean(-1)
        if not signed:
            predicted = predicted * torch.where(true < 0, -1.0, 1.0)
        places = grid.coords[:, middle : middle + 1] + predicted[:, :count]
        mean = error.view(batch, len(origins), count).mean(1)
        return Places(places, grid.coords, mean, sides, middle, signed, self.chance_cells)

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        error, chance = metrics["error_cells"], metrics["chance_cells"]
        finding = f"its error of {error:.2f} cells is no better than the {chance:.2f} of a constant guess"
        return chance_verdict(error < LEARNED_ERROR * chance, finding)
