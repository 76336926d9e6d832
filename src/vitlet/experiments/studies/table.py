"""What a person sees while a study goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from vitlet.config import RunConfig
from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.scheduler import Progress
from vitlet.training.progress import duration
from vitlet.training.run_folder import read_rows

REFRESH = 2.0
"""Seconds between two looks at the runs' own files."""


class Board:
    """Shows a study's progress.

    Args:
        study: the study.
        work: folder of its runs.
        before: cells that were finished before.
    """

    def __init__(self, study: Study, work: Path, before: int) -> None:
        self.study, self.work, self.before = study, work, before
        self.console = Console()
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self.looked, self.said = 0.0, 0

    def __enter__(self) -> Board:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, progress: Progress) -> None:
        """The state of things, now and then."""
        now = time.monotonic()
        ended = len(progress.finished) + len(progress.failed)
        over = not progress.todo and not progress.running
        if self.live is not None and (now - self.looked > REFRESH or over):
            self.looked = now
            self.live.update(self._table(progress, now), refresh=True)
        elif self.live is None and ended > self.said:
            self.said = ended
            shares = {cell: self._share(cell) for cell in progress.running}
            left = progress.left(now, shares)
            total = self.before + ended + len(progress.todo) + len(progress.running)
            time_left = "" if left is None else f", {duration(left)} left"
            self.say(f"{self.before + len(progress.finished)} of {total} cells done{time_left}")

    def say(self, line: str) -> None:
        """A line of its own."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _table(self, progress: Progress, now: float) -> Table:
        shares = {cell: self._share(cell) for cell in progress.running}
        left = progress.left(now, shares)
        done = self.before + len(progress.finished)
        total = done + len(progress.failed) + len(progress.todo) + len(progress.running)
        time_left = "" if left is None else f", {duration(left)} left"
        table = Table("cell", "state", title=f"{self.study.name}: {done} of {total} done{time_left}", box=None)
        for cell in progress.running:
            table.add_row(escape(cell.name), f"{shares[cell]:.0%}  {self._last(cell)}")
        for cell, reason in progress.failed.items():
            table.add_row(escape(cell.name), f"failed: {escape(reason)}")
        waiting = Counter(f"{cell.dataset}/{cell.model}" for cell in progress.todo)
        for group, count in waiting.items():
            table.add_row(escape(group), f"{count} waiting")
        return table

    def _share(self, cell: Cell) -> float:
        """How much of a cell is done, by the epochs in its folders."""
        values = self.study.values(cell)
        first = values.pop("first", None)
        epochs = RunConfig.from_dict(values).epochs + (RunConfig.from_dict(first).epochs if first else 0)
        rows = len(read_rows(self.work / cell.name / "first")) + len(read_rows(self.work / cell.name / "run"))
        return rows / epochs

    def _last(self, cell: Cell) -> str:
        rows = read_rows(self.work / cell.name / "run")
        return f"val {rows[-1]['val/top1']:.1f} %" if rows and "val/top1" in rows[-1] else ""
