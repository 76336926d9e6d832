"""The page: sections, style and script in one file that asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from vitlet import __version__
from vitlet.analysis.report.classes import by_class, confusions, mistakes, reliabilities
from vitlet.analysis.report.curves import curves
from vitlet.analysis.report.maps import data_sources, distances, localization, looks
from vitlet.analysis.report.overview import comparison, result, settings_tables
from vitlet.analysis.report.predictions import examine
from vitlet.analysis.report.record import read_run, run_names
from vitlet.analysis.report.rendering import render
from vitlet.errors import VitletError, first_line
from vitlet.training.files import write_atomically

MOST_IMAGES = 5000
"""Images that are predicted for a report unless the user says otherwise."""


class Section(NamedTuple):
    """A part of the page: its template is filled with its data, and left out if there is none."""

    title: str
    template: str
    data: Any


def report_runs(runs: Sequence[Path], output: Path, *, most: int = MOST_IMAGES, device: str = "auto") -> Path:
    """Write the report of one run or several.

    Args:
        runs: run folders, finished or not.
        output: the HTML file.
        most: images to predict at most, evenly spaced.
        device: to run the networks on.
    """
    if most < 1:
        raise VitletError(f"{most} images were asked for; a report needs 1 or more.")
    if output.is_dir():
        raise VitletError(f"{output} is a folder; --output needs to be a file, such as {output / 'report.html'}.")
    paths = list(dict.fromkeys(runs))
    records = [read_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    found = [examine(record, number, most=most, device=device) for number, record in enumerate(records)]
    sections = [
        Section("Result", "result.html", result(found)),
        Section("Comparison", "comparison.html", comparison(found)),
        Section("Settings", "settings.html", settings_tables(found)),
        Section("Data", "data.html", data_sources(found)),
        Section("Curves", "curves.html", curves(records)),
        Section("Confusion", "confusion.html", confusions(found)),
        Section("By class", "by_class.html", by_class(found)),
        Section("Reliability", "reliability.html", reliabilities(found)),
        Section("Surest mistakes", "mistakes.html", mistakes(found)),
        Section("What it looks at", "looks.html", looks(found)),
        Section("Token localization", "localization.html", localization(found)),
        Section("Attention distance", "distances.html", distances(found)),
    ]
    write_page(output, [record.name for record in records], sections)
    return output


def write_page(path: Path, runs: Sequence[str], sections: Sequence[Section]) -> None:
    """Write the file whole or not at all; nothing but its own script runs in it, and it loads nothing."""
    folder = files("vitlet.analysis.report") / "templates"
    style, script = (Markup((folder / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    text = render(
        "page.html",
        title="Report: " + ", ".join(runs),
        sections=[section for section in sections if section.data],
        style=style,
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        several=len(runs) > 1,
        made=f"vitlet {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M}",
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as problem:
        raise VitletError(f"cannot write {path}: {first_line(problem)}. Choose another --output.") from problem
