"""Errors of a classifier for the report: by class, confusion matrix, reliability, and example images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitlet.analysis.report.charts import matrix, reliability
from vitlet.analysis.report.overview import SPLIT_NAMES
from vitlet.analysis.report.predictions import Examined, Predictions
from vitlet.analysis.report.record import RunRecord
from vitlet.analysis.report.rendering import Number, number, picture
from vitlet.errors import VitletError
from vitlet.pictures.pixels import as_pixels, thumbnail
from vitlet.statistics import calibration, confusion, wilson

NUMBERED = 25
"""Classes up to which the confusion matrix has numbers and names; beyond, it is a picture."""

MISTAKES = 12

Panels = list[dict[str, Any]]


def _panels(runs: Sequence[Examined], describe: Callable[[RunRecord, Predictions], dict[str, Any]]) -> Panels:
    """Confusion panels of all runs that have predictions, side by side."""
    return [
        {"run": run, "on": f"{len(run.predictions.labels):,} {SPLIT_NAMES[run.predictions.split]}"}
        | describe(run.record, run.predictions)
        for run in runs
        if run.predictions is not None
    ]


def confusions(runs: Sequence[Examined]) -> Panels:
    """The confusion matrix of each run, and the pairs that are confused most."""
    return _panels(runs, _confusion)


def _confusion(record: RunRecord, predictions: Predictions) -> dict[str, Any]:
    names = record.classes
    counts = confusion(predictions.labels, predictions.guesses, predictions.probabilities.shape[1])
    present = counts[: len(names), : len(names)]
    pairs = [(int(present[row, column]), row, column) for row, column in zip(*np.nonzero(present), strict=True)]
    worst = sorted((pair for pair in pairs if pair[1] != pair[2]), reverse=True)[:8]
    rows = [
        [names[row], names[column], Number(count, f"{count} of {present[row].sum()}")] for count, row, column in worst
    ]
    chart, shaded = (matrix(present.tolist(), names), None) if len(names) <= NUMBERED else (None, _shaded(present))
    return {"chart": chart, "shaded": shaded, "table": {"head": ["class", "taken for", "images"], "rows": rows}}


def _shaded(counts: Any) -> Any:
    """Confusion matrix of many classes as a picture: opacity is the share of the row, one colour correct, one wrong."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    pixels = np.zeros((*share.shape, 4), np.uint8)
    pixels[..., :3] = (214, 98, 43)
    pixels[np.arange(len(share)), np.arange(len(share)), :3] = (60, 120, 220)
    pixels[..., 3] = np.round(255 * np.where(counts > 0, 0.15 + 0.85 * share, 0))
    side = max(1, 480 // len(share)) * len(share)
    enlarged = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
    return picture(enlarged, "confusion matrix", lossless=True)


def by_class(runs: Sequence[Examined]) -> dict[str, Any] | None:
    """Accuracy of every class: of one run with precision, of several side by side for the classes that they share."""
    able = [(run, run.predictions) for run in runs if run.predictions is not None]
    if not able:
        return None
    if len(able) == 1:
        return {"several": False, "shared": 1, "table": _class_table(able[0][0].record, able[0][1])}
    shared = [name for name in able[0][0].record.classes if all(name in run.record.classes for run, _ in able)]
    rows = []
    for name in shared:
        values = [_recall(run.record, predictions, name) for run, predictions in able]
        first, last = values[0][0], values[-1][0]
        gap = None if first is None or last is None else last - first
        images = number(values[0][1], "d")
        rows.append([name, images, *(number(value) for value, _ in values), number(gap, "+.1f")])
    head = ["class", "images", *(run.name for run, _ in able), "last less first"]
    return {"several": True, "shared": len(shared), "table": {"head": head, "rows": rows}}


def _recall(record: RunRecord, predictions: Predictions, name: str) -> tuple[float | None, int]:
    own = predictions.labels == record.classes.index(name)
    count = int(own.sum())
    return (100 * float(predictions.right[own].mean()) if count else None), count


def _class_table(record: RunRecord, predictions: Predictions) -> dict[str, Any]:
    names = record.classes
    counts = confusion(predictions.labels, predictions.guesses, predictions.probabilities.shape[1])
    rows = []
    for label, name in enumerate(names):
        count, right, guessed = int(counts[label].sum()), int(counts[label, label]), int(counts[:, label].sum())
        wrong = counts[label].copy()
        wrong[label] = 0
        mostly = names[int(wrong.argmax())] if wrong.any() and wrong.argmax() < len(names) else "–"
        value, interval = number(None), number(None)
        if count:
            accuracy = wilson(right, count)
            value = number(accuracy.value)
            interval = Number(accuracy.low, f"{accuracy.low:.0f} to {accuracy.high:.0f}")
        precision = number(100 * right / guessed if guessed else None)
        rows.append([name, number(count, "d"), value, interval, precision, mostly])
    return {
        "head": ["class", "images", "accuracy (%)", "95 % interval", "precision (%)", "most often confused with"],
        "rows": rows,
    }


def reliabilities(runs: Sequence[Examined]) -> Panels:
    """The reliability diagram of each run."""
    return _panels(runs, _reliability)


def _reliability(record: RunRecord, predictions: Predictions) -> dict[str, Any]:
    found = calibration(predictions.confidence, predictions.right)
    sure, right = float(predictions.confidence.mean()), float(predictions.right.mean())
    return {"chart": reliability(found), "error": found.error, "sure": sure, "right": right}


def mistakes(runs: Sequence[Examined]) -> Panels:
    """The errors of each run with the highest confidence."""
    return _panels(runs, _mistakes)


def _mistakes(record: RunRecord, predictions: Predictions) -> dict[str, Any]:
    wrong = np.flatnonzero(~predictions.right)
    ranked = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:MISTAKES]
    figures = []
    for position in ranked:
        index, guess = predictions.indices[position], int(predictions.guesses[position])
        try:
            pixels = as_pixels(predictions.images.image(index, record.config.in_chans))
        except VitletError:
            continue
        figures.append(
            {
                "picture": picture(thumbnail(Image.fromarray(pixels), 150), "an image confused with another class"),
                "guess": record.classes[guess] if guess < len(record.classes) else f"unused {guess}",
                "sure": f"{predictions.confidence[position]:.0%}",
                "truth": record.classes[predictions.labels[position]],
                "file": predictions.images.key(index),
            }
        )
    return {"figures": figures}
