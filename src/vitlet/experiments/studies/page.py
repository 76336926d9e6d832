"""The page of a study: all gains on one axis, the table, curves, and the settings that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from vitlet.analysis.report.charts import Series, line_chart
from vitlet.analysis.report.document import Section, write_page
from vitlet.analysis.report.forest import Difference, forest
from vitlet.analysis.report.rendering import Number, number
from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.records import Record
from vitlet.experiments.studies.statistics import Estimate, Row

READING = (
    "Mean over seeds ± half of the 95 % interval (Student's), at the epoch that is best on the validation images and at"
    " the last one. gain: paired difference to the baseline of the same seed and split, in points. wins: seeds in which"
    " the arm is ahead. reaches: first epoch whose validation accuracy is the baseline's last one. cost: CPU time over"
    " the baseline's."
)


def write_study_page(
    path: Path, study: Study, rows: Sequence[Row], records: Mapping[Cell, Record], lines: Sequence[str]
) -> Path:
    """Write the page; ``lines`` describe the numbers and their source."""
    sections = [
        Section("Gains", "chart.html", _gains(study, rows)),
        Section("Table", "table.html", {"table": _table(rows), "lines": [*lines, READING]}),
        Section("Curves", "curves.html", {"groups": _curves(study, records) | _sizes(study, rows)}),
        Section("What is compared", "table.html", {"table": _compared(study), "lines": []}),
    ]
    write_page(path, study.title, sections)
    return path


def _place(study: Study, row: Row) -> str:
    """Such as ``cifar10, vit``, with the number of images where the study varies it."""
    images = f", {row.train_images:,} images" if len(study.fractions) > 1 else ""
    return f"{row.dataset}, {row.model}{images}"


def _gains(study: Study, rows: Sequence[Row]) -> Markup:
    groups: dict[str, list[Difference]] = {}
    for row in rows:
        if row.gain is not None:
            wins = f"{row.wins} of {row.gain.count} seeds ahead" if row.gain.count > 1 else ""
            groups.setdefault(_place(study, row), []).append(Difference(row.arm, row.gain.mean, row.gain.half, wins))
    return forest(groups, f"Difference to {study.baseline} of the same seed, in points of accuracy")


def _estimate(found: Estimate | None, sign: str = "") -> Number:
    if found is None:
        return number(None, missing="")
    return Number(found.mean, f"{found.mean:{sign}.2f}", "" if found.half is None else f"± {found.half:.2f}")


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers of `vitlet.experiments.studies.report.as_texts`, in columns that sort."""
    head = ["dataset", "model", "arm", "images", "seeds", "best epoch", "last epoch", "gain", "wins", "reaches", "cost"]
    paper = any(row.paper is not None for row in rows)
    cells = [
        [
            row.dataset,
            row.model,
            row.arm,
            number(row.train_images, ",d"),
            number(row.best.count, "d"),
            _estimate(row.best),
            _estimate(row.last),
            _estimate(row.gain, "+"),
            number(row.wins, "d") if row.gain else number(None, missing=""),
            _reaches(row),
            number(row.cost, ".2f", missing=""),
            *([number(row.paper, "g", missing="")] if paper else []),
        ]
        for row in rows
    ]
    return {"head": [*head, *(["paper"] if paper else [])], "rows": cells}


def _reaches(row: Row) -> Number:
    """The epoch at which the baseline is reached, and by how many seeds where some never do."""
    if row.gain is None or not row.raced:
        return number(None, missing="")
    seeds = "" if row.reached == row.raced else f"{row.reached} of {row.raced} seeds"
    shown = "never" if row.epochs_to_baseline is None else f"{row.epochs_to_baseline:.0f} of {row.epochs}"
    return Number(row.epochs_to_baseline, shown, seeds if row.reached else "")


def _curves(study: Study, records: Mapping[Cell, Record]) -> dict[str, list[Markup]]:
    """Validation accuracy over epochs, the mean of the seeds; a chart for each dataset, model and fraction."""
    by_place: dict[tuple[str, str, float], dict[str, list[Sequence[float]]]] = {}
    for cell in study.cells():
        if cell in records and records[cell].val_curve:
            place = by_place.setdefault((cell.dataset, cell.model, cell.fraction), {})
            place.setdefault(cell.arm, []).append(records[cell].val_curve)
    watched = study.test and any(record.settings.get("eval_on_test") for record in records.values())
    group = f"{'test' if watched else 'validation'} accuracy, %, mean over seeds"
    charts = []
    for (dataset, model, fraction), arms in by_place.items():
        part = f", {fraction:g} of the images" if len(study.fractions) > 1 else ""
        lines = [
            Series(
                arm, [(epoch, fmean(values)) for epoch, values in enumerate(zip(*found, strict=False), start=1)], colour
            )
            for colour, arm in enumerate(study.arms)
            if (found := arms.get(arm))
        ]
        charts.append(line_chart(f"{dataset}, {model}{part}", lines))
    return {group: charts} if charts else {}


def _sizes(study: Study, rows: Sequence[Row]) -> dict[str, list[Markup]]:
    """Accuracy by the number of training images, where a study varies it."""
    if len(study.fractions) < 2:
        return {}
    charts = []
    for dataset, model in dict.fromkeys((row.dataset, row.model) for row in rows):
        lines = []
        for colour, arm in enumerate(study.arms):
            own = [row for row in rows if (row.dataset, row.model, row.arm) == (dataset, model, arm)]
            if own:
                lines.append(Series(arm, sorted((float(row.train_images), row.best.mean) for row in own), colour))
        charts.append(line_chart(f"{dataset}, {model}", lines, x_label="training images"))
    return {"accuracy, %, by training images": charts}


def _compared(study: Study) -> dict[str, Any]:
    """Definition of each name of the study, as in its file."""
    named = {"every run": {"": study.settings}, "dataset": study.datasets, "model": study.models}
    named |= {"tuned for": study.tuned, "arm": study.arms}
    rows = [
        ["arm, the baseline" if kind == "arm" and name == study.baseline else kind, name, _shown(settings)]
        for kind, each in named.items()
        for name, settings in each.items()
        if settings or kind == "arm"
    ]
    return {"head": ["part", "name", "settings"], "rows": rows}


def _shown(settings: Mapping[str, Any]) -> str:
    """Such as ``lr: 0.001, task: {drloc: 0.5}``."""
    parts = (
        f"{key}: {{{_shown(value)}}}" if isinstance(value, Mapping) else f"{key}: {value}"
        for key, value in settings.items()
    )
    return ", ".join(parts)
