"""Pictures of a study: curves with bands, gains with intervals, accuracy by the number of training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.records import Record
from vitlet.experiments.studies.statistics import Row
from vitlet.pictures import panels, save_figure


def draw_gains(study: Study, rows: Sequence[Row], path: Path) -> Path:
    """Gains over the baseline with their intervals, a panel per dataset and model; no file where there is no gain."""
    gains = [row for row in rows if row.gain is not None]
    largest = max((row.fraction for row in gains), default=1.0)
    gains = [row for row in gains if row.fraction == largest]
    groups = list(dict.fromkeys((row.dataset, row.model) for row in gains))
    if not groups:
        return path
    most = max(sum((row.dataset, row.model) == group for row in gains) for group in groups)
    figure, axes = panels(len(groups), 4.6, 0.36 * most + 1.3)
    for axis, group in zip(axes, groups, strict=True):
        chosen = [row for row in gains if (row.dataset, row.model) == group]
        for place, row in enumerate(chosen):
            assert row.gain is not None
            colour = "0.6" if not row.gain.excludes_zero else "C2" if row.gain.mean > 0 else "C3"
            axis.barh(place, row.gain.mean, xerr=row.gain.half, color=colour, ecolor="0.2", capsize=3, height=0.6)
        axis.set_yticks(range(len(chosen)), [row.arm for row in chosen])
        axis.invert_yaxis()
        axis.axvline(0, color="0.2", linewidth=1)
        alone = ", one seed" if all(row.gain is not None and row.gain.half is None for row in chosen) else ""
        axis.set(title=f"{group[0]}, {group[1]}", xlabel=f"points over {study.baseline}{alone}")
        axis.grid(axis="x", alpha=0.3)
    save_figure(figure, path)
    return path


def draw_curves(study: Study, records: Mapping[Cell, Record], path: Path) -> Path:
    """Validation accuracy over epochs: mean of the seeds, and from the lowest to the highest of them."""
    largest = max(cell.fraction for cell in records)
    whole = {cell: record for cell, record in records.items() if cell.fraction == largest}
    groups = list(dict.fromkeys((cell.dataset, cell.model) for cell in study.cells() if cell in whole))
    watched = (
        "test" if study.test and any(each.settings.get("eval_on_test") for each in whole.values()) else "validation"
    )
    figure, axes = panels(len(groups), 5, 3.6)
    for axis, (dataset, model) in zip(axes, groups, strict=True):
        for index, arm in enumerate(study.arms):
            cells = [cell for cell in whole if (cell.dataset, cell.model, cell.arm) == (dataset, model, arm)]
            curves = [whole[cell].val_curve for cell in cells if whole[cell].val_curve]
            if not curves:
                continue
            epochs = range(1, min(map(len, curves)) + 1)
            by_epoch = list(zip(*curves, strict=False))
            means, line = [sum(values) / len(values) for values in by_epoch], "-" if index < 10 else "--"
            axis.plot(epochs, means, line, label=arm, color=f"C{index % 10}")
            if len(curves) > 1:
                low, high = [min(values) for values in by_epoch], [max(values) for values in by_epoch]
                axis.fill_between(epochs, low, high, color=f"C{index % 10}", alpha=0.15, linewidth=0)
        axis.set(title=f"{dataset}, {model}", xlabel="epoch", ylabel=f"{watched} accuracy, %")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        beside = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if len(axis.lines) > 6 else {}
        axis.legend(fontsize=8, **beside)
    save_figure(figure, path)
    return path


def draw_sizes(study: Study, rows: Sequence[Row], path: Path) -> Path:
    """Accuracy by the number of training images, with intervals."""
    groups = list(dict.fromkeys((row.dataset, row.model) for row in rows))
    figure, axes = panels(len(groups), 5, 3.6, columns=len(groups))
    for axis, group in zip(axes, groups, strict=True):
        grouped = sorted((row for row in rows if (row.dataset, row.model) == group), key=lambda row: row.train_images)
        for index, arm in enumerate(study.arms):
            chosen = [row for row in grouped if row.arm == arm]
            if chosen:
                images, means = [row.train_images for row in chosen], [row.best.mean for row in chosen]
                halves = [float("nan") if row.best.half is None else row.best.half for row in chosen]
                axis.errorbar(images, means, yerr=halves, label=arm, color=f"C{index % 10}", capsize=3)
        axis.set(title=f"{group[0]}, {group[1]}", xlabel="training images", ylabel="accuracy, %", xscale="log")
        sizes = sorted({row.train_images for row in grouped})
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    save_figure(figure, path)
    return path
