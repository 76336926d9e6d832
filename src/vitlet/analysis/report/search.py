"""Section of the report on a search: accuracy against time, one line per member, and a table of the members."""

from __future__ import annotations

from pathlib import Path

from vitlet.analysis.report.charts import Series, line_chart
from vitlet.analysis.report.document import Section
from vitlet.analysis.report.rendering import number
from vitlet.training.run_folder import read_rows
from vitlet.training.search_folder import SearchMember, read_search

USED = 7
"""Number of the colour of what is used in the end."""


def search_section(folder: Path) -> Section:
    """The members of a search over its minutes, and what is used of them."""
    record = read_search(folder)
    series, rows = [], []
    for place, member in enumerate(record.members):
        name = f"{place + 1}: {member.model}" + "".join(f" + {task}" for task in member.tasks)
        series.append(Series(name, accuracy_by_minute(folder, member), place))
        tasks = ", ".join(f"{task}={weight:g}" for task, weight in member.tasks.items()) or "none"
        score = "diverged" if member.diverged else number(member.val_top1, ".2f")
        minutes, weight = (member.ended - member.began) / 60, record.weights.get(member.folder, 0.0)
        rows.append([str(place + 1), member.model, tasks, number(minutes), score, number(weight, ".2f")])
    if record.val_top1 is not None:
        ends = (0.0, max(member.ended for member in record.members) / 60)
        used = "single run" if len(record.weights) == 1 else f"ensemble of {len(record.weights)}"
        series.append(Series(f"used: {used}", [(end, record.val_top1) for end in ends], USED, dotted=True))
    head = ["member", "model", "tasks", "minutes", "validation accuracy, %", "weight"]
    chart = line_chart("validation accuracy, %", series, x_label="minutes")
    lines = [
        f"{len(record.members)} of {record.count} members in {record.seconds / 60:.1f} of {record.minutes:g} minutes"
    ]
    if record.test is not None:
        lines.append(f"used: {record.test['top1']:.2f} % of {record.test['count']:.0f} test images, tested once")
    return Section("Search", "search.html", {"chart": chart, "table": {"head": head, "rows": rows}, "lines": lines})


def accuracy_by_minute(folder: Path, member: SearchMember) -> list[tuple[float, float]]:
    """Minutes since the start of the search and validation accuracy in percent, for each validation of a member."""
    rows = read_rows(folder / member.folder)
    epoch = (member.ended - member.began) / max(1, len(rows))
    return [((member.began + epoch * row["epoch"]) / 60, row["val/top1"]) for row in rows if "val/top1" in row]
