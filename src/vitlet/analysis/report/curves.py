"""Everything that was logged by epoch, as charts: all runs in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from vitlet.analysis.report.charts import Series, line_chart
from vitlet.analysis.report.record import AnyRecord

HIDDEN = {"epoch", "val/count", "test/count"}

TITLES = {
    "val/top1": "validation top-1, %",
    "test/top1": "test top-1 (eval_on_test), %",
    "val/top5": "validation top-5, %",
    "val/balanced": "validation, mean over classes, %",
    "val/loss": "validation loss",
    "train/loss": "training loss, total",
    "train/criterion": "training loss, cross-entropy",
    "lr": "learning rate at the start of the epoch",
    "images_per_second": "training images per second",
}

GROUPS = ("Accuracy", "Losses", "Tasks", "Learning rate, task weights, throughput")


def curves(records: Sequence[AnyRecord]) -> dict[str, Any]:
    """Charts of every logged number, by group."""
    keys = dict.fromkeys(key for record in records for row in record.rows for key in row)
    grouped: dict[str, list[Markup]] = {group: [] for group in GROUPS}
    for key in keys:
        if key in HIDDEN or _is_level(key):
            continue
        lines = _lines(records, key)
        if lines:
            grouped[_group(key)].append(line_chart(_title(key), lines, from_zero=key == "images_per_second"))
    return {"groups": {group: charts for group, charts in grouped.items() if charts}}


def _is_level(key: str) -> bool:
    """Whether this is a level to compare another number with, drawn as a dotted line beside it."""
    return key.count("/") == 2 and ("chance" in key.rpartition("/")[2] or key.endswith("_uniform"))


def _level_of(key: str, known: Sequence[str]) -> str | None:
    """The level that belongs to a task's number."""
    task, _, metric = key.rpartition("/")
    beside = [metric.replace("error", "chance"), metric.replace("accuracy", "chance"), f"{metric}_uniform", "chance"]
    found = [f"{task}/{name}" for name in beside if name != metric and f"{task}/{name}" in known]
    return found[0] if found and key.count("/") == 2 else None


def _lines(records: Sequence[AnyRecord], key: str) -> list[Series]:
    lines: list[Series] = []
    levels: dict[str, Series] = {}
    for number, record in enumerate(records):
        points = [(row["epoch"], row[key]) for row in record.rows if isinstance(row.get(key), (int, float))]
        if points:
            lines.append(Series(record.name, points, number))
            beside = _level_of(key, list(record.rows[-1]))
            if beside is not None:
                constant = [(row["epoch"], row[beside]) for row in record.rows if beside in row]
                kind = "even attention" if beside.endswith("_uniform") else "chance"
                levels.setdefault(f"{constant[-1][1]:.6g}", Series(kind, constant, 7, dotted=True))
    if len(levels) > 1:  # grids of other sizes have chances of their own
        levels = {value: replace(each, name=f"{each.name} {float(value):.3g}") for value, each in levels.items()}
    return [*lines, *levels.values()]


def _group(key: str) -> str:
    if key in ("lr", "images_per_second") or key.startswith("weight/"):
        return GROUPS[3]
    if key.count("/") == 2:
        return "Tasks"
    measured = key.startswith(("val/", "test/")) and "loss" not in key
    return "Accuracy" if measured else "Losses"


def _title(key: str) -> str:
    if key in TITLES:
        return TITLES[key]
    side, _, rest = key.partition("/")
    if side == "weight":
        return f"weight of {rest}"
    words = rest.replace("/", ": ").replace("_cells", ", cells").replace("_", " ")
    kind = "" if rest.count("/") or _group(key) == "Accuracy" else "loss of "
    return f"{kind}{words}" + (" (validation)" if side == "val" else "")
