"""Drawing, in one place: how matplotlib is set up, curves, and what several pictures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into files; it takes a second to import, so it is imported here and when needed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def plot_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, *, metrics: Mapping[str, str]) -> None:
    """Curves over epochs, one panel per metric, one line per run; written as a picture.

    Args:
        runs: the logged rows of each run by its name.
        path: of the picture.
        metrics: title of each panel by the metric's key; a run that lacks a metric is left out of that panel.
    """
    plt = pyplot()
    figure, axes = plt.subplots(1, len(metrics), figsize=(5 * len(metrics), 3.6), layout="constrained", squeeze=False)
    for axis, (key, title) in zip(axes[0], metrics.items(), strict=True):
        for index, (name, rows) in enumerate(runs.items()):
            points = [(row["epoch"], row[key]) for row in rows if key in row]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, color=f"C{index}")
                task, _, metric = key.rpartition("/")
                beside = metric.replace("error", "chance").replace("accuracy", "chance")
                chance = rows[0].get(f"{task}/{beside}") if beside != metric else None
                if chance is not None:
                    axis.axhline(chance, color="0.5", linestyle=":", label="chance (constant guess)")
        axis.set(title=title, xlabel="epoch")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)
