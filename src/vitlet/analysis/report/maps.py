"""Pictures: the data itself, what networks look at, and where their heads put tokens."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageOps
from torch import Tensor

from vitlet.analysis.explain import Explanation, displayable
from vitlet.analysis.report.charts import Series, line_chart
from vitlet.analysis.report.markup import Markup, data_uri, escaped, image, joined, name_of, picture_of, tag
from vitlet.analysis.report.overview import Looked
from vitlet.analysis.report.predictions import spaced
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.shards import ShardStream
from vitlet.errors import VitletError
from vitlet.tasks.task import Places

UNSIGNED = " This head tells distances alone; the directions drawn are the true ones."

SHOWN = 4
"""Explained images that are shown, of each run."""

ROWS, COLUMNS, SIDE = 20, 8, 64
"""Of the mosaic: classes at most, images of each, pixels of an image."""


def data_section(looked: Looked) -> Markup:
    """Counts and a mosaic, once for each source of data."""
    parts, seen = [], set()
    for record, found in looked:
        if found.dataset is None or record.config.data in seen:
            continue
        seen.add(record.config.data)
        dataset = found.dataset
        counts = ", ".join(f"{len(images):,} {split}" for split, images in dataset.splits().items())
        classes = f" in {len(dataset.classes)} classes" if dataset.classes else ""
        text = tag("p", name_of(record.config.data), f": {counts} images{classes}. ", name_of(dataset.note))
        parts += [text, _mosaic(dataset, record.config.in_chans)]
    for record, found in looked:
        if found.dataset is None and record.config.data not in seen:
            seen.add(record.config.data)
            note = record.result.get("data", "")
            parts.append(tag("p", name_of(record.config.data), ": not there any more, or changed. ", name_of(note)))
    return joined(parts)


def _mosaic(dataset: Dataset, channels: int) -> Markup:
    """A strip of training images for each class."""
    if isinstance(dataset.train, ShardStream):
        return tag("p", "A stream of shards has no mosaic.", class_="small")
    labels = np.asarray(dataset.train.labels)
    shown = spaced(len(dataset.classes), ROWS) if dataset.classes else [0]
    rows = []
    for label in shown:
        members = np.flatnonzero(labels == label).tolist()
        name = dataset.classes[label] if dataset.classes else "without labels"
        title = tag("div", name_of(name), tag("span", f"{len(members):,} images", class_="small"))
        chosen = [members[place] for place in spaced(len(members), COLUMNS)]
        rows.append(tag("div", title, _strip(dataset.train, chosen, channels), class_="strip"))
    left = len(dataset.classes) > len(shown)
    more = tag("p", f"{len(shown)} of {len(dataset.classes)} classes, evenly spaced.", class_="small") if left else ""
    return tag("div", *rows, more, class_="mosaic")


def _strip(images: ImageSet, chosen: list[int], channels: int) -> Markup:
    """Square cut-outs in a row, as one picture; those that cannot be read are passed over."""
    tiles = []
    for index in chosen:
        try:
            pixels = displayable(images.image(index, channels))
        except VitletError:
            continue
        whole = Image.fromarray((pixels * 255).round().astype(np.uint8))
        method = Image.Resampling.NEAREST if max(whole.size) <= SIDE // 2 else Image.Resampling.LANCZOS
        tiles.append(ImageOps.fit(whole, (SIDE, SIDE), method))
    if not tiles:
        return tag("p", "none of them can be read", class_="small")
    step = SIDE + 4
    strip = Image.new("RGBA", (len(tiles) * step - 4, SIDE), (0, 0, 0, 0))
    for column, tile in enumerate(tiles):
        strip.paste(tile, (column * step, 0))
    return image(data_uri(strip), "training images of one class", width=strip.width, height=SIDE)


def looks(looked: Looked) -> Markup:
    """The explained images of each run, and what it lacks."""
    panels = []
    for number, (record, found) in enumerate(looked):
        if not found.explanations:
            continue
        title = tag("h3", tag("i", class_=f"key s{number % 8}"), name_of(record.name)) if len(looked) > 1 else ""
        step = max(1, len(found.explanations) // SHOWN)
        shown = list(zip(found.explanations, found.truths, strict=True))[::step][:SHOWN]
        rows = [_row(explanation, truth) for explanation, truth in shown]
        missing = [tag("li", why) for why in found.explanations[0].left_out]
        note = tag("ul", *missing, class_="notes") if missing else ""
        panels.append(tag("div", title, *rows, note, class_="panel"))
    return tag("div", *panels, class_="panels") if panels else Markup("")


def _row(explanation: Explanation, truth: str) -> Markup:
    """One image: itself, evidence, rollout, places, errors."""
    picture = picture_of(explanation.pixels, 160)
    name, probability = explanation.guess or ("image", None)
    sure = f" {probability:.0%}" if probability is not None else ""
    told = "" if not truth else "right" if truth == name else joined([escaped("is "), name_of(truth)])
    figures = [_figure(picture, joined([tag("b", name_of(name)), escaped(sure), tag("div", told)]))]
    if explanation.evidence is not None:
        figures.append(_figure(overlay(picture, explanation.evidence), "evidence for it"))
    if explanation.rollout is not None:
        figures.append(_figure(overlay(picture, explanation.rollout), "attention rollout"))
    if explanation.received:
        last = explanation.received[-1].mean(0)
        figures.append(_figure(overlay(picture, last), "attention, last layer"))
    return tag("div", *figures, class_="looks")


def localization(looked: Looked) -> Markup:
    """Of each run that has such a head: predicted against true places of tokens, and the error at each place."""
    panels = []
    for number, (record, found) in enumerate(looked):
        placed = [(each.pixels, each.places) for each in found.explanations if each.places is not None]
        if not placed:
            continue
        title = tag("h3", tag("i", class_=f"key s{number % 8}"), name_of(record.name)) if len(looked) > 1 else ""
        mean = np.mean([float(places.error.mean()) for _, places in placed])
        text = f"Mean error {mean:.2f} cells per axis on {len(placed)} images; a constant guess has"
        figures = [_localized(pixels, places) for pixels, places in placed[:SHOWN]]
        told = tag("p", f"{text} {placed[0][1].chance:.2f}.", "" if placed[0][1].signed else UNSIGNED, class_="small")
        panels.append(tag("div", title, told, tag("div", *figures, class_="looks places"), class_="panel"))
    if not panels:
        return Markup("")
    legend = (
        "Tokens are at ",
        tag("i", class_="dot"),
        ", the head of the task puts them at ",
        tag("i", class_="dot predicted"),
        ", as seen from the token at ",
        tag("i", class_="dot origin"),
        ". The brighter the map beside it, the larger the error there. Weights: of the newest checkpoint.",
    )
    return joined([tag("p", *legend, class_="small"), tag("div", *panels, class_="panels")])


def _localized(pixels: Any, places: Places) -> Markup:
    picture = picture_of(pixels, 240)
    error = places.error[0]
    drawn = tag("figure", _places(picture, places), tag("figcaption", "places of tokens"))
    caption = f"error {float(error.mean()):.2f} cells, largest {float(error.max()):.2f}"
    return tag("div", drawn, _figure(overlay(picture, error.view(places.sides)), caption), class_="duo")


def _figure(picture: Image.Image, caption: str) -> Markup:
    shown = image(data_uri(picture), "what the network looks at", width=picture.width, height=picture.height)
    return tag("figure", shown, tag("figcaption", caption))


def overlay(picture: Image.Image, values: Tensor) -> Image.Image:
    """A heat map over a picture, dark to bright from the smallest to the largest value."""
    array = values.numpy().astype(np.float64)
    spread = array.max() - array.min()
    array = (array - array.min()) / spread if spread > 0 else np.zeros_like(array)
    heat = Image.fromarray((matplotlib.colormaps["inferno"](array)[..., :3] * 255).astype(np.uint8))
    strength = Image.fromarray((255 * (0.3 + 0.5 * array)).astype(np.uint8)).resize(
        picture.size, Image.Resampling.BICUBIC
    )
    return Image.composite(heat.resize(picture.size, Image.Resampling.BICUBIC), picture, strength)


def _places(picture: Image.Image, places: Places) -> Markup:
    """Rings where tokens are, a line from each to the dot where the head puts it, a star where it looks from."""
    scale = np.array([picture.height, picture.width]) / np.array(places.sides)
    true, predicted = ((each[0].numpy() + 0.5) * scale for each in (places.true, places.predicted))
    radius = f"{min(3.5, 0.14 * scale.min()):.1f}"
    marks = []
    for (row, column), (at_row, at_column) in zip(_rounded(true), _rounded(predicted), strict=True):
        marks.append(tag("line", x1=column, y1=row, x2=at_column, y2=at_row))
        marks.append(tag("circle", cx=column, cy=row, r=radius, class_="true"))
        marks.append(tag("circle", cx=at_column, cy=at_row, r=radius, class_="predicted"))
    if places.origin is not None:
        row, column = _rounded(true)[places.origin]
        marks.append(tag("circle", cx=column, cy=row, r="5", class_="origin"))
    size = {"width": picture.width, "height": picture.height}
    back = tag("image", href=data_uri(picture), **size)
    label = "true and predicted places of tokens"
    return tag(
        "svg", back, *marks, viewBox=f"0 0 {picture.width} {picture.height}", role="img", aria_label=label, **size
    )


def _rounded(values: Any) -> list[list[float]]:
    rounded: list[list[float]] = np.round(values, 1).tolist()
    return rounded


def distances(looked: Looked) -> Markup:
    """Mean attention distance by layer."""
    lines = []
    uniform: list[float] = []
    for number, (record, found) in enumerate(looked):
        reached = [each.distances for each in found.explanations if each.distances]
        if reached:
            means = np.mean(reached, axis=0).tolist()
            lines.append(Series(record.name, [(layer, mean) for layer, mean in enumerate(means, start=1)], number))
            uniform = uniform or found.explanations[0].uniform
    if not lines:
        return Markup("")
    even = Series(
        "attention spread evenly", [(layer, far) for layer, far in enumerate(uniform, start=1)], 7, dotted=True
    )
    title = "mean attention distance, patches"
    return tag("div", line_chart(title, [*lines, even], x_label="layer", from_zero=True), class_="charts")
