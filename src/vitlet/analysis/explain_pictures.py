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
from vitlet.tasks.task import Places


@dataclass(frozen=True)
class Pictures:
    """The files that were written, and a sentence on each thing that could not be drawn."""

    written: list[Path]
    left_out: list[str]


def explain_runs(runs: Sequence[Path], images: Sequence[Path], folder: Path, *, device: str = "auto") -> Pictures:
    """Pictures of what runs look at: one per run and image, and one of the attention distances of all runs."""
    if folder.exists() and not folder.is_dir():
        raise VitletError(f"{folder} is a file; the pictures need a folder.")
    explained = {
        run: [explainer.file(path) for path in images]
        for run, explainer in ((run, Explainer.load(run, device=device)) for run in runs)
    }
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, (run, found) in enumerate(explained.items(), start=1):
            for path, explanation in zip(images, found, strict=True):
                prefix = f"{number}-{run.name}-" if len(runs) > 1 else ""
                written.append(free_name(folder / f"{prefix}{path.stem}.png", written))
                draw_explanation(explanation, written[-1])
        attentive = {str(run): found for run, found in explained.items() if found[0].distances}
        if attentive:
            written.append(folder / "distance.png")
            draw_distances(attentive, written[-1])
    except OSError as problem:
        raise VitletError(f"cannot write pictures into {folder}: {first_line(problem)}.") from problem
    sentences = (f"{run}: {why}" for run, found in explained.items() for each in found for why in each.left_out)
    return Pictures(written, list(dict.fromkeys(sentences)))


def free_name(path: Path, taken: Sequence[Path]) -> Path:
    """This name, or a numbered one if another image of the same name has it."""
    number, free = 2, path
    while free in taken or free.name == "distance.png":
        free, number = path.with_name(f"{path.stem}-{number}.png"), number + 1
    return free


def draw_explanation(explanation: Explanation, path: Path) -> None:
    """The image; evidence for its class, rollout and places of tokens where there are; a row of heads per layer."""
    plt = _pyplot()
    first = _first_row(explanation)
    heads = max((len(maps) for maps in explanation.received), default=0)
    rows, columns = len(explanation.received) + 1, max(heads + 1, len(first))
    figure, axes = plt.subplots(rows, columns, figsize=(1.7 * columns, 1.8 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, (title, values) in zip(axes[0], first, strict=False):
        _overlay(axis, explanation.pixels, values, title)
        if title == "places":
            assert explanation.places is not None
            _draw_places(axis, explanation.pixels, explanation.places)
    for layer, maps in enumerate(explanation.received):
        title = f"layer {layer + 1}, {explanation.distances[layer]:.1f} patches"
        _overlay(axes[layer + 1, 0], explanation.pixels, maps.mean(0), title)
        for head, single in enumerate(maps):
            _overlay(axes[layer + 1, head + 1], explanation.pixels, single, f"head {head + 1}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _first_row(explanation: Explanation) -> list[tuple[str, Tensor | None]]:
    """Titles and overlays of the first row."""
    name, probability = explanation.guess or ("image", None)
    row: list[tuple[str, Tensor | None]] = [(plain(name) + (f" {probability:.0%}" if probability else ""), None)]
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
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for run, found in explained.items():
        axis.plot(
            range(1, len(found[0].distances) + 1),
            np.mean([each.distances for each in found], axis=0),
            marker="o",
            label=plain(run),
        )
    first = next(iter(explained.values()))[0]
    axis.plot(range(1, len(first.uniform) + 1), first.uniform, color="0.5", linestyle=":", label="spread evenly")
    highest = max(first.uniform + [value for found in explained.values() for each in found for value in each.distances])
    layers = range(1, max(len(found[0].distances) for found in explained.values()) + 1)
    axis.set(xlabel="layer", ylabel="mean attention distance, patches", ylim=(0, 1.25 * highest), xticks=layers)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _overlay(axis: Any, pixels: Any, values: Tensor | None, title: str) -> None:
    height, width = pixels.shape[:2]
    axis.imshow(pixels, extent=(0, width, height, 0))
    if values is not None:
        axis.imshow(values.numpy(), cmap="inferno", alpha=0.65, extent=(0, width, height, 0), interpolation="nearest")
    axis.set(xlim=(0, width), ylim=(height, 0))
    axis.set_title(title, fontsize=8)


def plain(text: str) -> str:
    """Names as they are: no mathematics, no line breaks."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text).replace("$", r"\$")
    return shown if len(shown) <= 40 else shown[:39] + "…"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
