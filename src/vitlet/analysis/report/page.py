"""The page: sections, style and script in one file that asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from vitlet import __version__
from vitlet.analysis.report.classes import by_class, confusions, mistakes, reliabilities
from vitlet.analysis.report.curves import curves
from vitlet.analysis.report.maps import data_section, distances, localization, looks
from vitlet.analysis.report.markup import Markup, escaped, joined, name_of, tag
from vitlet.analysis.report.overview import Looked, cards, comparison, notes, settings
from vitlet.analysis.report.predictions import examine
from vitlet.analysis.report.record import read_run, run_names
from vitlet.errors import VitletError, first_line

MOST_IMAGES = 5000
"""Images that are predicted for a report unless the user says otherwise."""


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
    looked = [(record, examine(record, most=most, device=device)) for record in records]
    title = "Report: " + ", ".join(record.name for record in records)
    write_page(output, page(title, sections(looked)))
    return output


def sections(looked: Looked) -> dict[str, Markup]:
    """The parts of a report of runs by their titles; those with nothing in them are left out of the page."""
    return {
        "Result": joined([cards(looked), notes(looked)]),
        "Comparison": comparison(looked),
        "Settings": settings(looked),
        "Data": data_section(looked),
        "Curves": curves([record for record, _ in looked]),
        "Confusion": confusions(looked),
        "By class": by_class(looked),
        "Reliability": reliabilities(looked),
        "Surest mistakes": mistakes(looked),
        "What it looks at": looks(looked),
        "Token localization": localization(looked),
        "Attention distance": distances(looked),
    }


def page(title: str, parts: dict[str, Markup]) -> str:
    """A whole HTML document; nothing but its own script runs in it, and it loads nothing."""
    style, script = (
        files("vitlet.analysis.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    filled = [(name, part) for name, part in parts.items() if part]
    links = [tag("a", name, href=f"#part-{number}") for number, (name, _) in enumerate(filled)]
    body = [tag("section", tag("h2", name), part, id=f"part-{number}") for number, (name, part) in enumerate(filled)]
    made = f"vitlet {__version__}, {datetime.now().astimezone():%Y-%m-%d %H:%M}"
    toggle = tag("button", "light / dark", type="button", id="theme")
    header = tag("header", tag("div", tag("h1", name_of(title)), toggle, class_="top"), tag("nav", *links))
    content = joined([header, tag("main", *body), tag("footer", made)])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escaped(title)}</title><style>{style}</style></head><body>{content}<script>{script}</script></body></html>\n"
    )


def write_page(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as problem:
        raise VitletError(f"cannot write {path}: {first_line(problem)}. Choose another --output.") from problem
