"""A search as a picture: accuracy against time, a line for each member."""

from __future__ import annotations

from pathlib import Path

from vitlet.analysis.report.search import accuracy_by_minute
from vitlet.pictures import panels, save_figure
from vitlet.training.search_folder import SearchRecord


def draw_search(folder: Path, record: SearchRecord, picture: Path) -> None:
    """Draw the validation accuracy of every member over the minutes of the search, and what is used in the end."""
    figure, (axis,) = panels(1, 7, 4)
    for number, member in enumerate(record.members):
        points = accuracy_by_minute(folder, member)
        tasks = "".join(f" + {task}" for task in member.tasks)
        score = "diverged" if member.diverged else f"{member.val_top1:.1f} %"
        name = f"{number + 1}: {member.model}{tasks}, {score}"
        if points:
            axis.plot(*zip(*points, strict=True), label=name, color=f"C{number}", marker="o", markersize=3)
    if record.val_top1 is not None:
        what = "single run" if len(record.weights) == 1 else f"ensemble of {len(record.weights)}"
        axis.axhline(record.val_top1, color="0.3", linestyle="--", label=f"used: {what}, {record.val_top1:.1f} %")
    axis.set(xlabel="minutes", ylabel="validation accuracy, %", xlim=(0, None), title="what was tried, and when")
    axis.grid(alpha=0.3)
    axis.legend()
    save_figure(figure, picture)
