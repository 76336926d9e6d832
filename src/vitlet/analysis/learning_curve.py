"""Accuracy as a function of the number of training images: fitted on nested subsets, extrapolated with an interval.

Five families of curves of the error are fitted (a power law without and with a floor, an exponential with a floor, a
logarithm, a sigmoid of the logarithm); each counts by how well it predicts the largest size from the smaller ones. A
single one cannot be trusted: plain power laws overestimate what few images need (Jain et al., CVPR 2023), and which
family fits is not known before (Mahmood et al., CVPR 2022). The interval is that of many draws. Each draw moves the
measured means by the noise of the seeds, fits and weighs all families again, takes one of them by its weight, and lets
it drift from the curve with every doubling of the images by about as much as the prediction of the largest size was
off.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlet.errors import VitletError
from vitlet.statistics import Interval

FARTHEST = 4
"""Times the measured images up to which a curve is extrapolated; beyond, intervals say nothing useful."""

FEWEST_SIZES = 4
DRAWS = 1000

OWN_NOISE = 0.005
"""Standard deviation of an accuracy (as a share) that is assumed beside what the seeds show: there are few of them."""

DRIFT = 0.03
"""Share of the error by which an extrapolation is assumed to be off with each doubling, before one was observed."""

TRUST = 3.0
"""How many observed misses that assumption counts for."""

MOST_DRIFT = 0.3

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """Curves ``error(n) = floor + scale * shape(n / N)``, of which scale and floor are found by least squares.

    Attributes:
        shape: a function of the images as a share of the most that were measured, and of further parameters.
        grid: values of these parameters that are tried, an array of equal length for each.
        floor: whether there is a floor; it is 0 or more where ``positive``.
        positive: as above.
    """

    shape: Callable[..., _Array]
    grid: tuple[_Array, ...]
    floor: bool = True
    positive: bool = True

    def at(self, shares: _Array, places: Any) -> _Array:
        """Shapes ``(places, shares)`` with the parameters at these places of the grid."""
        return self.shape(shares[None], *(each[places][:, None] for each in self.grid))


_MIDDLES, _SLOPES = (each.reshape(-1) for each in np.meshgrid(np.geomspace(0.02, 50, 24), np.geomspace(0.2, 2, 16)))

CURVE_FAMILIES: Mapping[str, Family] = {
    "power law": Family(lambda n, rate: n**-rate, (np.geomspace(0.02, 2, 60),), floor=False),
    "power law with a floor": Family(lambda n, rate: n**-rate, (np.geomspace(0.05, 2, 60),)),
    "exponential": Family(lambda n, rate: np.exp(-rate * n), (np.geomspace(0.05, 20, 60),)),
    "logarithm": Family(lambda n, rate: -np.log(n) * rate, (np.ones(1),), positive=False),
    "sigmoid": Family(lambda n, middle, slope: 1 / (1 + (n / middle) ** slope), (_MIDDLES, _SLOPES), floor=False),
}
"""By name. The logarithm falls forever, so an error that it predicts is cut at 0 as all are. The sigmoid is that of
log(n): with many classes and few images of each, accuracy rises slowly first, which no other family follows."""


@dataclass(frozen=True)
class CurvePoint:
    """One measured run: training images, seed, accuracy in percent."""

    images: int
    seed: int
    accuracy: float


@dataclass(frozen=True)
class ImagesNeeded:
    """Training images for a target, with a 95 % interval; None is more than the curve is extrapolated to."""

    target: float
    value: int | None
    low: int | None
    high: int | None


class CurveFit:
    """Curve families fitted to measured points, and random draws from their uncertainty.

    Args:
        points: runs on at least four sizes.
        draws: from which intervals are taken.
        seed: of the draws.

    Attributes:
        sizes: numbers of images, smallest first.
        means: mean accuracies in percent.
        noise: standard deviation between seeds in points.
        weights: of the families, by name; their sum is 1.
        missed: points by which the weighted families miss the largest size when it is left out.
    """

    def __init__(self, points: Sequence[CurvePoint], *, draws: int = DRAWS, seed: int = 0) -> None:
        found: dict[int, list[float]] = defaultdict(list)
        for point in points:
            found[point.images].append(1 - point.accuracy / 100)
        if len(found) < FEWEST_SIZES:
            raise VitletError(f"a learning curve needs {FEWEST_SIZES} sizes or more, found {len(found)}.")
        self.sizes = tuple(sorted(found))
        counts = np.array([len(found[size]) for size in self.sizes])
        errors = np.array([np.mean(found[size]) for size in self.sizes])
        self.means = tuple(float(each) for each in 100 * (1 - errors))
        spread = sum(float(((np.array(each) - np.mean(each)) ** 2).sum()) for each in found.values())
        freedom = int((counts - 1).sum())
        observed = spread / freedom if freedom else 0.0
        self.noise = 100 * math.sqrt(observed)
        self._shares = np.array(self.sizes) / self.sizes[-1]
        # noise is known by few runs: it is drawn as well, with one more degree of freedom at the assumed noise
        random = np.random.default_rng(seed)
        variances = (spread + OWN_NOISE**2) / random.chisquare(freedom + 1, draws) if freedom else np.full(
            draws, (2 * OWN_NOISE) ** 2
        )  # fmt: skip
        variances = np.minimum(variances, 9 * max(observed, OWN_NOISE**2))
        # a curve of few parameters need not be right everywhere: what lies far below the largest size counts less
        away = DRIFT * errors * np.log2(1 / self._shares)
        self._precision = 1 / (max(observed, OWN_NOISE**2) / counts + away**2)
        moved = errors + random.normal(size=(draws, len(errors))) * np.sqrt(variances[:, None] / counts)
        self.weights, self.missed, _ = self._weigh(errors[None], np.array([observed]) / counts[-1])
        self._draw(moved, variances, counts[-1], random)

    def _weigh(self, errors: _Array, variances: _Array) -> tuple[dict[str, float], float, tuple[_Array, _Array]]:
        """Weights by how well each family predicts the largest size, of many rows of errors at once.

        Returns:
            the mean weights by name, the miss of the first row in points, and of each row the weights
            ``(rows, families)`` and the miss as a share of the error.
        """
        shares, last = self._shares, self._shares[-1:]
        fits = [fit_family(each, shares[:-1], errors[:, :-1], self._precision[:-1]) for each in CURVE_FAMILIES.values()]
        predicted = [_curve(each, *fit, last)[:, 0] for each, fit in zip(CURVE_FAMILIES.values(), fits, strict=True)]
        misses = np.stack(predicted, axis=1) - errors[:, -1:]
        closeness = 1 / (misses**2 + variances[:, None] + OWN_NOISE**2)
        weights = closeness / closeness.sum(1, keepdims=True)
        mean = {name: float(each) for name, each in zip(CURVE_FAMILIES, weights.mean(0), strict=True)}
        missed = (weights * misses).sum(1)
        return mean, 100 * float(missed[0]), (weights, missed / np.maximum(errors[:, -1], OWN_NOISE))

    def _draw(self, moved: _Array, variances: _Array, runs: int, random: np.random.Generator) -> None:
        """A family for each row, its parameters, its drift per doubling, and the noise of a run."""
        _, _, (weights, missed) = self._weigh(moved, variances / runs)
        observed = np.abs(missed) / max(math.log2(1 / self._shares[-2]), 0.5)
        drift = np.minimum(np.sqrt((TRUST * DRIFT**2 + observed**2) / (TRUST + 1)), MOST_DRIFT)
        self._drift = random.normal(size=len(moved)) * drift
        self._run_noise = random.normal(size=len(moved)) * np.sqrt(variances)
        places = (random.random((len(moved), 1)) > weights.cumsum(1)).sum(1)
        self._chosen = np.minimum(places, len(CURVE_FAMILIES) - 1)
        self._fits = [fit_family(family, self._shares, moved, self._precision) for family in CURVE_FAMILIES.values()]

    def errors(self, images: Sequence[float]) -> _Array:
        """Errors as shares ``(draws, images)`` of each draw's curve, without the noise of a run."""
        largest = self.sizes[-1]
        if max(images) > FARTHEST * largest * 1.0001:
            raise VitletError(
                f"{max(images):,.0f} images are more than {FARTHEST} times the {largest:,} that were measured: no curve"
                " reaches so far. Collect in rounds, and measure again."
            )
        shares = np.asarray(images, np.float64) / largest
        every = np.stack(
            [_curve(family, *fit, shares) for family, fit in zip(CURVE_FAMILIES.values(), self._fits, strict=True)]
        )
        own = every[self._chosen, np.arange(every.shape[1])]
        drift = self._drift[:, None] * np.log2(np.maximum(shares, 1.0))
        at_most = np.where(shares > 1, self._at_largest()[:, None], 1.0)  # more images do not harm
        found: _Array = np.clip(own * np.exp(drift), 0.0, at_most)
        return found

    def _at_largest(self) -> _Array:
        """The error of each draw's curve at the most images that were measured."""
        fits = zip(CURVE_FAMILIES.values(), self._fits, strict=True)
        every = np.stack([_curve(family, *fit, np.ones(1))[:, 0] for family, fit in fits])
        found: _Array = every[self._chosen, np.arange(every.shape[1])]
        return found

    def accuracy(self, images: float) -> Interval:
        """Predicted accuracy in percent of one run on this number of images, with its 95 % interval."""
        return _interval(100 * np.clip(1 - self.errors([images])[:, 0] + self._run_noise, 0.0, 1.0))

    def gain(self, images: float) -> Interval:
        """Predicted gain in points of this number of images over the largest measured number."""
        errors = self.errors([self.sizes[-1], images])
        return _interval(100 * (errors[:, 0] - errors[:, 1]))

    def band(self, images: Sequence[float]) -> list[Interval]:
        """Accuracy of the curve itself at several numbers of images."""
        return [_interval(100 * (1 - errors)) for errors in self.errors(images).T]

    def images_for(self, target: float) -> ImagesNeeded:
        """Images for an accuracy in percent."""
        grid = np.geomspace(self.sizes[0], FARTHEST * self.sizes[-1], 400)
        reached = 100 * (1 - np.minimum.accumulate(self.errors(list(grid)), axis=1)) >= target
        first = np.where(reached.any(1), grid[reached.argmax(1)], np.inf)
        low, value, high = (_whole(each) for each in np.quantile(first, [0.025, 0.5, 0.975], method="inverted_cdf"))
        return ImagesNeeded(target, value, low, high)


