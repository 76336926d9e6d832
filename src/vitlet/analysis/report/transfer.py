"""The report of detection and segmentation runs: their numbers, settings, curves and classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitlet.analysis.report.curves import curves
from vitlet.analysis.report.document import Section, write_page
from vitlet.analysis.report.record import AnyRecord, read_run, run_names
from vitlet.analysis.report.rendering import Number, number
from vitlet.config import BaseConfig, RunConfig
from vitlet.errors import VitletError
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.segmentation.settings import SegmentConfig

JOBS: dict[str, type[BaseConfig]] = {kind.JOB: kind for kind in (DetectConfig, SegmentConfig)}


def job_of(run: Path) -> str:
    """The command that created a run."""
    file = run / "config.yaml"
    return str(RunConfig.read(file).get("job", RunConfig.JOB)) if file.is_file() else RunConfig.JOB


def report_transfer(runs: Sequence[Path], output: Path) -> Path:
    """Write the report of detection runs, or of segmentation runs."""
    jobs = {job_of(run) for run in runs}
    if len(jobs) > 1 or not jobs <= set(JOBS):
        raise VitletError(
            f"runs of {' and of '.join(f'`vitlet {job}`' for job in sorted(jobs))} need separate reports."
        )
    kind = JOBS[jobs.pop()]
    records = [read_run(path, name, kind) for path, name in zip(runs, run_names(runs), strict=True)]
    sections = [
        Section("Result", "table.html", {"table": _scores(records), "lines": _lines(records)}),
        Section("Settings", "table.html", {"table": _settings(records, kind), "lines": []}),
        Section("Curves", "curves.html", curves(records)),
        Section("By class", "table.html", _classes(records)),
    ]
    write_page(output, "Report: " + ", ".join(record.name for record in records), sections, several=len(records) > 1)
    return output


def _scores(records: Sequence[AnyRecord]) -> dict[str, Any]:
    """Table of all final metrics; COCO defines none for a size that no object has."""
    found = [record.scores or ("val", {}) for record in records]
    head = ["number", *(f"{record.name} ({split})" for record, (split, _) in zip(records, found, strict=True))]

    def cell(name: str, value: float | None) -> Number:
        form = ".0f" if name == "count" else ".2f"
        return Number(value, "n/a" if value is None or value < 0 else format(value, form))

    names = dict.fromkeys(name for _, scores in found for name in scores)
    rows = [[name.replace("_", " "), *(cell(name, scores.get(name)) for _, scores in found)] for name in names]
    return {"head": head, "rows": rows}


def _lines(records: Sequence[AnyRecord]) -> list[str]:
    lines = []
    for record in records:
        lines += [f"{record.name}: {record.progress()}", f"data: {record.result.get('data', record.config.data)}"]
        lines += record.result.get("warnings", [])
    return lines


def _settings(records: Sequence[AnyRecord], kind: type[BaseConfig]) -> dict[str, Any]:
    """Settings that differ from the defaults in any of the runs."""
    usual = kind().to_dict()
    chosen = [record.config.to_dict() for record in records]
    keys = dict.fromkeys(key for column in chosen for key in column if key != "job")
    different = [key for key in keys if any(column.get(key) != usual.get(key) for column in chosen)]
    rows = [[key, *(str(column.get(key, "")) for column in chosen)] for key in different]
    return {"head": ["setting", *(record.name for record in records)], "rows": rows}


def _classes(records: Sequence[AnyRecord]) -> dict[str, Any] | None:
    """The main number of every class on the test images, where there are any."""
    tested = [record for record in records if record.result.get("test_per_class")]
    if not tested:
        return None
    columns = [record.result["test_per_class"] for record in tested]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(number(column.get(name), ".2f", missing="") for column in columns)] for name in names]
    return {"table": {"head": ["class", *(record.name for record in tested)], "rows": rows}, "lines": []}
