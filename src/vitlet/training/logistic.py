"""A classifier by logistic regression on the features of a frozen network: one pass over the images, no steps.

The run is an ordinary one of one epoch and one step, and the fitted regression becomes the network's classifier, so
that every command takes it as any other run. The regularization strength is chosen on the validation images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.config import RunConfig
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.loading import EpochOrder
from vitlet.data.shards import ShardStream
from vitlet.errors import VitletError
from vitlet.models.initialise import pooled_features
from vitlet.objective import Outcome
from vitlet.processes import this_process
from vitlet.training.choice import Choice
from vitlet.training.distributed import World
from vitlet.training.inputs import class_weights
from vitlet.training.job import Batches
from vitlet.training.jobs import ClassifierJob

STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-8, 5))
"""Of the regression, as scikit-learn's C: from 0.0001, the most regularized, to 100."""

HELD_OUT = 5
"""Without validation images, every so-manieth training image chooses the strength; the final fit has them all."""

ABSENT = -30.0
"""Logit, relative to the smallest intercept, of a class without training images."""


class LogisticJob(ClassifierJob):
    """A classifier whose last layer is fitted at once, on features of the images as they are."""

    @classmethod
    def build(
        cls,
        config: RunConfig,
        dataset: Dataset | None = None,
        *,
        open_tasks: bool = False,
        choice: Choice | None = None,
    ) -> Self:
        if config.epochs not in (1, RunConfig().epochs):
            raise VitletError(f"head logistic is fitted in one pass; leave out --epochs {config.epochs}.")
        if this_process().size > 1:
            raise VitletError("head logistic takes seconds in one process; leave out --nproc.")
        at_once = replace(config, epochs=1, warmup_epochs=0.0, aug="none", autotune=False)
        job = super().build(at_once, dataset, choice=choice)
        if isinstance(job.dataset.train, ShardStream):
            raise VitletError("head logistic does not work with shards. Use --head linear, or a folder of images.")
        _require_linear(job)
        return job

    def batches(self, world: World) -> tuple[Batches, Any]:
        """One step of all images, which needs no batch."""
        labels = self.dataset.train.labels
        return EpochOrder(labels, batch_size=len(labels), seed=self.config.seed), [None]

    def fit(self, between: Callable[[], None]) -> Outcome:
        """Extract the features, fit, and put the regression into the classifier."""
        known = self._features(self.dataset.train, between)
        classifier: nn.Linear = self.model.get_classifier()  # type: ignore[operator]
        weights = class_weights(self.config, self.dataset, classifier.out_features)
        held = self._features(self.dataset.val, between) if self.dataset.val is not None else None
        found = fit_logistic(known, held, classes=classifier.out_features, weights=weights, between=between)
        with torch.no_grad():
            classifier.weight.copy_(found.weight)
            classifier.bias.copy_(found.bias)
        loss = F.cross_entropy(known.views.flatten(0, 1) @ found.weight.T + found.bias, known.all_labels)
        return Outcome(loss, None, {"criterion": loss}, {"strength": found.strength})

    @torch.inference_mode()
    def _features(self, images: ImageSet, between: Callable[[], None]) -> Features:
        """Of the images, and with ``tta`` flip of their mirror images: both are what evaluation will see."""
        found, labels = [], []
        for batch, named in self.evaluation_loader(images, World()):
            between()
            batch = self.on_device(batch)
            views = [batch, batch.flip(3)] if self.config.tta == "flip" else [batch]
            with self.autocast():
                found.append(torch.stack([pooled_features(self.model, view).float().cpu() for view in views], 1))
            labels.append(named)
        return Features(torch.cat(found), torch.cat(labels))


@dataclass(frozen=True)
class Features:
    """Of some images: ``views (N, views, C)``, one view or one more of the mirror image, and ``labels (N,)``."""

    views: Tensor
    labels: Tensor

    @property
    def all_labels(self) -> Tensor:
        """Of each view: ``(N * views,)``."""
        return self.labels.repeat_interleave(self.views.shape[1])

    def __getitem__(self, chosen: Tensor) -> Features:
        return Features(self.views[chosen], self.labels[chosen])

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
    known: Features,
    held: Features | None,
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


def _fitted(known: Features, strength: float, classes: int, weights: Tensor | None) -> Regression:
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
def _require_linear(job: LogisticJob) -> None:
    """Refuse networks whose logits are not one linear layer of the features that can be had of them."""
    module: Any = job.model.eval()
    classifier, images = module.get_classifier(), job.on_device(job.example()[0])
    linear = isinstance(classifier, nn.Linear) and classifier.bias is not None
    if not linear or not torch.allclose(classifier(pooled_features(module, images)), module(images), atol=1e-3):
        raise VitletError(
            f"head logistic needs a network whose classifier is one linear layer; found another in {job.config.model}."
            " Use --head linear."
        )
