"""Charts as inline SVG: colours come from the page's style, so they follow light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vitlet.analysis.report.rendering import render
from vitlet.statistics import Calibration

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 10, 30

CELL = 34
"""Side of a cell of the confusion matrix."""


@dataclass(frozen=True)
class Series:
    """A line: points in order, the number of its colour, dotted for levels to compare with."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dotted: bool = False

    def finite(self) -> list[tuple[float, float]]:
        """Without what cannot be drawn."""
        return [(x, y) for x, y in self.points if math.isfinite(x) and math.isfinite(y)]


def line_chart(title: str, series: Sequence[Series], *, x_label: str = "epoch", from_zero: bool = False) -> Markup:
    """Lines over a common axis, a legend below, and the values under the pointer."""
    drawn = [(each, points) for each in series if (points := each.finite())]
    if not drawn:
        return Markup("")
    xs = [x for _, points in drawn for x, _ in points]
    ys = [y for _, points in drawn for _, y in points]
    y_ticks = ticks(min([0.0, *ys] if from_zero else ys), max(ys))
    low, high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1

    def across(x: float) -> float:
        return LEFT + (x - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (HEIGHT - TOP - BOTTOM)

    values = [{"name": each.name, "points": points} for each, points in drawn]
    return render(
        "line_chart.html",
        title=title,
        x_label=x_label,
        series=series,
        lines=[(each, [(across(x), down(y)) for x, y in points]) for each, points in drawn],
        x_ticks=[(across(x), short(x)) for x in ticks(low, high, whole=True) if low <= x <= high],
        y_ticks=[(down(y), short(y)) for y in y_ticks],
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        size=(WIDTH, HEIGHT),
        data=json.dumps({"low": low, "high": high, "label": x_label, "series": values}, separators=(",", ":")),
    )


def ticks(low: float, high: float, *, whole: bool = False, about: int = 5) -> list[float]:
    """Round numbers that enclose a range."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * index, 12) for index in range(first, max(last, first + 1) + 1)]


def short(value: float) -> str:
    """A number for an axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"


def reliability(found: Calibration) -> Markup:
    """Reliability diagram: accuracy by confidence against perfect calibration, with image counts below."""
    bins = zip(found.counts, found.confidence, found.accuracy, strict=True)
    bars = [(place, *values) for place, values in enumerate(bins) if values[0]]
    return render("reliability_chart.html", bars=bars, wide=250 / len(found.counts), most=max(found.counts))


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Markup:
    """A confusion matrix with numbers: rows are true classes, shaded by their share of the row."""
    left = 12 + 6.6 * min(18, max(map(len, names)))
    side = int(left + len(names) * CELL + 2)
    return render("matrix_chart.html", counts=counts, names=names, left=left, cell=CELL, side=side)
