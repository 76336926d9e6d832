"""Probabilities that can be believed: one temperature, fitted on images that the model did not learn from.

The method is that of Guo et al., "On Calibration of Modern Neural Networks", ICML 2017: the temperature with the least
cross-entropy. It changes no guess, only how sure each is.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from vitlet.data.images import ImageSet, Subset
from vitlet.data.store import content_digests
from vitlet.errors import VitletError
from vitlet.inference.exported import is_export
from vitlet.inference.predict import CALIBRATION_FILE, Predictor
from vitlet.statistics import calibration
from vitlet.training.files import checksum, write_atomically
from vitlet.training.run_folder import run_weights

LIMITS = (0.05, 20.0)
"""Of the temperature; a fit that ends there has found nothing."""


@dataclass(frozen=True)
class CalibrationScores:
    """Calibration error and loss on some images, before and after temperature scaling.

    Attributes:
        data: what the images are.
        images: how many.
        ece: expected calibration error in percent: mean distance of confidence and accuracy, over 15 bins.
        loss: mean cross-entropy.
    """

    data: str
    images: int
    ece_before: float
    ece_after: float
    loss_before: float
    loss_after: float


@dataclass(frozen=True)
class Calibrated:
    """Temperature of a run, the images of the fit, and scores on held-out images (None: there are none)."""

    temperature: float
    fitted: CalibrationScores
    tested: CalibrationScores | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def calibrate(run: Path, data: str | None = None, *, data_dir: str | None = None, device: str = "auto") -> Calibrated:
    """Fit the temperature of a run on its validation images, or on other labelled ones, and keep it in the run."""
    if is_export(run):
        raise VitletError(f"{run} is an export: calibrate the run that it was made from, then export it again.")
    predictor = Predictor.load(run, device=device)
    images, what = predictor.images(data, split="val", data_dir=data_dir)
    logits, labels = predictor.logits(images)
    temperature = fit_temperature(logits, labels)
    fitted = _measure(what, logits, labels, temperature)
    tested = None
    try:
        unseen, named = predictor.images(split="test")
    except VitletError:  # no test images at hand; what they would have shown is left open
        unseen = None
    if unseen is not None and len(left := _not_among(unseen, images)):
        tested = _measure(named, *predictor.logits(left), temperature)
    found = Calibrated(temperature, fitted, tested)
    values = {**found.to_dict(), "weights_sha256": checksum(run_weights(run))}
    try:
        write_atomically(run / CALIBRATION_FILE, json.dumps(values, indent=2, ensure_ascii=False))
    except OSError as problem:
        raise VitletError(f"cannot write {run / CALIBRATION_FILE}: {problem.strerror}.") from problem
    return found


def _not_among(images: ImageSet, others: ImageSet) -> ImageSet:
    """The images whose very bytes are not among the others."""
    known = set(content_digests(others))
    return Subset(images, tuple(index for index, each in enumerate(content_digests(images)) if each not in known))


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the least cross-entropy on logits ``(n, classes)`` with labels ``(n,)``."""
    from scipy.optimize import minimize_scalar

    low, high = (math.log(limit) for limit in LIMITS)
    precise = logits.double()

    def loss(power: float) -> float:
        return float(F.cross_entropy(precise / math.exp(power), labels))

    found = minimize_scalar(loss, bounds=(low, high), method="bounded")
    if min(loss(low), loss(high)) <= found.fun + 1e-9:
        raise VitletError(
            f"no temperature between {LIMITS[0]:g} and {LIMITS[1]:g} fits these {len(labels)} images: the model"
            " classifies all of them correctly, or none. Calibrate on more images, or train longer."
        )
    return math.exp(found.x)


def _measure(what: str, logits: Tensor, labels: Tensor, temperature: float) -> CalibrationScores:
    (ece, loss), (ece_after, loss_after) = (_believed(logits, labels, divisor) for divisor in (1.0, temperature))
    return CalibrationScores(what, len(labels), ece, ece_after, loss, loss_after)


def _believed(logits: Tensor, labels: Tensor, temperature: float) -> tuple[float, float]:
    """Expected calibration error in percent, and cross-entropy."""
    scaled = logits.double() / temperature
    confidence, guesses = scaled.softmax(-1).max(-1)
    error = calibration(confidence.numpy(), (guesses == labels).numpy()).error
    return error, float(F.cross_entropy(scaled, labels))
