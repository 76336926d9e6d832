"""Charts as inline SVG: colours come from the page's style, so they follow light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitlet.analysis.report.markup import Markup, joined, name_of, tag
from vitlet.statistics import Calibration

WIDTH, HEIGHT = 400, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 10, 30


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
    drawn = [(each, each.finite()) for each in series]
    drawn = [(each, points) for each, points in drawn if points]
    if not drawn:
        return Markup("")
    xs = [x for _, points in drawn for x, _ in points]
    ys = [y for _, points in drawn for _, y in points]
    y_ticks = ticks(min([0.0, *ys] if from_zero else ys), max(ys))
    x_low, x_high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    frame = Frame(x_low, x_high, y_ticks[0], y_ticks[-1])
    marks = [_axes(frame, [x for x in ticks(x_low, x_high, whole=True) if x_low <= x <= x_high], y_ticks, x_label)]
    for each, points in drawn:
        places = [(frame.x(x), frame.y(y)) for x, y in points]
        kind = f"line s{each.colour % 8}" + (" dotted" if each.dotted else "")
        if len(places) > 1:
            marks.append(tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places), class_=kind))
        if len(places) <= 30 and not each.dotted:
            marks += [tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2.4", class_=kind) for x, y in places]
    marks.append(tag("line", class_="cursor", y1=str(TOP), y2=str(HEIGHT - BOTTOM), x1="-9", x2="-9"))
    values = [{"name": each.name, "points": points} for each, points in drawn]
    data = json.dumps({"low": x_low, "high": x_high, "label": x_label, "series": values}, separators=(",", ":"))
    picture = _svg(WIDTH, HEIGHT, marks, title, "plot", data)
    return tag("figure", tag("figcaption", title), picture, legend(series), class_="chart")


@dataclass(frozen=True)
class Frame:
    """From values to places in the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Across."""
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Down."""
        return HEIGHT - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)


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


def legend(series: Sequence[Series]) -> Markup:
    """The names of the lines."""
    items = [
        tag("li", tag("i", class_=f"key s{each.colour % 8}" + (" dotted" if each.dotted else "")), name_of(each.name))
        for each in series
    ]
    return tag("ul", *items, class_="legend") if len(items) > 1 else Markup("")


def _axes(frame: Frame, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str) -> Markup:
    marks = []
    for value in y_ticks:
        y = f"{frame.y(value):.1f}"
        marks.append(tag("line", x1=str(LEFT), x2=str(WIDTH - RIGHT), y1=y, y2=y, class_="gridline"))
        marks.append(_text(LEFT - 6, frame.y(value) + 4, short(value), "end"))
    for value in x_ticks:
        marks.append(_text(frame.x(value), HEIGHT - BOTTOM + 14, short(value), "middle"))
    marks.append(_text(WIDTH - RIGHT, HEIGHT - 3, x_label, "end"))
    return joined(marks)


def reliability(found: Calibration) -> Markup:
    """Share that is right by confidence, against the line on which confidence can be believed; images below."""
    side, base = 250, 10
    marks = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = base + side * (1 - value)
        marks.append(tag("line", x1="40", x2=str(40 + side), y1=f"{y}", y2=f"{y}", class_="gridline"))
        marks.append(_text(34, y + 4, f"{value:.0%}", "end"))
        marks.append(_text(40 + side * value, base + side + 62, f"{value:.0%}", "middle"))
    wide = side / len(found.counts)
    for index, (count, sure, good) in enumerate(zip(found.counts, found.confidence, found.accuracy, strict=True)):
        if not count:
            continue
        x, low, high = 40 + index * wide + 1, min(sure, good), max(sure, good)
        about = f"{count} images, confidence {sure:.1%}, right {good:.1%}"
        good_bar = _bar(x, base + side * (1 - low), wide - 2, side * low, "bar")
        kind = "over" if sure > good else "under"
        gap = _bar(x, base + side * (1 - high), wide - 2, side * (high - low), kind)
        share = count / max(found.counts)
        below = _bar(x, base + side + 46 - 38 * share, wide - 2, 38 * share, "count")
        marks.append(tag("g", tag("title", about), good_bar, gap, below))
    marks.append(tag("line", x1="40", y1=str(base + side), x2=str(40 + side), y2=str(base), class_="level"))
    marks.append(_text(40 + side / 2, base + side + 80, "confidence; below the axis: images", "middle"))
    return _svg(310, base + side + 86, marks, "reliability diagram", "square")


def _bar(x: float, y: float, width: float, height: float, kind: str, opacity: str | None = None) -> Markup:
    size = {"width": f"{width:.1f}", "height": f"{height:.1f}"}
    return tag("rect", x=f"{x:.1f}", y=f"{y:.1f}", class_=kind, fill_opacity=opacity, **size)


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Markup:
    """A confusion matrix with numbers: rows are true classes, shaded by their share of the row."""
    size, cell = len(names), 34
    left = 12 + 6.6 * min(18, max(map(len, names)))
    marks = []
    for row, name in enumerate(names):
        y, total = left + row * cell, max(1, sum(counts[row]))
        marks.append(_text(left - 6, y + cell / 2 + 4, _cut(name), "end", name))
        place = f"translate({left + row * cell + cell / 2 + 4:.1f},{left - 6:.1f}) rotate(-90)"
        marks.append(tag("text", tag("title", name), _cut(name), transform=place))
        for column, count in enumerate(counts[row]):
            share = count / total
            kind = ("right" if row == column else "wrong") + (" dark" if share > 0.55 else "")
            about = f"{name} taken for {names[column]}: {count} of {total}"
            opacity = f"{min(1.0, 0.06 + share) if count else 0.04:.2f}"
            box = _bar(left + column * cell, y, cell - 1, cell - 1, kind, opacity)
            shown = _text(left + column * cell + cell / 2, y + cell / 2 + 4, str(count), "middle") if count else None
            marks.append(tag("g", tag("title", about), box, shown, class_=kind))
    whole = int(left + size * cell + 2)
    picture = _svg(whole, whole, marks, "confusion matrix", "matrix")
    return tag("div", tag("div", picture, style=f"width:{whole}px"), class_="wide", tabindex="0")


def _cut(name: str) -> str:
    return name if len(name) <= 18 else name[:17] + "…"


def _text(x: float, y: float, text: str, anchor: str, title: str | None = None) -> Markup:
    about = None if title is None else tag("title", title)
    return tag("text", about, text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _svg(
    width: float, height: float, marks: Sequence[Markup], label: str, kind: str, data: str | None = None
) -> Markup:
    size = f"0 0 {width:g} {height:g}"
    return tag("svg", *marks, viewBox=size, role="img", aria_label=label, class_=kind, data_chart=data)
