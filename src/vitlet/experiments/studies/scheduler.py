"""Scheduler of a study: runs unfinished cells, each in its own process, and reports progress."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from vitlet.errors import InterruptedRunError
from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.paths import StudyPaths
from vitlet.processes import LAUNCHER
from vitlet.training.signals import Interrupts

if TYPE_CHECKING:
    from vitlet.experiments.studies.ray_engine import RayEngine

POLL = 0.5
"""Seconds between two looks at the processes."""


@dataclass
class StudyProgress:
    """State of the cells at one moment."""

    todo: list[Cell]
    finished: list[Cell] = field(default_factory=list)
    running: dict[Cell, float] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    slots: int = 1

    def left(self, now: float, shares: dict[Cell, float]) -> float | None:
        """Seconds until the end, by the time that cells have taken so far; None while nothing is known."""
        running = [(now - start) / shares[cell] for cell, start in self.running.items() if shares.get(cell, 0) > 0.1]
        open_cells = len(self.todo) + sum(1 - shares.get(cell, 0) for cell in self.running)
        known = [*self.seconds, *running]
        return fmean(known) * open_cells / self.slots if known else None


class LocalEngine:
    """Starts cells as processes on this machine, one thread each; `RayEngine` does the same on a cluster."""

    def __init__(self, paths: StudyPaths, slots: int) -> None:
        self.paths, self.slots = paths, slots
        self.processes: dict[Cell, subprocess.Popen[bytes]] = {}

    def start(self, cell: Cell) -> None:
        """Begin a cell; its output goes into its folder."""
        log = self.paths.log(cell)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", LAUNCHER: str(os.getpid())}
        with log.open("wb") as file:
            self.processes[cell] = subprocess.Popen(
                self.paths.command(cell),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # a Ctrl-C reaches us alone; we pass it on
            )

    def ended(self) -> list[tuple[Cell, str | None]]:
        """The cells that have come to an end since, each with the reason if it failed."""
        gone = {cell: process for cell, process in self.processes.items() if process.poll() is not None}
        return [(cell, self.paths.failure(cell, self.processes.pop(cell).returncode)) for cell in gone]

    def stop(self) -> None:
        """Ask every process to save and end; wait for that."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait()


def run_study(
    study: Study, cells: Sequence[Cell], engine: LocalEngine | RayEngine, show: Callable[[StudyProgress], None]
) -> StudyProgress:
    """Run these cells; a failed one does not stop the rest. Interrupted, all that run save and end."""
    progress = StudyProgress(list(cells), slots=engine.slots)
    with Interrupts() as interrupts:
        while progress.todo or progress.running:
            while progress.todo and len(progress.running) < engine.slots:
                cell = progress.todo.pop(0)
                progress.running[cell] = time.monotonic()
                engine.start(cell)
            show(progress)
            time.sleep(POLL)
            if interrupts.pending():
                engine.stop()
                raise InterruptedRunError(
                    f"study {study.name} stopped; running cells are saved. The same command continues it."
                )
            for cell, problem in engine.ended():
                seconds = time.monotonic() - progress.running.pop(cell)
                if problem is None:
                    progress.finished.append(cell)
                    progress.seconds.append(seconds)
                else:
                    progress.failed[cell] = problem
        show(progress)
    return progress
