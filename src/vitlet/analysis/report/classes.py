"""Where a classifier goes wrong: by class, by confusion, by confidence, and with pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from vitlet.analysis.explain import displayable
from vitlet.analysis.report.charts import matrix, reliability
from vitlet.analysis.report.markup import (
    Child,
    Markup,
    data_uri,
    image,
    joined,
    name_of,
    number_cell,
    picture_of,
    table,
    tag,
)
from vitlet.analysis.report.overview import SPLITS, Looked
from vitlet.analysis.report.predictions import Predictions
from vitlet.analysis.report.record import RunRecord
from vitlet.errors import VitletError
from vitlet.statistics import calibration, confusion, wilson

NUMBERED = 25
"""Classes up to which the confusion matrix has numbers and names; beyond, it is a picture."""

MISTAKES = 12


def confusions(looked: Looked) -> Markup:
    """The confusion matrix of each run, and the pairs that are confused most."""
    return _panels(looked, _confusion)


def _confusion(record: RunRecord, predictions: Predictions) -> Markup:
    names = record.classes
    counts = confusion(predictions.labels, predictions.guesses, predictions.probabilities.shape[1])
    present = counts[: len(names), : len(names)]
    drawn = matrix(present.tolist(), names) if len(names) <= NUMBERED else _shaded(present)
    pairs = [(int(present[row, column]), row, column) for row, column in zip(*np.nonzero(present), strict=True)]
    worst = sorted((pair for pair in pairs if pair[1] != pair[2]), reverse=True)[:8]
    rows: list[list[Child]] = [
        [name_of(names[row]), name_of(names[column]), number_cell(count, f"{count} of {present[row].sum()}")]
        for count, row, column in worst
    ]
    found = (
        table(["class", "taken for", "images"], rows, numbers=[2]) if rows else tag("p", "No mistakes.", class_="small")
    )
    note = tag("p", "Rows: true classes. Columns: guesses.", class_="small")
    return joined([note, tag("div", drawn, tag("div", tag("h4", "Confused most"), found), class_="pair")])


def _shaded(counts: Any) -> Markup:
    """Many classes: a picture whose opacity is the share of the row, in one colour right, in another wrong."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    pixels = np.zeros((*share.shape, 4), np.uint8)
    pixels[..., :3] = (214, 98, 43)
    pixels[np.arange(len(share)), np.arange(len(share)), :3] = (60, 120, 220)
    pixels[..., 3] = np.round(255 * np.where(counts > 0, 0.15 + 0.85 * share, 0))
    scale = max(1, 480 // len(share))
    side = scale * len(share)
    picture = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
    return tag(
        "div", image(data_uri(picture, lossless=True), "confusion matrix", width=side, height=side), class_="shaded"
    )


def by_class(looked: Looked) -> Markup:
    """Accuracy of every class: of one run with precision, of several side by side for the classes that they share."""
    able = [(record, found.predictions) for record, found in looked if found.predictions is not None]
    if not able:
        return Markup("")
    if len(able) == 1:
        return _class_table(*able[0])
    shared = [name for name in able[0][0].classes if all(name in record.classes for record, _ in able)]
    if not shared:
        return tag("p", "The runs have no class in common.", class_="note")
    names = [name_of(record.name) for record, _ in able]
    rows: list[list[Child]] = []
    for name in shared:
        values = [_recall(record, predictions, name) for record, predictions in able]
        cells = [number_cell(value, "–" if value is None else f"{value:.1f}") for value, _ in values]
        first, last = values[0][0], values[-1][0]
        gap = None if first is None or last is None else last - first
        images = number_cell(values[0][1], str(values[0][1]))
        rows.append([name_of(name), images, *cells, number_cell(gap, "–" if gap is None else f"{gap:+.1f}")])
    head: list[Child] = ["class", "images", *names, "last less first"]
    note = tag(
        "p",
        f"Share of each class's images that is classified right, %. Classes in common: {len(shared)}.",
        class_="small",
    )
    return joined([note, table(head, rows, numbers=range(1, len(head)))])


def _recall(record: RunRecord, predictions: Predictions, name: str) -> tuple[float | None, int]:
    own = predictions.labels == record.classes.index(name)
    count = int(own.sum())
    return (100 * float(predictions.right[own].mean()) if count else None), count


def _class_table(record: RunRecord, predictions: Predictions) -> Markup:
    names = record.classes
    counts = confusion(predictions.labels, predictions.guesses, predictions.probabilities.shape[1])
    rows: list[list[Child]] = []
    for label, name in enumerate(names):
        count, right, guessed = int(counts[label].sum()), int(counts[label, label]), int(counts[:, label].sum())
        accuracy = wilson(right, count) if count else None
        precision = 100 * right / guessed if guessed else None
        wrong = counts[label].copy()
        wrong[label] = 0
        mostly = name_of(names[int(wrong.argmax())]) if wrong.any() and wrong.argmax() < len(names) else "–"
        range_ = "–" if accuracy is None else f"{accuracy.low:.0f} to {accuracy.high:.0f}"
        rows.append(
            [
                name_of(name),
                number_cell(count, str(count)),
                number_cell(accuracy.value if accuracy else None, "–" if accuracy is None else f"{accuracy.value:.1f}"),
                number_cell(accuracy.low if accuracy else None, range_),
                number_cell(precision, "–" if precision is None else f"{precision:.1f}"),
                mostly,
            ]
        )
    head = ["class", "images", "right %", "95 % interval", "precision %", "mostly taken for"]
    return table(head, rows, numbers=range(1, 5))


def reliabilities(looked: Looked) -> Markup:
    """The reliability diagram of each run."""
    return _panels(looked, _reliability)


def _reliability(record: RunRecord, predictions: Predictions) -> Markup:
    found = calibration(predictions.confidence, predictions.right)
    sure, right = float(predictions.confidence.mean()), float(predictions.right.mean())
    lean = "too sure of itself" if sure > right else "less sure than it could be"
    text = (
        f"Expected calibration error {found.error:.1f} %. Mean confidence {sure:.1%}, right {right:.1%}: on the whole"
        f" {lean}. The top of each bar is the gap between the two: "
    )
    keys = tag("i", class_="key over"), "surer than right, ", tag("i", class_="key under"), "righter than sure."
    return tag("div", reliability(found), tag("p", text, *keys, class_="small"), class_="pair")


def mistakes(looked: Looked) -> Markup:
    """The mistakes that each run was surest of."""
    return _panels(looked, _mistakes)


def _mistakes(record: RunRecord, predictions: Predictions) -> Markup:
    wrong = np.flatnonzero(~predictions.right)
    ranked = wrong[np.argsort(-predictions.confidence[wrong], kind="stable")][:MISTAKES]
    figures = []
    for position in ranked:
        index, guess = predictions.indices[position], int(predictions.guesses[position])
        try:
            pixels = displayable(predictions.images.image(index, record.config.in_chans))
        except VitletError:
            continue
        picture = picture_of(pixels, 150)
        shown = image(
            data_uri(picture), "a picture taken for another class", width=picture.width, height=picture.height
        )
        guessed = record.classes[guess] if guess < len(record.classes) else f"unused {guess}"
        caption = tag(
            "figcaption",
            tag("b", name_of(guessed)),
            f" {predictions.confidence[position]:.0%}",
            tag("div", "is ", name_of(record.classes[predictions.labels[position]])),
            tag("span", name_of(predictions.images.key(index)), class_="path"),
        )
        figures.append(tag("figure", shown, caption))
    if not figures:
        return tag("p", "No mistakes.", class_="small")
    return tag("div", *figures, class_="mistakes")


def _panels(looked: Looked, draw: Any) -> Markup:
    """The same for every run that has predictions, side by side."""
    panels = []
    for number, (record, found) in enumerate(looked):
        if found.predictions is None:
            continue
        title = tag("h3", tag("i", class_=f"key s{number % 8}"), name_of(record.name)) if len(looked) > 1 else ""
        where = f"{len(found.predictions.labels):,} {SPLITS[found.predictions.split]}"
        panels.append(
            tag("div", title, tag("p", where, class_="small"), draw(record, found.predictions), class_="panel")
        )
    return tag("div", *panels, class_="panels") if panels else Markup("")
