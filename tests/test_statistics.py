"""Intervals, calibration and confusion against scipy, scikit-learn and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import confusion_matrix

from vitlet.statistics import NORMAL, Interval, calibration, confusion, paired_difference, student, wilson


def close(found: Interval, value: float, low: float, high: float) -> None:
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))


@pytest.mark.parametrize(("right", "count"), [(0, 5), (5, 5), (1, 3), (37, 60), (912, 1000)])
def test_wilson_is_that_of_scipy(right: int, count: int) -> None:
    expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    close(wilson(right, count), 100 * right / count, 100 * expected.low, 100 * expected.high)


def test_wilson_stays_between_0_and_100() -> None:
    for right in (0, 1, 2):
        found = wilson(right, 2)
        assert 0 <= found.low <= found.value <= found.high <= 100


def test_the_normal_width_holds_95_percent() -> None:
    assert stats.norm.cdf(NORMAL) - stats.norm.cdf(-NORMAL) == pytest.approx(0.95, abs=1e-7)


def test_student_is_that_of_scipy() -> None:
    values = [51.0, 52.5, 50.0, 54.0]
    mean = sum(values) / 4
    low, high = stats.t.interval(0.95, 3, loc=mean, scale=stats.sem(values))
    close(student(values), mean, low, high)


def test_a_paired_difference_counts_only_what_differs() -> None:
    first = np.array([True] * 40 + [True] * 4 + [False] * 10 + [False] * 6)
    second = np.array([True] * 40 + [False] * 4 + [True] * 10 + [False] * 6)
    differences = second.astype(float) - first.astype(float)
    half = NORMAL * differences.std() / math.sqrt(60)
    mean = 6 / 60
    close(paired_difference(first, second), 100 * mean, 100 * (mean - half), 100 * (mean + half))
    back = paired_difference(second, first)
    close(back, -100 * mean, -100 * (mean + half), -100 * (mean - half))
    close(paired_difference(first, first), 0, 0, 0)
    everywhere = np.ones(3, dtype=bool)
    close(paired_difference(~everywhere, everywhere), 100, 100, 100)  # no spread, and no root of less than nothing


def test_calibration_equals_a_loop() -> None:
    random = np.random.default_rng(0)
    confidence = np.concatenate([random.random(200), [0.0, 0.25, 0.5, 1.0]])  # borders belong to the bin below
    right = random.random(204) < confidence**2
    found = calibration(confidence, right, bins=4)
    error = 0.0
    for place in range(4):
        low, high = place / 4, (place + 1) / 4
        inside = (confidence > low) & (confidence <= high) | ((confidence == 0) & (place == 0))
        assert found.counts[place] == inside.sum()
        assert found.confidence[place] == pytest.approx(confidence[inside].mean())
        assert found.accuracy[place] == pytest.approx(right[inside].mean())
        error += inside.sum() / 204 * abs(confidence[inside].mean() - right[inside].mean())
    assert found.error == pytest.approx(100 * error)


def test_calibration_with_empty_bins() -> None:
    found = calibration(np.array([0.95, 0.95, 0.05]), np.array([True, False, False]))
    assert len(found.counts) == 15
    assert (found.counts[0], found.counts[14], sum(found.counts)) == (1, 2, 3)
    assert (found.confidence[7], found.accuracy[7]) == (0, 0)
    assert found.error == pytest.approx(100 * (2 * 0.45 + 0.05) / 3)


def test_confusion_is_that_of_scikit_learn() -> None:
    labels, guesses = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 0, 2, 2])
    assert confusion(labels, guesses, 4).tolist() == confusion_matrix(labels, guesses, labels=range(4)).tolist()


def test_an_interval_in_words() -> None:
    assert Interval(91.24, 88.0, 93.66).percent() == "91.2 % (88.0 to 93.7)"
