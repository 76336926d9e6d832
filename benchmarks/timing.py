"""What the benchmarks share: CPU time of one run, whole runs of vitlet, and a report that says where."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch

from vitlet.statistics import student


def cpu_ms(run: Callable[[], object]) -> float:
    """CPU time of one run, in milliseconds."""
    start = time.process_time()
    run()
    return 1000 * (time.process_time() - start)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half width of its 95 % interval (Student's)."""
    found = student(values)
    return found.value, found.high - found.value


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a table of finished runs, none where there is no table yet."""
    if not file.is_file():
        return []
    with file.open(newline="") as found:
        return list(csv.DictReader(found))


def append_row(file: Path, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    """Add a finished run to a table; keys that are no columns are left out."""
    new = not file.is_file()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def run(words: list[str], output: Path) -> None:
    """``vitlet WORDS`` on one thread until it has ended, from where it was."""
    if not (output / "result.json").is_file():
        command = [sys.executable, "-m", "vitlet", *words, "--output", str(output), "--resume", "auto"]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


class PeakMemory:
    """MiB that this process grows by, at its peak, from here on; where the system tells (Linux)."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the mark starts again from here
        self.before = self._mib("VmRSS")

    @property
    def growth(self) -> float:
        """The most so far."""
        return self._mib("VmHWM") - self.before

    def _mib(self, name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def processor() -> str:
    """The processor's name, where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


class Report:
    """Lines that are printed as they come, and written to a file at the end if one was asked for."""

    def __init__(self, title: str, docstring: str | None, output: Path | None) -> None:
        self.output = output
        self.lines: list[str] = []
        machine = f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, one thread"
        place = (
            f"`{' '.join(['python', *sys.argv])}`, {datetime.date.today()}; {machine};"
            f" torch {torch.__version__}, timm {timm.__version__}."
        )
        self.add([f"# {title}", "", place, "", *(docstring or "").strip().splitlines()[2:]])

    def add(self, lines: Iterable[str]) -> None:
        """Print these lines, and keep them."""
        for line in lines:
            self.lines.append(line)
            print(line, flush=True)

    def close(self) -> None:
        """Write the file."""
        if self.output:
            self.output.write_text("\n".join(self.lines) + "\n")
