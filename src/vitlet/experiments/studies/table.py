"""Progress display of a study: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from vitlet.config import RunConfig
from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.scheduler import StudyProgress
from vitlet.training.progress import duration
from vitlet.training.run_folder import read_rows

REFRESH = 2.0
"""Seconds between two looks at the runs' own files."""


class Board(ExitStack):
    """Shows a study's progress; leaving it ends the display.

    Args:
        study: the study.
        work: folder of its runs.
        before: cells that were finished before.
    """

    def __init__(self, study: Study, work: Path, before: int) -> None:
        super().__init__()
        self.study, self.work, self.before = study, work, before
        self.console = Console()
        live = Live(console=self.console, auto_refresh=False)
        self.live = self.enter_context(live) if self.console.is_terminal else None
        self.looked, self.said = 0.0, 0

    def show(self, progress: StudyProgress) -> None:
        """The state of things, now and then."""
        now = time.monotonic()
        ended = len(progress.finished) + len(progress.failed)
        over = not progress.todo and not progress.running
        if self.live is not None and (now - self.looked > REFRESH or over):
            self.looked = now
            self.live.update(self._table(progress), refresh=True)
        elif self.live is None and ended > self.said:
            self.said = ended
            self.say(self._summary(progress, {cell: self._share(cell) for cell in progress.running}, "cells done"))

    def say(self, line: str) -> None:
        """Print a line."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _summary(self, progress: StudyProgress, shares: dict[Cell, float], done: str) -> str:
        """Such as ``3 of 12 done, 1:20 left``."""
        finished = self.before + len(progress.finished)
        total = finished + len(progress.failed) + len(progress.todo) + len(progress.running)
        left = progress.left(time.monotonic(), shares)
        return f"{finished} of {total} {done}" + ("" if left is None else f", {duration(left)} left")

    def _table(self, progress: StudyProgress) -> Table:
        shares = {cell: self._share(cell) for cell in progress.running}
        title = f"{self.study.name}: {self._summary(progress, shares, 'done')}"
        table = Table("cell", "state", title=title, box=None)
        for cell in progress.running:
            rows = read_rows(self.work / cell.name / "run")
            last = f"val {rows[-1]['val/top1']:.1f} %" if rows and "val/top1" in rows[-1] else ""
            table.add_row(escape(cell.name), f"{shares[cell]:.0%}  {last}")
        for cell, reason in progress.failed.items():
            table.add_row(escape(cell.name), f"failed: {escape(reason)}")
        for group, count in Counter(f"{cell.dataset}/{cell.model}" for cell in progress.todo).items():
            table.add_row(escape(group), f"{count} waiting")
        return table

    def _share(self, cell: Cell) -> float:
        """How much of a cell is done, by the epochs in its folders."""
        values = self.study.values(cell)
        phases = [values.pop("first", None), values]
        rows = sum(len(read_rows(self.work / cell.name / name)) for name in ("first", "run"))
        return rows / sum(RunConfig.from_dict(phase).last_epoch for phase in phases if phase)
