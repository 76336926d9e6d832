"""The report of classification runs: which sections it has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitlet.analysis.report.classes import by_class, confusions, mistakes, reliabilities
from vitlet.analysis.report.curves import curves
from vitlet.analysis.report.document import Section, write_page
from vitlet.analysis.report.maps import data_sources, distances, localization, looks
from vitlet.analysis.report.overview import comparison, result, settings_tables
from vitlet.analysis.report.predictions import examine
from vitlet.analysis.report.record import read_run, run_names
from vitlet.errors import VitletError

MOST_IMAGES = 5000
"""Images that are predicted for a report unless the user says otherwise."""


def report_runs(
    runs: Sequence[Path],
    output: Path,
    *,
    most: int = MOST_IMAGES,
    device: str = "auto",
    first: Sequence[Section] = (),
) -> Path:
    """Write the report of one run or several.

    Args:
        runs: run folders, finished or not.
        output: the HTML file.
        most: images to predict at most, evenly spaced.
        device: to run the models on.
        first: sections before those of the runs.
    """
    if most < 1:
        raise VitletError(f"--images must be at least 1, got {most}.")
    if output.is_dir():
        raise VitletError(f"{output} is a folder; --output must be a file, such as {output / 'report.html'}.")
    paths = list(dict.fromkeys(runs))
    records = [read_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    found = [examine(record, number, most=most, device=device) for number, record in enumerate(records)]
    sections = [
        *first,
        Section("Result", "result.html", result(found)),
        Section("Comparison", "comparison.html", comparison(found)),
        Section("Settings", "settings.html", settings_tables(found)),
        Section("Data", "data.html", data_sources(found)),
        Section("Curves", "curves.html", curves(records)),
        Section("Confusion", "confusion.html", confusions(found)),
        Section("By class", "by_class.html", by_class(found)),
        Section("Reliability", "reliability.html", reliabilities(found), half=len(found) == 1),
        Section("Attention distance", "distances.html", distances(found), half=len(found) == 1),
        Section("Most confident errors", "mistakes.html", mistakes(found)),
        Section("Maps", "looks.html", looks(found)),
        Section("Token localization", "localization.html", localization(found)),
    ]
    write_page(output, "Report: " + ", ".join(record.name for record in records), sections, several=len(records) > 1)
    return output