def fit_family(family: Family, shares: _Array, errors: _Array, precision: _Array) -> tuple[_Array, _Array, Any]:
    """Floor, scale and place in the grid of the least weighted squares, for each row of errors ``(rows, sizes)``.

    For given parameters the curve is linear in floor and scale, so the whole grid is solved at once: no start values,
    nothing that does not converge.
    """
    shapes = family.at(shares, np.arange(len(family.grid[0])))  # (grid, sizes)
    weight = precision / precision.sum()
    mean_shape, mean_error = (shapes * weight).sum(1), (errors * weight).sum(1)
    without = np.maximum((errors @ (shapes * weight).T) / ((shapes**2) * weight).sum(1), 0.0)  # floor 0
    floor, scale = np.zeros_like(without), without
    if family.floor:
        centred = shapes - mean_shape[:, None]
        slope = np.maximum((errors @ (centred * weight).T) / np.maximum((centred**2 * weight).sum(1), 1e-12), 0.0)
        base = mean_error[:, None] - slope * mean_shape
        valid = base >= 0 if family.positive else np.ones_like(base, dtype=bool)
        floor, scale = np.where(valid, base, 0.0), np.where(valid, slope, without)
    fitted = floor[..., None] + scale[..., None] * shapes  # (rows, grid, sizes)
    best = (((fitted - errors[:, None]) ** 2) * weight).sum(-1).argmin(1)
    rows = np.arange(len(errors))
    return floor[rows, best], scale[rows, best], best


def _curve(family: Family, floor: _Array, scale: _Array, places: Any, shares: _Array) -> _Array:
    """Errors ``(rows, sizes)`` between 0 and 1."""
    return np.clip(floor[:, None] + scale[:, None] * family.at(shares, places), 0.0, 1.0)


def _interval(values: _Array) -> Interval:
    low, middle, high = np.quantile(values, [0.025, 0.5, 0.975])
    return Interval(float(middle), float(low), float(high))


def _whole(images: float) -> int | None:
    return None if math.isinf(images) else math.ceil(images)
