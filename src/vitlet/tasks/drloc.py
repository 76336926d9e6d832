"""Dense relative localization: how far apart are two tokens?

Liu, Sangineto, Bi, Sebe, Lepri, De Nadai: "Efficient Training of Visual Transformers with Small Datasets",
NeurIPS 2021. Random pairs of final tokens are shown to a small MLP that predicts their offset on the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.tasks.heads import PairHead
from vitlet.tasks.task import Places, Task, TaskResult
from vitlet.tokens.features import Features, Grid, GridShape, Needs, Pool, Shapes, pooled_size
from vitlet.tokens.geometry import chance_error, pair_offsets, sample_pairs

Targets = Literal["fraction", "cells"]
Classes = Literal["wide", "tight", "absolute"]
Spread = Literal["log_sigma", "log_variance"]
Reduction = Literal["mean", "formula"]

AT_CHANCE = 0.95
"""A mean error above this share of the chance level counts as nothing learned."""


@dataclass(frozen=True)
class Choices:
    """Where the paper and its released code differ."""

    targets: Targets
    classes: Classes
    spread: Spread
    extra_linear: bool
    pool: Pool
    schedule: Literal["constant", "ramp"]


PRESETS = {
    "paper": Choices("fraction", "wide", "log_sigma", False, "2x2", "constant"),
    "reference": Choices("cells", "tight", "log_variance", True, "3x3/2", "ramp"),
}


def localization_l1(prediction: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """L1 loss between offsets ``(B, M, 2)``.

    ``mean`` is over images, pairs and axes (appendix A of the paper); ``formula`` is its equation 2 to the letter:
    the L1 norm, averaged over pairs, summed over the batch.
    """
    error = (prediction.float() - target).abs()
    return error.mean() if reduction == "mean" else error.sum(-1).mean(-1).sum()


def localization_ce(logits: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Sum over one axis's cross-entropy: logits ``(B, M, classes)``, target ``(B, M)`` class indices."""
    loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    return loss.mean() if reduction == "mean" else loss.mean(-1).sum()


def localization_reg(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 1e-3,
    spread: Spread = "log_sigma",
    reduction: Reduction = "mean",
) -> Tensor:
    """One axis's normalised squared distance to the expected class, with a price on the spread (paper, equation 6).

    Logits ``(B, M, classes)``, target ``(B, M)`` class indices. The variance has 1e-8 added under it.
    """
    probability = logits.float().softmax(-1)
    classes = torch.arange(logits.shape[-1], device=logits.device, dtype=probability.dtype)
    mean = mean_class(probability)  # B, M
    variance = (probability * (classes - mean[..., None]).square()).sum(-1) + 1e-8
    penalty = variance.log() if spread == "log_variance" else 0.5 * variance.log()
    loss = (target - mean).square() / variance + alpha * penalty
    return loss.mean() if reduction == "mean" else loss.mean(-1).sum()


def mean_class(probability: Tensor) -> Tensor:
    """Expected class of distributions ``(..., classes)``; no matrix product, which autocast would make coarse."""
    classes = torch.arange(probability.shape[-1], device=probability.device, dtype=probability.dtype)
    return (probability * classes).sum(-1)


