"""Paths of a study's files, and a lock for writing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from vitlet.errors import VitletError
from vitlet.experiments.studies.definition import Cell
from vitlet.experiments.studies.records import record_path


@dataclass(frozen=True)
class StudyPaths:
    """Paths of a study's files.

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
        """Command that runs a cell."""
        data = ["--data-dir", str(self.data_dir)] if self.data_dir else []
        words = [str(self.file), cell.name, "--output", str(self.output), "--work", str(self.work / cell.name)]
        return [sys.executable, "-m", "vitlet.experiments.studies.cell", *words, *data]

    def log(self, cell: Cell) -> Path:
        """The file of what a cell printed."""
        return self.work / cell.name / "log.txt"

    def failure(self, cell: Cell, code: int) -> str | None:
        """Why a cell failed, from what it printed; None if it did not."""
        if code == 0 and record_path(self.output, cell).is_file():
            return None
        lines = self.log(cell).read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
        said = next((line for line in reversed(lines) if line.startswith("vitlet: ")), lines[-1])
        return f"{said.removeprefix('vitlet: ')} (exit code {code}; see {self.log(cell)})"


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Hold the folder of a study's runs: what two commands ran there at once would be run twice, or fail."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(work / ".lock", timeout=0).acquire()
    except Timeout:
        raise VitletError(
            f"another `vitlet study` is at work in {work}: wait until it ends, or stop it, then repeat the command."
        ) from None
    except OSError as problem:
        raise VitletError(f"{work} cannot be the folder of the runs: {problem.strerror}. Change --work.") from problem
    with lock:
        yield
