"""What a person sees while a run goes on: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

VALIDATION_NAMES = {"val/top1": "val", "test/top1": "test", "val/box_AP": "val box AP", "val/mIoU": "val mIoU"}
"""The validation number of an epoch's line, whichever there is."""


class Reporter:
    """Tells of steps and epochs.

    Args:
        title: what the run is called.
        epochs: how many there will be.
        steps: per epoch.
        done: steps that were done before (a continued run).
        silent: say nothing (another process does).
    """

    def __init__(
        self,
        title: str,
        *,
        epochs: int,
        steps: int,
        done: int = 0,
        silent: bool = False,
        console: Console | None = None,
    ) -> None:
        self.console = console or Console(quiet=silent)
        self.title, self.epochs, self.steps, self.done = title, epochs, steps, done
        self.started = time.monotonic()
        self.bar: Progress | None = None
        if self.console.is_terminal and not silent:
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
                title, total=epochs * steps, completed=done, epoch=done // steps, epochs=epochs, note="starting"
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

    def say(self, line: str) -> None:
        """A line of its own."""
        self.console.print(f"{self.title}: {line}", highlight=False, markup=False, soft_wrap=True)

    def epoch(self, row: Mapping[str, Any]) -> None:
        """An epoch is done and evaluated."""
        number = int(row["epoch"])
        note = f"loss {row['train/loss']:.3f}"
        main = next((key for key in VALIDATION_NAMES if key in row), None)
        if main is not None:
            note += f"  {VALIDATION_NAMES[main]} {row[main]:.2f}%"
        elif "val/loss" in row:
            note += f"  val loss {row['val/loss']:.3f}"
        note += f"  {row['images_per_second']:.0f} images/s  {peak_memory() / 2**30:.1f} GiB"
        if self.bar is not None:
            self.bar.update(self.line, epoch=number, note=note)
            return
        spent = time.monotonic() - self.started
        left = spent / max(1, number * self.steps - self.done) * (self.epochs - number) * self.steps
        lines = max(1, self.epochs // 20)  # about twenty lines for a run of any length
        if number % lines == 0 or number == self.epochs:
            self.say(f"epoch {number}/{self.epochs}  {note}  {duration(left)} left")


def peak_memory() -> int:
    """The most bytes that this process has held: on the accelerator, else in memory (0 where nobody tells)."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
