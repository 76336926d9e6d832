"""The report of detection and segmentation runs: their numbers, settings, curves and classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitlet.analysis.report.curves import curves
from vitlet.analysis.report.markup import Markup, joined, name_of, number_cell, table, tag
from vitlet.analysis.report.page import page, write_page
from vitlet.analysis.report.record import AnyRecord, read_run, run_names
from vitlet.config import BaseConfig, RunConfig
from vitlet.errors import VitletError
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.segmentation.settings import SegmentConfig

KINDS: dict[str, type[BaseConfig]] = {kind.JOB: kind for kind in (DetectConfig, SegmentConfig)}


def job_of(run: Path) -> str:
    """Which command made a run."""
    file = run / "config.yaml"
    return str(RunConfig.read(file).get("job", RunConfig.JOB)) if file.is_file() else RunConfig.JOB


def report_transfer(runs: Sequence[Path], output: Path) -> Path:
    """Write the report of detection runs, or of segmentation runs."""
    jobs = {job_of(run) for run in runs}
    if len(jobs) > 1 or not jobs <= set(KINDS):
        raise VitletError(
            f"runs of {' and of '.join(f'`vitlet {job}`' for job in sorted(jobs))} need reports of their own."
        )
    kind = KINDS[jobs.pop()]
    records = [read_run(path, name, kind) for path, name in zip(runs, run_names(runs), strict=True)]
    sections = {
        "Result": joined([_numbers(records), *(_notes(record) for record in records)]),
        "Settings": _settings(records, kind),
        "Curves": curves(records),
        "By class": _classes(records),
    }
    title = "Report: " + ", ".join(record.name for record in records)
    write_page(output, page(title, sections))
    return output


def _numbers(records: Sequence[AnyRecord]) -> Markup:
    """Every final number, a row each; COCO has none for a size that no object has."""
    found = [record.scores or ("val", {}) for record in records]
    names = list(dict.fromkeys(name for _, scores in found for name in scores))
    head = ["number", *(name_of(f"{r.name} ({split})") for r, (split, _) in zip(records, found, strict=True))]
    rows = []
    for name in names:
        values = [scores.get(name) for _, scores in found]
        cells = [
            number_cell(v, "n/a" if v is None or v < 0 else f"{v:.2f}" if name != "count" else f"{v:.0f}")
            for v in values
        ]
        rows.append([name.replace("_", " "), *cells])
    return table(head, rows, numbers=range(1, len(head)))


def _notes(record: AnyRecord) -> Markup:
    said = [f"{record.name}: {record.progress()}", f"data: {record.result.get('data', record.config.data)}"]
    return joined(
        [tag("p", name_of(line, most=400), class_="small") for line in (*said, *record.result.get("warnings", []))]
    )


def _settings(records: Sequence[AnyRecord], kind: type[BaseConfig]) -> Markup:
    """What differs from the usual settings in any of the runs."""
    usual = kind().to_dict()
    chosen = [record.config.to_dict() for record in records]
    keys = [
        key for key in dict.fromkeys(k for c in chosen for k in c) if any(c.get(key) != usual.get(key) for c in chosen)
    ]
    rows = [[key, *(name_of(c.get(key, "")) for c in chosen)] for key in keys if key != "job"]
    return table(["setting", *(name_of(record.name) for record in records)], rows)


def _classes(records: Sequence[AnyRecord]) -> Markup:
    """The main number of every class on the test images, where there are any."""
    tested = [record for record in records if record.result.get("test_per_class")]
    if not tested:
        return Markup("")
    names = list(dict.fromkeys(name for record in tested for name in record.result["test_per_class"]))
    rows = []
    for name in names:
        values = [record.result["test_per_class"].get(name) for record in tested]
        rows.append([name_of(name), *(number_cell(value, "" if value is None else f"{value:.2f}") for value in values)])
    return table(["class", *(name_of(record.name) for record in tested)], rows, numbers=range(1, len(tested) + 1))
