"""Common functions for pictures: figures, file names, printable text. `pixels` draws on images.

Nothing here imports matplotlib, Pillow or NumPy before something is drawn: commands import this to say what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitlet.errors import VitletError

MARKED = 30
"""Points of a curve up to which each of them is marked."""


def panels(count: int, width: float, height: float, *, columns: int = 3) -> tuple[Any, list[Any]]:
    """A figure and ``count`` axes in it, each of this size in inches, at most ``columns`` of them side by side.

    No pyplot: it would change the backend of a notebook that calls `vitlet.train`.
    """
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    size = (width * columns, height * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[count:]:
        axis.axis("off")
    return figure, list(axes.flat[:count])


def save_figure(figure: Any, path: Path, *, dpi: int = 130) -> None:
    """Write a figure as PNG, whatever the file is called."""
    figure.savefig(path, dpi=dpi, format="png")


def plot_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, *, metrics: Mapping[str, str]) -> None:
    """Curves over epochs, one panel per metric, one line per run; written as a picture.

    Args:
        runs: the logged rows of each run by its name.
        path: path of the picture.
        metrics: title of each panel by the metric's key; a run that lacks a metric is left out of that panel.
    """
    figure, axes = panels(len(metrics), 5, 3.6, columns=len(metrics))
    for axis, (key, title) in zip(axes, metrics.items(), strict=True):
        for index, (name, rows) in enumerate(runs.items()):
            points = [(row["epoch"], row[key]) for row in rows if key in row]
            if points:
                marker = "o" if len(points) <= MARKED else None  # the line of one point cannot be seen
                axis.plot(*zip(*points, strict=True), label=name, color=f"C{index}", marker=marker, markersize=4)
                task, _, metric = key.rpartition("/")
                beside = metric.replace("error", "chance").replace("accuracy", "chance")
                chance = rows[0].get(f"{task}/{beside}") if beside != metric else None
                if chance is not None:
                    axis.axhline(chance, color="0.5", linestyle=":", label="chance (constant guess)")
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend()
    save_figure(figure, path)


def printable(text: str, most: int | None = None) -> str:
    """The text on one line: what would end a line, steer a terminal or turn the direction of writing is spelt out.

    Args:
        text: any, such as a class's name.
        most: letters; longer ones are cut.
    """
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return shown if most is None or len(shown) <= most else shown[: most - 1] + "…"


def spaced(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` indices, evenly spaced, the first included."""
    return [position * count // most for position in range(most)] if count > most else list(range(count))


def make_folder(folder: Path) -> None:
    """Create the folder of the pictures if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        why = "it is a file" if folder.is_file() else problem.strerror
        raise VitletError(f"{folder} cannot be a folder of pictures: {why}. Choose another --output.") from problem


def beside(images: Sequence[Path]) -> set[Path]:
    """Files that must not be overwritten by pictures: everything in the folders of the images."""
    return {file.resolve() for folder in {image.parent for image in images} for file in folder.iterdir()}


def free_name(path: Path, taken: set[Path]) -> Path:
    """This path, or a numbered one if it is taken, as by an image of the same name; taken from now on."""
    number, free = 1, path
    while free.resolve() in taken:
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    taken.add(free.resolve())
    return free
