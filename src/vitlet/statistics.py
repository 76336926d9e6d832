"""Numbers with intervals, calibration, confusion: plain statistics on plain arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NORMAL = 1.959964
"""Of the normal distribution, 95 % lie within so many standard deviations."""

BINS = 15
"""Of confidence, in the reliability diagram and the expected calibration error."""


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        """Text such as ``91.2 % (88.0 to 93.6)``."""
        return f"{self.value:.1f} % ({self.low:.1f} to {self.high:.1f})"


def wilson(right: float, count: int) -> Interval:
    """Accuracy in percent of ``right`` out of ``count`` images, with Wilson's score interval."""
    share, spread = right / count, NORMAL**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = NORMAL / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return Interval(100 * share, 100 * max(0.0, middle - half), 100 * min(1.0, middle + half))


def student(values: Sequence[float]) -> Interval:
    """Mean of repeated runs, with Student's interval; needs two or more."""
    from scipy.stats import t

    mean = float(np.mean(values))
    half = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def paired_difference(first: Any, second: Any) -> Interval:
    """Accuracy of ``second`` less that of ``first`` in points, of booleans on the same images, by normal approximation.

    Only the images that one of them got right and the other wrong say anything.
    """
    count = len(first)
    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    difference = (gained - lost) / count
    half = NORMAL * math.sqrt(max(0.0, gained + lost - (gained - lost) ** 2 / count)) / count
    return Interval(100 * difference, 100 * (difference - half), 100 * (difference + half))


@dataclass(frozen=True)
class Calibration:
    """Reliability diagram: by confidence bin, number of images, mean confidence and accuracy.

    Attributes:
        error: the expected calibration error: mean distance of the two, weighed by images, in percent.
    """

    counts: list[int]
    confidence: list[float]
    accuracy: list[float]
    error: float


def calibration(confidence: Any, right: Any, bins: int = BINS) -> Calibration:
    """Sort guesses into bins of equal width by their probability."""
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    held = np.maximum(counts, 1)
    sure = np.bincount(place, weights=confidence, minlength=bins) / held
    good = np.bincount(place, weights=right.astype(float), minlength=bins) / held
    error = 100 * float((counts * np.abs(sure - good)).sum() / counts.sum())
    return Calibration(counts.tolist(), sure.tolist(), good.tolist(), error)


def confusion(labels: Any, guesses: Any, classes: int) -> Any:
    """Counts ``(classes, classes)``: rows are true classes, columns the guesses."""
    flat = np.bincount(labels * classes + guesses, minlength=classes * classes)
    return flat.reshape(classes, classes)
