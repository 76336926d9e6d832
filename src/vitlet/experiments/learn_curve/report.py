"""HTML report of a learning curve: picture, conclusions, and all runs."""

from __future__ import annotations

from pathlib import Path

from vitlet.analysis.report.document import Section, write_page
from vitlet.analysis.report.rendering import number, picture
from vitlet.data.decode import open_image
from vitlet.errors import VitletError
from vitlet.experiments.learn_curve.record import PICTURE, read_curve


def report_curve(folder: Path, output: Path) -> Path:
    """Write the report of a finished learning curve."""
    record = read_curve(folder)
    if not record.answer or not (folder / PICTURE).is_file():
        done = f"{len(record.runs)} of {len(record.plan)} runs"
        raise VitletError(
            f"the learning curve {folder} is not finished ({done}); the same command with --output goes on."
        )
    with open_image(folder / PICTURE) as opened:
        drawn = picture(opened.convert("RGB"), "accuracy against training images", lossless=True)
    head = ["run", "model", "training images", "seed", "epochs", f"{record.split} accuracy, %"]
    rows = []
    for run in record.runs:
        counts = (number(each, ",") for each in (run.images, run.seed, run.epochs))
        rows.append([run.name, run.model, *counts, number(run.accuracy, ".2f")])
    sections = [
        Section("Is the number of images enough?", "figure.html", {"picture": drawn, "lines": record.answer["lines"]}),
        Section("Runs", "table.html", {"table": {"head": head, "rows": rows}, "lines": []}),
    ]
    write_page(output, f"Learning curve: {record.settings['data']}", sections)
    return output
