"""Logistic regression on the features of a frozen model: one pass over the images, no training steps.

The run is an ordinary one of one epoch and one step, and the fitted regression becomes the network's classifier, so
that every command takes it as any other run. The regularization strength is chosen on the validation images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.config import RunConfig
from vitlet.data.images import ImageSet
from vitlet.data.loading import EpochOrder
from vitlet.data.shards import ShardStream
from vitlet.errors import VitletError
from vitlet.models.initialise import pooled_features
from vitlet.objective import Outcome
from vitlet.processes import this_process

STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-8, 5))
"""Of the regression, as scikit-learn's C: from 0.0001, the most regularized, to 100."""

HELD_OUT = 5
"""Without validation images, every so-manieth training image chooses the strength; the final fit has them all."""

ABSENT = -30.0
"""Logit, relative to the smallest intercept, of a class without training images."""


def in_one_step(config: RunConfig) -> RunConfig:
    """The settings of a run that is fitted in one step; refuses those that ask for more."""
    if config.epochs not in (1, RunConfig().epochs):
        raise VitletError(f"head logistic is fitted in one pass; leave out --epochs {config.epochs}.")
    if this_process().size > 1:
        raise VitletError("head logistic takes seconds in one process; leave out --nproc.")
    return replace(config, epochs=1, warmup_epochs=0.0, aug="none", autotune=False)


def all_at_once(images: ImageSet, seed: int) -> EpochOrder:
    """An epoch of one step that holds all images."""
    if isinstance(images, ShardStream):
        raise VitletError("head logistic does not work with shards. Use --head linear, or a folder of images.")
    return EpochOrder(images.labels, batch_size=len(images.labels), seed=seed)


@torch.inference_mode()
def extract_features(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    tta: str,
    autocast: Callable[[], AbstractContextManager[Any]],
    between: Callable[[], None],
) -> FrozenFeatures:
    """Pooled features of the images and, with ``tta`` flip, of their mirror images, as in evaluation."""
    found, labels = [], []
    for batch, named in batches:
        between()
        views = [batch, batch.flip(3)] if tta == "flip" else [batch]
        with autocast():
            found.append(torch.stack([pooled_features(model, view).float().cpu() for view in views], 1))
        labels.append(named)
    return FrozenFeatures(torch.cat(found), torch.cat(labels))


def fit_classifier(
    model: nn.Module,
    known: FrozenFeatures,
    held: FrozenFeatures | None,
    weights: Tensor | None,
    between: Callable[[], None],
) -> Outcome:
    """Fit a logistic regression and write it into the model's classifier; returns the result on the training images."""
    classifier: nn.Linear = model.get_classifier()  # type: ignore[operator]
    found = fit_logistic(known, held, classes=classifier.out_features, weights=weights, between=between)
    with torch.no_grad():
        classifier.weight.copy_(found.weight)
        classifier.bias.copy_(found.bias)
    loss = F.cross_entropy(known.views.flatten(0, 1) @ found.weight.T + found.bias, known.all_labels)
    return Outcome(loss, None, {"criterion": loss}, {"strength": found.strength})


@dataclass(frozen=True)
class FrozenFeatures:
    """Frozen features ``views (N, views, C)``, of the image or also of its mirror image, and ``labels (N,)``."""

    views: Tensor
    labels: Tensor

    @property
    def all_labels(self) -> Tensor:
        """Labels of all views, ``(N * views,)``."""
        return self.labels.repeat_interleave(self.views.shape[1])

    def __getitem__(self, chosen: Tensor) -> FrozenFeatures:
        return FrozenFeatures(self.views[chosen], self.labels[chosen])

    def loss(self, fitted: Regression) -> float:
        """Cross-entropy of the mean probabilities over the views."""
        probabilities = (self.views @ fitted.weight.T + fitted.bias).softmax(-1).mean(1)
        return float(F.nll_loss(probabilities.clamp(min=1e-9).log(), self.labels))


@dataclass(frozen=True)
class Regression:
    """Logits are ``features @ weight.T + bias``; ``strength`` is scikit-learn's C."""

    weight: Tensor
    bias: Tensor
    strength: float


def fit_logistic(
    known: FrozenFeatures,
    held: FrozenFeatures | None,
    *,
    classes: int,
    weights: Tensor | None = None,
    between: Callable[[], None] = lambda: None,
) -> Regression:
    """A multinomial logistic regression whose regularization has the least cross-entropy on held-out features.

    Args:
        known: to fit.
        held: to choose the strength (default: a fifth of the known ones; the regression is then fitted to all).
        classes: number of them; one without features is never predicted.
        weights: of the classes.
        between: called between two fits.
    """
    rest, chooses = known, held
    if held is None:
        turn = torch.from_numpy(np.random.default_rng(0).permutation(len(known.labels))) % HELD_OUT == 0
        rest, chooses = (known[~turn], known[turn]) if len(known.labels[~turn].unique()) > 1 else (known, known)
    assert chooses is not None
    best: tuple[float, Regression] | None = None
    for strength in STRENGTHS:
        between()
        fitted = _fitted(rest, strength, classes, weights)
        loss = chooses.loss(fitted)
        if best is None or loss < best[0]:
            best = (loss, fitted)
        elif loss > 1.5 * best[0]:
            break  # ever less regularized, it only becomes worse
    assert best is not None
    return best[1] if rest is known else _fitted(known, best[1].strength, classes, weights)


def _fitted(known: FrozenFeatures, strength: float, classes: int, weights: Tensor | None) -> Regression:
    """The regression at one strength, on standardized features; the standardization is part of what is returned."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    inputs, labels = known.views.flatten(0, 1).double(), known.all_labels
    mean, spread = inputs.mean(0), inputs.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)  # a feature that is always the same says nothing
    weight, bias = torch.zeros(classes, inputs.shape[1]).double(), torch.zeros(classes).double()
    present, offsets = labels.unique(), torch.zeros(1).double()
    if len(present) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # nearly there is as good on other images
            found = LogisticRegression(C=strength, max_iter=300, tol=1e-4).fit(
                ((inputs - mean) / spread).numpy(),
                labels.numpy(),
                sample_weight=None if weights is None else weights[labels].numpy(),
            )
        rows, offsets = torch.from_numpy(found.coef_), torch.from_numpy(found.intercept_)
        if len(present) == 2:  # scikit-learn has one row then, of the second class
            rows, offsets = torch.cat([-rows, rows]) / 2, torch.cat([-offsets, offsets]) / 2
        weight[present], bias[present] = rows / spread, offsets - (rows / spread) @ mean
    absent = torch.ones(classes, dtype=torch.bool).index_fill(0, present, False)
    bias[absent] = offsets.min() + ABSENT
    return Regression(weight.float(), bias.float(), strength)


@torch.inference_mode()
def require_linear(model: nn.Module, images: Tensor, name: str) -> None:
    """Refuse models whose logits are not a linear layer on their pooled features.

    Args:
        model: the network.
        images: any, to try it on.
        name: of the network.
    """
    module: Any = model.eval()
    classifier = module.get_classifier()
    linear = isinstance(classifier, nn.Linear) and classifier.bias is not None
    if not linear or not torch.allclose(classifier(pooled_features(module, images)), module(images), atol=1e-3):
        raise VitletError(
            f"head logistic needs a network whose classifier is one linear layer; found another in {name}."
            " Use --head linear."
        )
