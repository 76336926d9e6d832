"""What a person sees while a run goes on: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Reporter:
    """Tells of steps and epochs.

    Args:
        title: what the run is called.
        epochs: how many there will be.
        steps: per epoch.
        done: epochs that were done before (a continued run).
    """

    def __init__(self, title: str, *, epochs: int, steps: int, done: int = 0, console: Console | None = None) -> None:
        self.console = console or Console()
        self.title, self.epochs, self.steps, self.done = title, epochs, steps, done
        self.started = time.monotonic()
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
            )
            self.line = self.bar.add_task(
                title, total=(epochs - done) * steps, epoch=done, epochs=epochs, note="starting"
            )

    def __enter__(self) -> Reporter:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self) -> None:
        """One more step is done."""
        if self.bar is not None:
            self.bar.advance(self.line)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """An epoch is done and evaluated."""
        number = int(row["epoch"])
        note = f"loss {row['train/loss']:.3f}"
        if "val/top1" in row:
            note += f"  val {row['val/top1']:.2f}%"
        elif "val/loss" in row:
            note += f"  val loss {row['val/loss']:.3f}"
        if self.bar is not None:
            self.bar.update(self.line, epoch=number, note=note)
            return
        spent = time.monotonic() - self.started
        left = spent / (number - self.done) * (self.epochs - number)
        lines = max(1, self.epochs // 20)  # about twenty lines for a run of any length
        if number % lines == 0 or number == self.epochs:
            text = f"{self.title}: epoch {number}/{self.epochs}  {note}  {duration(left)} left"
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
