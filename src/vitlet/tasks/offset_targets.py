"""Losses and targets of DRLoc's variants.

A target knows the head's number of outputs, the loss, the error in cells, and how to read an output in cells. Letters:
B images, M pairs of tokens; ``sides`` are the rows and columns of the grid, offsets ``(B, M, 2)`` are in cells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PairReduction = Literal["mean", "formula"]
SpreadTerm = Literal["log_sigma", "log_variance"]
Sides = tuple[int, int]


def localization_l1(prediction: Tensor, target: Tensor, reduction: PairReduction = "mean") -> Tensor:
    """L1 loss between offsets ``(B, M, 2)``.

    ``mean`` is over images, pairs and axes (appendix A of the paper); ``formula`` is its equation 2 to the letter:
    the L1 norm, averaged over pairs, summed over the batch.
    """
    error = (prediction.float() - target).abs()
    return error.mean() if reduction == "mean" else error.sum(-1).mean(-1).sum()


def localization_ce(logits: Tensor, target: Tensor, reduction: PairReduction = "mean") -> Tensor:
    """Sum over one axis's cross-entropy: logits ``(B, M, classes)``, target ``(B, M)`` class indices."""
    loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    return loss.mean() if reduction == "mean" else loss.mean(-1).sum()


def localization_reg(
    logits: Tensor,
    target: Tensor,
    *,
    alpha: float = 1e-3,
    spread: SpreadTerm = "log_sigma",
    reduction: PairReduction = "mean",
) -> Tensor:
    """One axis's normalised squared distance to the expected class, with a penalty on the spread (paper, equation 6).

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


@dataclass(frozen=True)
class OffsetTarget:
    """The offset as two numbers, in fractions of the grid's sides or in cells."""

    signed: bool
    unit: Literal["fraction", "cells"]
    reduction: PairReduction = "mean"

    def outputs(self, sides: Sides) -> int:
        """Outputs of the head."""
        return 2

    def loss_and_error(self, out: Tensor, offsets: Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
        """The loss of a head's output ``(B, M, 2)``, and its mean error in cells per axis."""
        size = offsets.new_tensor(sides)
        target = offsets / size if self.unit == "fraction" else offsets + self._zero(size)
        error = (out.detach().float() - target) * (size if self.unit == "fraction" else 1)
        return localization_l1(out, target, self.reduction), error.abs().mean()

    def in_cells(self, out: Tensor, sides: Sides) -> Tensor:
        """A head's output as offsets in cells ``(B, M, 2)``."""
        size = out.new_tensor(sides)
        return out * size if self.unit == "fraction" else out - self._zero(size)

    def _zero(self, size: Tensor) -> Tensor:
        return (size - 1) * self.signed  # the released code counts signed offsets from 0


@dataclass(frozen=True)
class ClassTarget(ABC):
    """The offset along each axis as one of several classes; for k cells wide 2k+1, tight 2k-1, absolute k."""

    classes: Literal["wide", "tight", "absolute"]
    reduction: PairReduction = "mean"

    @property
    def signed(self) -> bool:
        """Whether offsets are signed."""
        return self.classes != "absolute"

    @abstractmethod
    def predicted(self, logits: Tensor) -> Tensor:
        """The class that logits ``(B, M, classes)`` stand for: ``(B, M)``."""

    @abstractmethod
    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """One axis's loss of logits ``(B, M, classes)`` against class indices ``(B, M)``."""

    def outputs(self, sides: Sides) -> int:
        """Outputs of the head: the classes of both axes."""
        return sum(self._counts(sides))

    def loss_and_error(self, out: Tensor, offsets: Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
        """The loss of a head's output ``(B, M, outputs)``, and its mean error in cells per axis."""
        losses, errors = [], []
        for axis, (logits, zero) in enumerate(self._axes(out, sides)):
            target = (offsets[..., axis] + zero).round().long()
            target = target.clamp(0, logits.shape[-1] - 1)  # positions between cells may be almost a whole side apart
            losses.append(self.loss(logits, target))
            errors.append((self.predicted(logits.detach().float()) - target).abs().mean())
        return torch.stack(losses).sum(), torch.stack(errors).mean()

    def in_cells(self, out: Tensor, sides: Sides) -> Tensor:
        """A head's output as offsets in cells ``(B, M, 2)``."""
        return torch.stack([self.predicted(logits) - zero for logits, zero in self._axes(out, sides)], dim=-1)

    def _counts(self, sides: Sides) -> list[int]:
        return [{"wide": 2 * side + 1, "tight": 2 * side - 1, "absolute": side}[self.classes] for side in sides]

    def _axes(self, out: Tensor, sides: Sides) -> Iterator[tuple[Tensor, int]]:
        """Each axis's logits ``(B, M, classes)``, and the class of offset 0."""
        for logits, side in zip(out.split(self._counts(sides), dim=-1), sides, strict=True):
            yield logits, {"wide": side, "tight": side - 1, "absolute": 0}[self.classes]


class CrossEntropyTarget(ClassTarget):
    """Classes by cross-entropy; the prediction is the most likely one."""

    def predicted(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1).float()

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return localization_ce(logits, target, self.reduction)


@dataclass(frozen=True)
class GaussianTarget(ClassTarget):
    """A Gaussian over the classes; the prediction is its mean."""

    alpha: float = 1e-3
    spread: SpreadTerm = "log_sigma"

    def predicted(self, logits: Tensor) -> Tensor:
        return mean_class(logits.softmax(-1))

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return localization_reg(logits, target, alpha=self.alpha, spread=self.spread, reduction=self.reduction)
