"""Learning curves with known truth: intervals cover it, medians are near it, and nothing is extrapolated too far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vitlet.analysis.learning_curve import CURVE_FAMILIES, CurveFit, CurvePoint, fit_family
from vitlet.errors import VitletError

Truth = Callable[[float], float]
SIZES = (125, 250, 500, 1000)


def measured(truth: Truth, random: np.random.Generator, *, noise: float = 0.5, seeds: int = 3) -> list[CurvePoint]:
    """Runs whose accuracy is one less the true error, with the noise of seeds in points."""
    return [
        CurvePoint(size, seed, 100 * (1 - truth(size)) + noise * random.normal())
        for size in SIZES
        for seed in range(seeds)
    ]


def truths(random: np.random.Generator) -> Truth:
    """A power law, with or without a floor, a line over logarithms, an S-shape in logarithms, or an exponential."""
    error, kind = random.uniform(0.08, 0.6), random.integers(5)
    floor, rate = random.uniform(0, 0.6) * error, random.uniform(0.2, 0.8)
    if kind == 0:
        return lambda n: error * (n / 1000) ** -rate
    if kind == 1:
        return lambda n: floor + (error - floor) * (n / 1000) ** -rate
    if kind == 2:
        return lambda n: error - 0.2 * error * np.log2(n / 1000)
    if kind == 3:
        middle = 1000 * ((error - floor) / (0.9 - error)) ** (1 / rate)
        return lambda n: floor + (0.9 - floor) / (1 + (n / middle) ** rate)
    return lambda n: floor + (error - floor) * np.exp(-rate * (n / 1000 - 1))


def bounded(truth: Truth, images: float) -> float:
    return float(np.clip(truth(images), 0.0, 0.98))


def test_each_family_is_found_again() -> None:
    shares = np.array(SIZES) / SIZES[-1]
    for family in CURVE_FAMILIES.values():
        place, floor = len(family.grid[0]) // 2, 0.1 if family.floor else 0.0
        errors = floor + 0.2 * family.at(shares, np.array([place]))
        found = fit_family(family, shares, errors, np.ones(len(shares)))
        assert [float(each[0]) for each in found] == pytest.approx([floor, 0.2, place])


def test_floors_and_slopes_are_never_negative() -> None:
    rising = np.array([[0.2, 0.3, 0.4, 0.5]])
    for family in CURVE_FAMILIES.values():
        floor, scale, _ = fit_family(family, np.array(SIZES) / 1000, rising, np.ones(4))
        assert scale[0] >= 0 and (floor[0] >= 0 or not family.positive)


def test_intervals_cover_the_truth_and_medians_are_near() -> None:
    random = np.random.default_rng(0)
    covered, misses = [], []
    for _ in range(50):
        truth = truths(random)

        def clipped(n: float, truth: Truth = truth) -> float:
            return bounded(truth, n)

        fit = CurveFit(measured(clipped, random), draws=150)
        for factor in (2, 4):
            found, true = fit.accuracy(factor * 1000), 100 * (1 - clipped(factor * 1000)) + 0.5 * random.normal()
            covered.append(found.low <= true <= found.high)
            misses.append(abs(found.value - true))
    assert np.mean(covered) >= 0.92
    assert np.median(misses) <= 2.0


def test_more_noise_makes_wider_intervals() -> None:
    random = np.random.default_rng(1)

    def truth(n: float) -> float:
        return 0.3 * (n / 1000) ** -0.4

    widths = []
    for noise in (0.2, 3.0):
        found = CurveFit(measured(truth, random, noise=noise)).accuracy(2000)
        widths.append(found.high - found.low)
    assert widths[1] > 2 * widths[0]


def test_images_for_a_target_are_counted() -> None:
    def truth(n: float) -> float:
        return 0.2 * (n / 1000) ** -0.5

    fit = CurveFit(measured(truth, np.random.default_rng(2), noise=0.1))
    needed = fit.images_for(85.0)  # 0.15 = 0.2 * x ** -0.5 at x = 1.78
    assert needed.value is not None and 1500 < needed.value < 2200
    assert needed.low is not None and needed.low <= 1778 and (needed.high is None or needed.high >= 1778)
    reached = fit.images_for(75.0)
    assert reached.value is not None and reached.value <= 1000
    beyond = fit.images_for(99.9)
    assert beyond.value is None and beyond.high is None


def test_a_family_counts_by_its_prediction_of_the_largest_size() -> None:
    exact = [CurvePoint(size, seed, 100 * (1 - 0.3 * (size / 1000) ** -0.5)) for size in SIZES for seed in (0, 1)]
    weights = CurveFit(exact).weights
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["power law"] > 5 * weights["logarithm"]


def test_more_images_do_not_harm_and_draws_are_repeatable() -> None:
    points = measured(lambda n: 0.5, np.random.default_rng(3), noise=1.0)
    fit, again = CurveFit(points), CurveFit(points)
    assert fit.gain(2000).low >= 0
    assert fit.accuracy(4000) == again.accuracy(4000)


def test_what_cannot_be_fitted_is_refused() -> None:
    points = measured(lambda n: 0.5, np.random.default_rng(4))
    with pytest.raises(VitletError, match=r"more than 4 times the 1,000.*rounds"):
        CurveFit(points).accuracy(4001)
    with pytest.raises(VitletError, match="needs 4 sizes or more, found 3"):
        CurveFit([each for each in points if each.images < 1000])
