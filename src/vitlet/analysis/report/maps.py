"""Pictures for the report: training images, attention and class activation maps, predicted token positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image, ImageOps

from vitlet.analysis.explain import Explanation
from vitlet.analysis.report.charts import Series, line_chart
from vitlet.analysis.report.predictions import Examined
from vitlet.analysis.report.rendering import Picture, picture
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.shards import ShardStream
from vitlet.errors import VitletError
from vitlet.pictures import spaced
from vitlet.pictures.pixels import as_pixels, overlay, thumbnail
from vitlet.tasks.task import Places

EXPLANATIONS = 4
"""Explained images that are shown, of each run."""

ZOOMED = 320
"""Longer side of explained images in pixels: they are shown smaller until somebody enlarges them."""

ROWS, COLUMNS, SIDE = 20, 8, 64
"""Of the mosaic: classes at most, images of each, pixels of an image."""


def data_sources(runs: Sequence[Examined]) -> list[dict[str, Any]]:
    """Counts and a mosaic, once for each source of data; those that are gone come last."""
    sources: dict[str, dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: run.dataset is None):
        config, dataset = run.record.config, run.dataset
        if config.data in sources:
            continue
        if dataset is None:
            sources[config.data] = {"name": config.data, "note": run.record.result.get("data", ""), "counts": None}
            continue
        counts = ", ".join(f"{len(images):,} {split}" for split, images in dataset.splits().items())
        classes = f" in {len(dataset.classes)} classes" if dataset.classes else ""
        found = {"name": config.data, "note": dataset.note, "counts": f"{counts} images{classes}"}
        sources[config.data] = found | {"classes": len(dataset.classes), "strips": _strips(dataset, config.in_chans)}
    return list(sources.values())


def _strips(dataset: Dataset, channels: int) -> list[dict[str, Any]] | None:
    """Some training images of each class; None of a stream."""
    if isinstance(dataset.train, ShardStream):
        return None
    labels = np.asarray(dataset.train.labels)
    strips = []
    for label in spaced(len(dataset.classes), ROWS) if dataset.classes else [0]:
        members = np.flatnonzero(labels == label).tolist()
        chosen = [members[place] for place in spaced(len(members), COLUMNS)]
        name = dataset.classes[label] if dataset.classes else "without labels"
        strips.append({"name": name, "count": len(members), "picture": _strip(dataset.train, chosen, channels)})
    return strips


def _strip(images: ImageSet, chosen: list[int], channels: int) -> Picture | None:
    """Square cut-outs in a row, as one picture; those that cannot be read are passed over."""
    tiles = []
    for index in chosen:
        try:
            whole = Image.fromarray(as_pixels(images.image(index, channels)))
        except VitletError:
            continue
        method = Image.Resampling.NEAREST if max(whole.size) <= SIDE // 2 else Image.Resampling.LANCZOS
        tiles.append(ImageOps.fit(whole, (SIDE, SIDE), method))
    if not tiles:
        return None
    step = SIDE + 4
    strip = Image.new("RGBA", (len(tiles) * step - 4, SIDE), (0, 0, 0, 0))
    for column, tile in enumerate(tiles):
        strip.paste(tile, (column * step, 0))
    return picture(strip, "training images of one class")


def looks(runs: Sequence[Examined]) -> list[dict[str, Any]]:
    """The explained images of each run, and what it lacks."""
    panels = []
    for run in runs:
        if run.explanations:
            step = max(1, len(run.explanations) // EXPLANATIONS)
            shown = list(zip(run.explanations, run.truths, strict=True))[::step][:EXPLANATIONS]
            rows = [_look(explanation, truth) for explanation, truth in shown]
            panels.append({"run": run, "rows": rows, "missing": run.explanations[0].left_out})
    return panels


def _look(explanation: Explanation, truth: str) -> dict[str, Any]:
    """Maps of an image: its class, class activation map, attention rollout, attention of the last layer."""
    seen = _seen(explanation.pixels, ZOOMED)
    name, probability = explanation.guess or ("", None)
    maps = {f"class activation map: {name}": explanation.evidence, "attention rollout": explanation.rollout}
    if explanation.received:
        maps["attention, last layer"] = explanation.received[-1].mean(0)
    figures = [(picture(overlay(seen, values), title), title) for title, values in maps.items() if values is not None]
    sure = "" if probability is None else f" {probability:.0%}"
    return {
        "picture": picture(seen, "the image that the model saw"),
        "guess": name,
        "sure": sure,
        "truth": truth,
        "figures": figures,
    }


def localization(runs: Sequence[Examined]) -> list[dict[str, Any]]:
    """Predicted and true token positions, and the error at each, for runs with a localization head."""
    panels = []
    for run in runs:
        placed = [(each.pixels, each.places) for each in run.explanations if each.places is not None]
        if placed:
            mean = np.mean([float(places.error.mean()) for _, places in placed])
            about = {"error": mean, "images": len(placed), "chance": placed[0][1].chance, "signed": placed[0][1].signed}
            panels.append({"run": run, "pairs": [_localized(*each) for each in placed[:EXPLANATIONS]], **about})
    return panels


def _localized(pixels: Any, places: Places) -> dict[str, Any]:
    """True and predicted token positions in pixels of the picture, and the errors."""
    seen, error = _seen(pixels, ZOOMED), places.error[0]
    scale = np.array([seen.height, seen.width]) / np.array(places.sides)
    true, predicted = (
        np.round((each[0].numpy() + 0.5) * scale, 1).tolist() for each in (places.true, places.predicted)
    )
    return {
        "picture": picture(seen, "the image that the model saw"),
        "tokens": list(zip(true, predicted, strict=True)),
        "origin": None if places.origin is None else true[places.origin],
        "radius": f"{min(0.015 * ZOOMED, 0.14 * scale.min()):.1f}",
        "errors": picture(overlay(seen, error.view(places.sides)), "error at each token"),
        "caption": f"error {float(error.mean()):.2f} cells, largest {float(error.max()):.2f}",
    }


def _seen(pixels: Any, side: int) -> Image.Image:
    """The model's input as a picture, ``(height, width, 3)`` in 0..1."""
    return thumbnail(Image.fromarray((np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)), side)


def distances(runs: Sequence[Examined]) -> Markup | None:
    """Mean attention distance by layer."""
    lines = []
    uniform: list[float] = []
    for run in runs:
        reached = [each.distances for each in run.explanations if each.distances]
        if reached:
            means = np.mean(reached, axis=0).tolist()
            lines.append(Series(run.name, list(enumerate(means, start=1)), run.colour))
            uniform = uniform or run.explanations[0].uniform
    if not lines:
        return None
    even = Series("uniform attention", list(enumerate(uniform, start=1)), 7, dotted=True)
    return line_chart("mean attention distance, patches", [*lines, even], x_label="layer", from_zero=True)
