"""A study as a page (HTML), tables (Markdown, CSV, LaTeX) and pictures, beside the papers' numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Template
from rich.console import Console
from rich.table import Table

from vitlet.errors import VitletError
from vitlet.experiments.studies.definition import Cell, Study, read_study
from vitlet.experiments.studies.page import write_study_page
from vitlet.experiments.studies.pictures import draw_curves, draw_gains, draw_sizes
from vitlet.experiments.studies.records import Record, finished_cells, records_folder
from vitlet.experiments.studies.statistics import Row, accuracies, summarise


def is_study(path: Path) -> bool:
    """Whether a path is a study's file or folder."""
    return (path / "study.yaml").is_file() or (path.is_file() and path.suffix in (".yaml", ".yml"))


def report_study(path: Path, output: Path | None = None) -> list[Path]:
    """Write the page, the tables and the pictures of a study; returns the files."""
    file = path if path.is_file() else path / "study.yaml"
    study = read_study(file)
    own = records_folder(file)
    records = finished_cells(study, own)
    if not records:
        raise VitletError(f"the study {study.name} has no finished cell yet. Run it: vitlet study {path}.")
    rows = summarise(study, records)
    if not rows:
        raise VitletError(f"no cell of the study {study.name} has an accuracy: there is nothing to compare.")
    folder = output or own / "report"
    if folder.is_file() or folder.suffix == ".html":
        raise VitletError(
            f"the report of a study is a folder of a page, tables and pictures; {folder} is not a folder name."
        )
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"md": markdown(study, rows, records), "csv": comma_separated(rows), "tex": latex(rows)}
    for suffix, text in tables.items():
        (folder / f"table.{suffix}").write_text(text, encoding="utf-8")
    pictures = [draw_gains(study, rows, folder / "gains.png"), draw_curves(study, records, folder / "curves.png")]
    if len(study.fractions) > 1:
        pictures.append(draw_sizes(study, rows, folder / "sizes.png"))
    lines = [f"{which_numbers(study, records)}.", f"vitlet study {study.name}, {_origin(study, records)}."]
    page = write_study_page(folder / "report.html", study, rows, records, lines)
    return [page, *(folder / f"table.{suffix}" for suffix in tables), *(path for path in pictures if path.is_file())]


def as_texts(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The rows as texts by column; the column of published numbers is there where one is."""
    has_paper = any(row.paper is not None for row in rows)
    return [
        {
            "dataset": row.dataset,
            "model": row.model,
            "arm": row.arm,
            "images": f"{row.train_images:,}",
            "seeds": str(row.best.count),
            "best epoch": row.best.shown(),
            "last epoch": row.last.shown() if row.last else "",
            "gain": row.gain.shown("+") if row.gain else "",
            "wins": f"{row.wins} of {row.gain.count}" if row.gain else "",
            "reaches": _reaches(row) if row.gain else "",
            "cost": f"{row.cost:.2f}" if row.cost else "",
            **({"paper": "" if row.paper is None else f"{row.paper:g}"} if has_paper else {}),
        }
        for row in rows
    ]


def _reaches(row: Row) -> str:
    """Such as ``17 of 20``, and how many seeds do where it is not all."""
    if row.epochs_to_baseline is None:
        return "never" if row.raced else ""
    seeds = "" if row.reached == row.raced else f" ({row.reached} of {row.raced} seeds)"
    return f"{row.epochs_to_baseline:.0f} of {row.epochs}{seeds}"


def which_numbers(study: Study, records: Mapping[Cell, Record]) -> str:
    """Description of a study's numbers, and of the cells that are left out."""
    what, numbers = accuracies(study, records)
    missing = len(records) - len(numbers)
    without = f" (without {missing} cells that have no {what} number)" if missing else ""
    watched = study.test and any(record.settings.get("eval_on_test") for record in records.values())
    curves = "; validation accuracy by epoch is of the test images here (eval_on_test)" if watched else ""
    return f"Top-1 {what} accuracy in percent{without}{curves}"


def print_rows(rows: Sequence[Row]) -> None:
    """The table on the screen."""
    texts = as_texts(rows)
    table = Table(*(texts[0] if texts else ()), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for each in texts:
        table.add_row(*each.values())
    Console(width=max(Console().width, 140)).print(table)


def _origin(study: Study, records: Mapping[Cell, Record]) -> str:
    """How many cells there are, when and on which machines they were run."""
    made_by = [record.made_by for record in records.values()]
    made = sorted({f"{each.get('processor', '')}, torch {each.get('torch', '')}" for each in made_by})
    dates = sorted(each.get("date", "") for each in made_by)
    total = sum(1 for _ in study.cells())
    return f"{len(records)} of {total} cells; {dates[0]} to {dates[-1]}; {'; '.join(made)}"


def markdown(study: Study, rows: Sequence[Row], records: Mapping[Cell, Record]) -> str:
    """The table with what is needed to read it, by the template ``table.md.jinja``."""
    texts = as_texts(rows)
    for row, each in zip(rows, texts, strict=True):
        if row.gain is not None and row.gain.excludes_zero:
            each["gain"] = f"**{each['gain']}**"
    template: Template = Template(
        Path(__file__).with_name("table.md.jinja").read_text(encoding="utf-8"), trim_blocks=True
    )
    what, origin = which_numbers(study, records), _origin(study, records)
    return template.render(study=study, what=what, origin=origin, texts=texts)


def comma_separated(rows: Sequence[Row]) -> str:
    """Numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("best", "best_half", "last", "gain", "gain_half", "wins", "epochs_to_baseline", "reached", "cost", "paper")
    writer.writerow(["dataset", "model", "arm", "fraction", "train_images", "seeds", *names])
    for row in rows:
        last = row.last.mean if row.last else None
        gain = (row.gain.mean, row.gain.half) if row.gain else (None, None)
        numbers = (row.best.mean, row.best.half, last, *gain, row.wins, row.epochs_to_baseline, row.reached)
        shown = ("" if value is None else round(value, 4) for value in (*numbers, row.cost, row.paper))
        writer.writerow([row.dataset, row.model, row.arm, row.fraction, row.train_images, row.best.count, *shown])
    return text.getvalue()


def latex(rows: Sequence[Row]) -> str:
    """LaTeX table for a paper; needs the package booktabs."""
    lines = [r"\begin{tabular}{lllrrr}", r"\toprule", r"dataset & model & arm & top-1 & gain & wins \\", r"\midrule"]
    for texts in as_texts(rows):
        shown = " & ".join(texts[column] for column in ("dataset", "model", "arm", "best epoch", "gain", "wins"))
        lines.append(shown.replace("_", r"\_").replace("±", r"$\pm$").replace("%", r"\%") + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
