"""Progress display of a run: a bar with the remaining time on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

VALIDATION_NAMES = {"val/top1": "val", "test/top1": "test", "val/box_AP": "val box AP", "val/mIoU": "val mIoU"}
"""The validation number of an epoch's line, whichever there is."""


SAID = 0.05
"""Share of its epochs by which a run has to end earlier or later before that is said."""

Above = Callable[[], RenderableType]
"""Makes what is shown above the bar of a run on a terminal, such as the table of the search that it belongs to."""


class Bars(Progress):
    """Progress bars below something that changes with them, and disappears with them."""

    above: Above | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """Renderables shown at this moment."""
        if self.above is not None:
            yield self.above()
        yield from super().get_renderables()


class Reporter:
    """Tells of steps and epochs.

    Args:
        title: what the run is called.
        epochs: how many there will be.
        steps: per epoch.
        done: steps that were done before (a continued run).
        silent: say nothing (another process does).
        above: what a terminal shows above the bar.
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
        above: Above | None = None,
    ) -> None:
        self.console = console or Console(quiet=silent)
        self.title, self.epochs, self.steps, self.done = title, epochs, steps, done
        self.now, self.started, self.said = done, time.monotonic(), epochs
        self.next_line = 2.0  # seconds after which a plain line tells of steps; short epochs need none
        self.bar: Bars | None = None
        self.checking: TaskID | None = None
        if self.console.is_terminal and not silent:
            self.bar = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[place]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),  # rich's own forgets steps older than 30 s: slow ones had none
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=above is not None,
            )
            self.bar.above = above
            self.line = self.bar.add_task(
                title, total=epochs * steps, completed=done, place=self._place(), left="", note="starting"
            )

    def __enter__(self) -> Reporter:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, loss: float) -> None:
        """One more step is done; ``loss`` is the mean of its epoch so far."""
        self.now += 1
        if self.bar is not None:
            self.bar.update(
                self.line, completed=self.now, place=self._place(), left=self._left(), note=f"loss {loss:.3f}"
            )
        elif (spent := time.monotonic() - self.started) >= self.next_line:
            self.next_line = 2 * spent
            step = (self.now - 1) % self.steps + 1
            self.say(f"{self._place()}, step {step}/{self.steps}  loss {loss:.3f}  {self._left()}")

    @contextmanager
    def validation(self, batches: int) -> Iterator[None]:
        """Separate progress bar for a validation on this number of batches; `validated` advances it."""
        if self.bar is not None:
            self.checking = self.bar.add_task("validation", total=batches, place=self._place(), left="", note="")
        try:
            yield
        finally:
            if self.bar is not None and self.checking is not None:
                self.bar.remove_task(self.checking)

    def validated(self) -> None:
        """One more batch of the validation."""
        if self.bar is not None and self.checking is not None:
            self.bar.advance(self.checking)

    def _place(self) -> str:
        """The epoch under way, from 1."""
        return f"epoch {max(1, -(-self.now // self.steps))}/{self.epochs}"

    def _left(self) -> str:
        """The time that is left, by the mean of all steps so far with the validations between them."""
        spent = time.monotonic() - self.started
        return f"{duration(spent / max(1, self.now - self.done) * (self.epochs * self.steps - self.now))} left"

    def say(self, line: str) -> None:
        """Print a line."""
        self.console.print(f"{self.title}: {line}", highlight=False, markup=False, soft_wrap=True)

    def say_length(self, pace: float) -> None:
        """The run has another number of epochs now, for its steps take ``pace`` times as long as was expected."""
        if abs(self.epochs - self.said) > SAID * self.said:  # a busy machine changes its pace all the time
            self.say(f"steps take {pace:.2f} times as long as expected: {self.epochs} epochs instead of {self.said}")
            self.said = self.epochs

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
            self.bar.update(self.line, left=self._left(), note=note)
            return
        lines = max(1, self.epochs // 20)  # about twenty lines for a run of any length
        if number % lines == 0 or number == self.epochs:
            self.next_line = 2 * (time.monotonic() - self.started)
            self.say(f"{self._place()}  {note}  {self._left()}")


def peak_memory() -> int:
    """Peak memory of this process in bytes: on the accelerator, else in RAM (0 if unknown)."""
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
