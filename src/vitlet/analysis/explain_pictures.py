"""Explanations as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitlet.analysis.explain import Explainer, Explanation
from vitlet.errors import VitletError, first_line
from vitlet.pictures import free_name, panels, printable, save_figure
from vitlet.pictures.pixels import LETTERS, show_map
from vitlet.tasks.task import Places


@dataclass(frozen=True)
class Pictures:
    """Picture files that were written, and a message for each picture that could not be drawn."""

    written: list[Path]
    left_out: list[str]


def explain_runs(runs: Sequence[Path], images: Sequence[Path], folder: Path, *, device: str = "auto") -> Pictures:
    """Draw explanations: one picture per run and image, and one of the attention distances of all runs."""
    if folder.exists() and not folder.is_dir():
        raise VitletError(f"{folder} is a file; the pictures need a folder.")
    explained = {
        run: [explainer.file(path) for path in images]
        for run, explainer in ((run, Explainer.load(run, device=device)) for run in runs)
    }
    written: list[Path] = []
    distances = folder / "distance.png"
    taken = {distances.resolve()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, (run, found) in enumerate(explained.items(), start=1):
            for path, explanation in zip(images, found, strict=True):
                prefix = f"{number}-{run.name}-" if len(runs) > 1 else ""
                written.append(free_name(folder / f"{prefix}{path.stem}.png", taken))
                draw_explanation(explanation, written[-1])
        attentive = {str(run): found for run, found in explained.items() if found[0].distances}
        if attentive:
            written.append(distances)
            draw_distances(attentive, written[-1])
    except OSError as problem:
        raise VitletError(f"cannot write pictures into {folder}: {first_line(problem)}.") from problem
    sentences = (f"{run}: {why}" for run, found in explained.items() for each in found for why in each.left_out)
    return Pictures(written, list(dict.fromkeys(sentences)))


def draw_explanation(explanation: Explanation, path: Path) -> None:
    """Draw the image, class activation map, rollout and token positions, and a row of attention heads per layer."""
    first = _first_row(explanation)
    heads = max((len(maps) for maps in explanation.received), default=0)
    rows, columns = len(explanation.received) + 1, max(heads + 1, len(first))
    figure, every = panels(rows * columns, 1.7, 1.8, columns=columns)
    axes = np.array(every).reshape(rows, columns)
    for axis in every:
        axis.axis("off")
    for axis, (title, values) in zip(axes[0], first, strict=False):
        show_map(axis, explanation.pixels, values, title)
        if title == "places":
            assert explanation.places is not None
            _draw_places(axis, explanation.pixels, explanation.places)
    for layer, maps in enumerate(explanation.received):
        title = f"layer {layer + 1}, {explanation.distances[layer]:.1f} patches"
        show_map(axes[layer + 1, 0], explanation.pixels, maps.mean(0), title)
        for head, single in enumerate(maps):
            show_map(axes[layer + 1, head + 1], explanation.pixels, single, f"head {head + 1}")
    save_figure(figure, path, dpi=110)


def _first_row(explanation: Explanation) -> list[tuple[str, Tensor | None]]:
    """Titles and overlays of the first row."""
    name, probability = explanation.guess or ("image", None)
    sure = f" {probability:.0%}" if probability else ""
    row: list[tuple[str, Tensor | None]] = [(printable(name, LETTERS) + sure, None)]
    if explanation.evidence is not None:
        row.append(("class map", explanation.evidence))
    if explanation.rollout is not None:
        row.append(("rollout", explanation.rollout))
    if explanation.places is not None:
        error = explanation.places.error[0].view(explanation.places.sides)
        row += [("places", None), (f"error {error.mean():.1f} (chance {explanation.places.chance:.1f})", error)]
    return row


def _draw_places(axis: Any, pixels: Any, places: Places) -> None:
    """True places as rings, predicted ones as dots at the end of a line, the token they are seen from as a star."""
    from matplotlib.patheffects import withStroke

    scale = np.array(pixels.shape[:2]) / np.array(places.sides)  # pixels of a cell: rows, columns
    true, predicted = ((each[0].numpy() + 0.5) * scale for each in (places.true, places.predicted))
    edged = [withStroke(linewidth=1.8, foreground="black")]  # to be seen on white, too
    for start, end in zip(true, predicted, strict=True):
        axis.plot([start[1], end[1]], [start[0], end[0]], color="white", linewidth=0.8, path_effects=edged)
    axis.scatter(true[:, 1], true[:, 0], s=7, facecolors="none", edgecolors="white", linewidths=0.7, path_effects=edged)
    axis.scatter(predicted[:, 1], predicted[:, 0], s=6, color="#ff8c1a")
    if places.origin is not None:
        axis.scatter(*true[places.origin, ::-1], s=40, marker="*", color="#35d0ff", zorder=3)


def draw_distances(explained: Mapping[str, Sequence[Explanation]], path: Path) -> None:
    """Mean attention distance by layer, a line for each run, beside that of even attention."""
    figure, (axis,) = panels(1, 6, 3.8)
    for run, found in explained.items():
        means = np.mean([each.distances for each in found], axis=0)
        name = printable(run, LETTERS).replace("$", r"\$")  # no mathematics
        axis.plot(range(1, len(means) + 1), means, marker="o", label=name)
    first = next(iter(explained.values()))[0]
    axis.plot(range(1, len(first.uniform) + 1), first.uniform, color="0.5", linestyle=":", label="spread evenly")
    highest = max(first.uniform + [value for found in explained.values() for each in found for value in each.distances])
    layers = range(1, max(len(found[0].distances) for found in explained.values()) + 1)
    axis.set(xlabel="layer", ylabel="mean attention distance, patches", ylim=(0, 1.25 * highest), xticks=layers)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    save_figure(figure, path)
