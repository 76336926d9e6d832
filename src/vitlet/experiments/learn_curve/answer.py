"""What a learning curve says: more images, more epochs or a larger model, in numbers and in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vitlet.analysis.learning_curve import FARTHEST, CurveFit, ImagesNeeded
from vitlet.experiments.learn_curve.record import CurveRecord, RunKind
from vitlet.statistics import NORMAL, Interval, wilson

FEW_TESTED = 3.0
"""Points of the half width of an accuracy's interval from which on the number of held-out images is remarked."""

WORDS: Mapping[RunKind, str] = {
    "size": "twice the images",
    "epochs": "twice the epochs",
    "model": "the next larger model",
}


def answer_of(record: CurveRecord, fit: CurveFit, target: float | None) -> dict[str, Any]:
    """Plain values for the record, and the sentences."""
    largest = fit.sizes[-1]
    ahead = {factor: fit.accuracy(factor * largest) for factor in (2, FARTHEST)}
    gains: dict[RunKind, Interval] = {"size": fit.gain(2 * largest)}
    others: tuple[RunKind, ...] = ("epochs", "model")
    gains |= {kind: gain for kind in others if (gain := other_gain(record, fit, kind)) is not None}
    needed = None if target is None else fit.images_for(target)
    return {
        "sizes": list(fit.sizes),
        "means": list(fit.means),
        "noise": fit.noise,
        "families": fit.weights,
        "missed": fit.missed,
        "expected": {f"{factor}x": asdict(found) for factor, found in ahead.items()},
        "gains": {kind: asdict(gain) for kind, gain in gains.items()},
        "target": None if needed is None else asdict(needed),
        "lines": [*_expected(fit, ahead), *_target(fit, needed), *_worth(gains), *_notes(record, fit)],
    }


def other_gain(record: CurveRecord, fit: CurveFit, kind: RunKind) -> Interval | None:
    """Points that more epochs, or a larger model, brought on all images; its interval is that of the seeds' noise."""
    pairs = record.pairs(kind)
    if not pairs:
        return None
    gain = sum(other.accuracy - plain.accuracy for plain, other in pairs) / len(pairs)
    half = NORMAL * math.sqrt(2 / len(pairs)) * max(fit.noise, 0.5)
    return Interval(gain, gain - half, gain + half)


def _expected(fit: CurveFit, ahead: Mapping[int, Interval]) -> list[str]:
    largest = fit.sizes[-1]
    spread = f"standard deviation between seeds {fit.noise:.1f} points" if fit.noise else "one seed"
    lines = [f"measured with all {largest:,} images: {fit.means[-1]:.1f} % ({spread})"]
    for factor, found in ahead.items():
        lines.append(f"expected with {factor} times as many, {factor * largest:,}: {found.percent()}")
    return lines


def _target(fit: CurveFit, needed: ImagesNeeded | None) -> list[str]:
    if needed is None:
        return []
    largest, farthest = fit.sizes[-1], FARTHEST * fit.sizes[-1]
    beyond = f"more than {farthest:,}"
    if needed.low is None:
        best = fit.accuracy(farthest)
        return [
            f"target {needed.target:g} %: out of reach of {FARTHEST} times the images, where {best.percent()} is"
            " expected; no curve is extrapolated farther. Change the model, the labels or the target before you collect"
        ]
    low, high = f"{needed.low:,}", beyond if needed.high is None else f"{needed.high:,}"
    if needed.value is None:
        lines = [f"target {needed.target:g} %: probably {beyond} images; it may be reached from {low} on"]
    elif needed.value <= largest:
        return [f"target {needed.target:g} %: reached with about {needed.value:,} images ({low} to {high})"]
    else:
        lines = [f"target {needed.target:g} %: about {needed.value:,} images ({low} to {high})"]
    step = min(2 * largest, needed.value or 2 * largest)
    return [*lines, f"collect in rounds: up to {step:,} images first, then run this again on all of them"]


def _worth(gains: Mapping[RunKind, Interval]) -> list[str]:
    """The gains side by side, and which is the largest as far as the intervals can tell."""
    shown = [f"{WORDS[kind]} {gain.value:+.1f} ({gain.low:+.1f} to {gain.high:+.1f})" for kind, gain in gains.items()]
    lines = [f"worth in points: {'; '.join(shown)}"]
    best, *others = sorted(gains, key=lambda kind: -gains[kind].value)
    if gains[best].low <= 0:
        lines.append("no gain is shown beyond doubt: intervals include 0")
    elif all(gains[other].high < gains[best].low for other in others):
        lines.append(f"worth most: {WORDS[best]}")
    else:
        near = [WORDS[other] for other in others if gains[other].high >= gains[best].low]
        lines.append(f"worth most: {WORDS[best]}, but not told apart from {' and '.join(near)}")
    return lines


def _notes(record: CurveRecord, fit: CurveFit) -> list[str]:
    notes = []
    tested = min(run.tested for run in record.runs)
    found = wilson(fit.means[-1] / 100 * tested, tested)
    if (half := (found.high - found.low) / 2) > FEW_TESTED:
        what = "validation" if record.split == "val" else "test"
        notes.append(
            f"note: {tested} {what} images alone leave {half:.1f} points open at every size, which the intervals above"
            " do not count; hold out more (--val-fraction)"
        )
    if record.share < 1:
        notes.append(
            f"note: all runs had {record.share:.0%} of the epochs that `vitlet train` takes, to end in time; longer"
            " runs are more accurate, and the curve is that of short ones"
        )
    if record.left_out:
        notes.append(f"note: {len(record.left_out)} runs were left out because the time was up")
    return notes
