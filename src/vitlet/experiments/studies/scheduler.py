"""Runs the cells of a study that are not finished, each in a process of its own, and tells how far they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from vitlet.errors import InterruptedRunError, VitletError
from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.records import record_path
from vitlet.training.signals import LAUNCHER, Interrupts

POLL = 0.5
"""Seconds between two looks at the processes."""


@dataclass(frozen=True)
class Place:
    """Where a study's files are.

    Attributes:
        file: the study's YAML file.
        output: folder of its records.
        work: folder of its runs.
        data_dir: folder of the datasets.
    """

    file: Path
    output: Path
    work: Path
    data_dir: Path | None = None

    def command(self, cell: Cell) -> list[str]:
        """What runs a cell."""
        data = ["--data-dir", str(self.data_dir)] if self.data_dir else []
        words = [str(self.file), cell.name, "--output", str(self.output), "--work", str(self.work / cell.name)]
        return [sys.executable, "-m", "vitlet.experiments.studies.cell", *words, *data]


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Hold the folder of a study's runs: what two commands ran there at once would be run twice, or fail."""
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise VitletError(f"{work} cannot be the folder of the runs: {problem.strerror}. Change --work.") from problem
    lock = FileLock(work / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise VitletError(
            f"another `vitlet study` is at work in {work}: wait until it ends, or stop it, then repeat the command."
        ) from None
    try:
        yield
    finally:
        lock.release()


@dataclass
class Progress:
    """What is known of the cells at a moment."""

    todo: list[Cell]
    finished: list[Cell] = field(default_factory=list)
    running: dict[Cell, float] = field(default_factory=dict)
    failed: dict[Cell, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    slots: int = 1

    def left(self, now: float, shares: dict[Cell, float]) -> float | None:
        """Seconds until the end, by the time that cells have taken so far; None while nothing is known."""
        known = list(self.seconds)
        known += [(now - start) / shares[cell] for cell, start in self.running.items() if shares.get(cell, 0) > 0.1]
        if not known:
            return None
        each = sum(known) / len(known)
        open_cells = len(self.todo) + sum(1 - shares.get(cell, 0) for cell in self.running)
        return each * open_cells / self.slots


class Engine(Protocol):
    """Starts cells, somewhere."""

    slots: int

    def start(self, cell: Cell) -> None:
        """Begin a cell."""

    def ended(self) -> list[tuple[Cell, str | None]]:
        """The cells that have come to an end since, each with the reason if it failed."""

    def stop(self) -> None:
        """End what is running, each run saved."""


class LocalEngine:
    """Processes on this machine, one thread each."""

    def __init__(self, place: Place, slots: int) -> None:
        self.place, self.slots = place, slots
        self.processes: dict[Cell, subprocess.Popen[bytes]] = {}

    def start(self, cell: Cell) -> None:
        """Begin a cell; its output goes into its folder."""
        log = log_path(self.place.work, cell)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", LAUNCHER: str(os.getpid())}
        with log.open("wb") as file:
            self.processes[cell] = subprocess.Popen(
                self.place.command(cell),
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # a Ctrl-C reaches us alone; we pass it on
            )

    def ended(self) -> list[tuple[Cell, str | None]]:
        """The cells whose processes are gone."""
        found = []
        for cell, process in list(self.processes.items()):
            if process.poll() is not None:
                del self.processes[cell]
                found.append((cell, reason(self.place, cell, process.returncode)))
        return found

    def stop(self) -> None:
        """Ask every process to save and end; wait for that."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait()


def log_path(work: Path, cell: Cell) -> Path:
    """What a cell printed."""
    return work / cell.name / "log.txt"


def reason(place: Place, cell: Cell, code: int) -> str | None:
    """Why a cell failed, from what it printed; None if it did not."""
    if code == 0 and record_path(place.output, cell).is_file():
        return None
    lines = log_path(place.work, cell).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = next((line for line in reversed(lines) if line.startswith("vitlet: ")), lines[-1] if lines else "no output")
    return f"{said.removeprefix('vitlet: ')} (exit code {code}; see {log_path(place.work, cell)})"


def run_study(study: Study, cells: Sequence[Cell], engine: Engine, show: Callable[[Progress], None]) -> Progress:
    """Run these cells; a failed one does not stop the rest. Interrupted, all that run save and end."""
    progress = Progress(list(cells), slots=engine.slots)
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
                    f"study {study.name} stopped; what was running is saved. The same command goes on."
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
