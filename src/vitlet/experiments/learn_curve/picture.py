"""A learning curve as a picture: measured points, the fitted band, the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitlet.analysis.learning_curve import FARTHEST, CurveFit
from vitlet.experiments.learn_curve.record import CurveRecord
from vitlet.pictures import panels, save_figure


def draw_curve(record: CurveRecord, fit: CurveFit, target: float | None, picture: Path) -> None:
    """Accuracy against images on a logarithmic axis; right of the dashed line is extrapolated."""
    figure, (axis,) = panels(1, 7, 4.2)
    grid = np.geomspace(fit.sizes[0], FARTHEST * fit.sizes[-1], 80)
    band = fit.band(list(grid))
    axis.fill_between(grid, [each.low for each in band], [each.high for each in band], alpha=0.2, label="95 % interval")
    axis.plot(grid, [each.value for each in band], color="C0", label="fitted curve")
    points = record.points()
    axis.plot([each.images for each in points], [each.accuracy for each in points], "o", color="C0", markersize=4)
    axis.axvline(fit.sizes[-1], color="0.6", linestyle="--", linewidth=1)
    others = {"epochs": ("s", "twice the epochs"), "model": ("^", "next larger model")}
    for number, (kind, (marker, name)) in enumerate(others.items(), 1):
        found = [run for run in record.runs if run.kind == kind]
        if found:
            where = [run.images for run in found], [run.accuracy for run in found]
            axis.plot(*where, marker, color=f"C{number}", markersize=6, linestyle="", label=name)
    if target is not None:
        axis.axhline(target, color="C3", linestyle=":", label=f"target, {target:g} %")
    what = "validation" if record.split == "val" else "test"
    axis.set(xscale="log", xlabel="training images", ylabel=f"{what} accuracy, %", title="accuracy against images")
    ticks = [*fit.sizes, 2 * fit.sizes[-1], FARTHEST * fit.sizes[-1]]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend()
    save_figure(figure, picture)