class DRLoc(Task):
    """Predict the offset between random pairs of tokens of one image.

    Options left at None follow the preset.

    Args:
        variant: l1: absolute offsets; signed: signed ones; ce: offsets as classes; reg: a Gaussian over the classes;
            all: l1 at every block, each with a head of its own.
        preset: paper: as published; reference: as the authors' released code has it.
        pairs: pairs of tokens sampled per image (m in the paper).
        hidden: width of the head.
        pool: average the grid before the task: none, 2x2, 3x3/2 (kernel 3, stride 2), or auto: by the preset's
            kernel while both sides stay at 7 or more (14x14 becomes 7x7).
        tap: tokens before or after the final norm.
        targets: of l1, signed and all: fraction of the grid's side, or cells.
        classes: of ce and reg, for a side of k cells: wide 2k+1, tight 2k-1, absolute k.
        spread: of reg: the logarithm of sigma or of the variance.
        extra_linear: of ce and reg: a third hidden layer without activation.
        alpha: of reg: price of the spread.
        reduction: mean over images, pairs and axes, or the paper's formula (summed over the batch).
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
        if variant == "all" and tap == "after_norm":
            raise VitletError("drloc variant 'all' reads every block, which has no final norm: use tap 'before_norm'.")
        choices = PRESETS[preset]
        self.variant, self.pairs, self.hidden, self.pool, self.tap = variant, pairs, hidden, pool, tap
        self.preset_pool: Pool = choices.pool
        self.targets: Targets = targets or choices.targets
        self.classes: Classes = classes or choices.classes
        self.spread: Spread = spread or choices.spread
        self.extra_linear = choices.extra_linear if extra_linear is None else extra_linear
        self.alpha, self.reduction = alpha, reduction
        self.suggested_schedule = choices.schedule
        self.needs = Needs(after_norm=tap == "after_norm", every_grid=variant == "all")
        self.heads = nn.ModuleList()
        self.pools: list[tuple[Pool, ...]] = []
        self.chance_cells = 0.0

    @property
    def signed(self) -> bool:
        """Whether the head tells left from right."""
        return self.variant == "signed" or (self.variant in ("ce", "reg") and self.classes != "absolute")

    def build(self, shapes: Shapes) -> None:
        if self.variant == "all":
            grids = shapes.every
        else:
            grids = (shapes.after_norm if self.tap == "after_norm" and shapes.after_norm else shapes.last,)
        self.pools = [self._pools(grid) for grid in grids]
        sides = [self._sides(grid, pools) for grid, pools in zip(grids, self.pools, strict=True)]
        self.heads = nn.ModuleList(self._head(grid.channels, *side) for grid, side in zip(grids, sides, strict=True))
        chances = [chance_error(size, signed=self.signed) for side in sides for size in side]
        self.chance_cells = sum(chances) / len(chances)

    def _pools(self, grid: GridShape) -> tuple[Pool, ...]:
        """Poolings to apply one after another to a grid of this size."""
        if self.pool != "auto":
            return (self.pool,)
        pools: list[Pool] = []
        if self.variant != "all":  # the paper reads every block on its own grid
            side = min(grid.height, grid.width)
            while side >= 14:
                pools.append(self.preset_pool)
                side = pooled_size(side, self.preset_pool)
        return tuple(pools)

    def _sides(self, grid: GridShape, pools: tuple[Pool, ...]) -> tuple[int, int]:
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

    def _head(self, channels: int, height: int, width: int) -> PairHead:
        if self.variant in ("ce", "reg"):
            out = self._class_count(height) + self._class_count(width)
            return PairHead(channels, self.hidden, out, extra_linear=self.extra_linear)
        return PairHead(channels, self.hidden, 2)

    def _class_count(self, size: int) -> int:
        return {"wide": 2 * size + 1, "tight": 2 * size - 1, "absolute": size}[self.classes]

    def forward(self, features: Features) -> TaskResult:
        if self.variant == "all":
            grids = features.every
        else:
            grids = (features.after_norm if self.tap == "after_norm" and features.after_norm else features.last,)
        losses, errors = [], []
        for grid, head, pools in zip(grids, self.heads, self.pools, strict=True):
            for pool in pools:
                grid = grid.pooled(pool)
            loss, error = self._localize(grid, head)
            losses.append(loss)
            errors.append(error)
        metrics: dict[str, Tensor | float] = {
            "error_cells": torch.stack(errors).mean(),
            "chance_cells": self.chance_cells,
        }
        return TaskResult(torch.stack(losses).sum(), metrics)

    def _localize(self, grid: Grid, head: nn.Module) -> tuple[Tensor, Tensor]:
        """Loss on one grid, and the mean error in cells per axis."""
        tokens = grid.sequence()
        pairs = sample_pairs(len(tokens), tokens.shape[1], self.pairs, device=tokens.device)
        offsets = pair_offsets(grid.coords, pairs)  # B, M, 2
        if not self.signed:
            offsets = offsets.abs()
        out = head(tokens, pairs)
        sides = (grid.shape.height, grid.shape.width)
        if self.variant in ("ce", "reg"):
            return self._classify(out, offsets, sides)
        size = offsets.new_tensor(sides)
        if self.targets == "fraction":
            target, unit = offsets / size, size
        else:  # the released code counts signed offsets from 0
            target, unit = offsets + (size - 1) * self.signed, torch.ones_like(size)
        loss = localization_l1(out, target, self.reduction)
        return loss, ((out.detach().float() - target) * unit).abs().mean()

    def _classify(self, out: Tensor, offsets: Tensor, sides: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Loss of `ce` or `reg`, one distribution per axis; the error is that of the predicted class."""
        counts = [self._class_count(side) for side in sides]
        losses, errors = [], []
        for axis, (logits, side) in enumerate(zip(out.split(counts, dim=-1), sides, strict=True)):
            zero = {"wide": side, "tight": side - 1, "absolute": 0}[self.classes]  # class of offset 0
            target = (offsets[..., axis] + zero).round().long()
            target = target.clamp(0, logits.shape[-1] - 1)  # places between cells may be almost a whole side apart
            if self.variant == "ce":
                losses.append(localization_ce(logits, target, self.reduction))
                predicted = logits.detach().argmax(-1).float()
            else:
                options = {"alpha": self.alpha, "spread": self.spread, "reduction": self.reduction}
                losses.append(localization_reg(logits, target, **options))  # type: ignore[arg-type]
                predicted = mean_class(logits.detach().float().softmax(-1))
            errors.append((predicted - target).abs().mean())
        return torch.stack(losses).sum(), torch.stack(errors).mean()

    def places(self, features: Features) -> Places:
        """Every token's place as the head sees it from the middle of the last grid; the error is over 16 origins."""
        grid = features.every[-1] if self.variant == "all" else features.tapped(self.tap)
        for pool in self.pools[-1]:
            grid = grid.pooled(pool)
        tokens, sides = grid.sequence(), (grid.shape.height, grid.shape.width)
        batch, count = tokens.shape[:2]
        middle = sides[0] // 2 * sides[1] + sides[1] // 2
        origins = torch.cat([torch.tensor([middle]), torch.arange(0, count, max(1, count // 15))[:15]])
        firsts = torch.arange(count).repeat(len(origins))  # all tokens seen from the first origin, then from the next
        pairs = torch.stack([firsts, origins.repeat_interleave(count)], dim=-1).to(tokens.device).expand(batch, -1, -1)
        true = pair_offsets(grid.coords, pairs)  # B, origins*N, 2
        predicted = self._in_cells(self.heads[-1](tokens, pairs).float(), sides)
        error = (predicted - (true if self.signed else true.abs())).abs().mean(-1)
        if not self.signed:
            predicted = predicted * torch.where(true < 0, -1.0, 1.0)
        places = grid.coords[:, middle : middle + 1] + predicted[:, :count]
        mean = error.view(batch, len(origins), count).mean(1)
        return Places(places, grid.coords, mean, sides, middle, self.signed, self.chance_cells)

    def _in_cells(self, out: Tensor, sides: tuple[int, int]) -> Tensor:
        """A head's output ``(B, M, ...)`` as offsets in cells ``(B, M, 2)``."""
        if self.variant in ("ce", "reg"):
            axes = []
            for logits, side in zip(out.split([self._class_count(side) for side in sides], dim=-1), sides, strict=True):
                zero = {"wide": side, "tight": side - 1, "absolute": 0}[self.classes]  # class of offset 0
                found = logits.argmax(-1).float() if self.variant == "ce" else mean_class(logits.softmax(-1))
                axes.append(found - zero)
            return torch.stack(axes, dim=-1)
        size = out.new_tensor(sides)
        return out * size if self.targets == "fraction" else out - (size - 1) * self.signed

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        error, chance = metrics["error_cells"], metrics["chance_cells"]
        if error < AT_CHANCE * chance:
            return None
        return (
            f"was not learned: its error of {error:.2f} cells is no better than the {chance:.2f} of a constant guess."
            " Train longer, raise its weight, or turn it off."
        )
