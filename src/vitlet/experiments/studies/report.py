"""A study as tables (Markdown, CSV, LaTeX) and pictures, beside the papers' numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vitlet.errors import VitletError
from vitlet.experiments.studies.definition import Cell, Study, read_study
from vitlet.experiments.studies.pictures import draw_curves, draw_gains, draw_sizes
from vitlet.experiments.studies.records import Record, finished_cells, records_folder
from vitlet.experiments.studies.statistics import Row, accuracies, summarise

COLUMNS = ("dataset", "model", "arm", "images", "seeds", "best epoch", "last epoch", "gain", "wins", "reaches", "cost")


def is_study(path: Path) -> bool:
    """Whether a path is a study's file or folder."""
    return (path / "study.yaml").is_file() or (path.is_file() and path.suffix in (".yaml", ".yml"))


def report_study(path: Path, output: Path | None = None) -> list[Path]:
    """Write the tables and pictures of a study; returns the files."""
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
        raise VitletError(f"the report of a study is a folder of tables and pictures; {folder} is no name for one.")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in (
        ("table.md", markdown(study, rows, records)),
        ("table.csv", comma_separated(rows)),
        ("table.tex", latex(rows)),
    ):
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    written.append(draw_gains(study, rows, folder / "gains.png"))
    written.append(draw_curves(study, records, folder / "curves.png"))
    if len(study.fractions) > 1:
        written.append(draw_sizes(study, rows, folder / "sizes.png"))
    return [path for path in written if path.is_file()]


def cells_of(row: Row, paper: bool) -> list[str]:
    """A row of a table as text."""
    texts = [
        *(row.dataset, row.model, row.arm, f"{row.train_images:,}", str(row.best.count), row.best.shown()),
        row.last.shown() if row.last else "",
        row.gain.shown("+") if row.gain else "",
        f"{row.wins} of {row.gain.count}" if row.gain else "",
        _reaches(row) if row.gain else "",
        f"{row.cost:.2f}" if row.cost else "",
    ]
    return [*texts, "" if row.paper is None else f"{row.paper:g}"] if paper else texts


def _reaches(row: Row) -> str:
    """Such as ``17 of 20``, and how many seeds do where it is not all."""
    if row.epochs_to_baseline is None:
        return "never" if row.raced else ""
    seeds = "" if row.reached == row.raced else f" ({row.reached} of {row.raced} seeds)"
    return f"{row.epochs_to_baseline:.0f} of {row.epochs}{seeds}"


def which_numbers(study: Study, records: Mapping[Cell, Record]) -> str:
    """What the numbers of a study are, and which of its cells are left out."""
    what, numbers = accuracies(study, records)
    missing = len(records) - len(numbers)
    without = f" (without {missing} cells that have no {what} number)" if missing else ""
    return f"Top-1 {what} accuracy in percent{without}"


def print_rows(rows: Sequence[Row]) -> None:
    """The table on the screen."""
    paper = any(row.paper is not None for row in rows)
    table = Table(*COLUMNS, *(("paper",) if paper else ()), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*cells_of(row, paper))
    Console(width=max(Console().width, 140)).print(table)


def markdown(study: Study, rows: Sequence[Row], records: Mapping[Cell, Record]) -> str:
    """The table with what is needed to read it."""
    paper = any(row.paper is not None for row in rows)
    columns = [*COLUMNS, *(("paper",) if paper else ())]
    total = sum(1 for _ in study.cells())
    made = sorted({f"{r.made_by.get('processor', '')}, torch {r.made_by.get('torch', '')}" for r in records.values()})
    dates = sorted(record.made_by.get("date", "") for record in records.values())
    lines = [
        f"# {study.title}",
        "",
        f"`vitlet study {study.name}`, {len(records)} of {total} cells; {dates[0]} to {dates[-1]}; {'; '.join(made)}.",
        "",
        f"{which_numbers(study, records)}: mean and 95 % interval over seeds (Student's), at the epoch that is best on"
        f" the validation images and at the last one. gain: paired difference to `{study.baseline}` of the same seed"
        " and split, in points; bold where its interval excludes zero. reaches: first epoch whose validation accuracy"
        " is the baseline's last one, mean over the seeds that reach it, with their number where some never do. cost:"
        " CPU time of the run over the baseline's.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
    ]
    for row in rows:
        texts = cells_of(row, paper)
        if row.gain is not None and row.gain.excludes_zero:
            texts[7] = f"**{texts[7]}**"
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join([*lines, ""])


def comma_separated(rows: Sequence[Row]) -> str:
    """Numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("best", "best_half", "last", "gain", "gain_half", "wins", "epochs_to_baseline", "reached", "cost", "paper")
    writer.writerow(["dataset", "model", "arm", "fraction", "train_images", "seeds", *names])
    for row in rows:
        gain, last = row.gain, row.last
        of_gain = (None, None) if gain is None else (gain.mean, gain.half)
        numbers = (row.best.mean, row.best.half, None if last is None else last.mean, *of_gain)
        more = (row.wins, row.epochs_to_baseline, row.reached, row.cost, row.paper)
        place = [row.dataset, row.model, row.arm, row.fraction, row.train_images, row.best.count]
        writer.writerow([*place, *("" if value is None else round(value, 4) for value in (*numbers, *more))])
    return text.getvalue()


def latex(rows: Sequence[Row]) -> str:
    """For a paper; needs the package booktabs."""
    lines = [r"\begin{tabular}{lllrrr}", r"\toprule", r"dataset & model & arm & top-1 & gain & wins \\", r"\midrule"]
    for row in rows:
        texts = cells_of(row, False)
        shown = (texts[0], texts[1], texts[2], texts[5], texts[7], texts[8])
        escaped = [text.replace("_", r"\_").replace("±", r"$\pm$").replace("%", r"\%") for text in shown]
        lines.append(" & ".join(escaped) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
