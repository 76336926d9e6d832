"""Members of a search trained at the same time: ordinary commands, a process each, on their share of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from vitlet.config import RunConfig
from vitlet.errors import InterruptedRunError, NotFiniteError, VitletError
from vitlet.experiments.studies.scheduler import POLL
from vitlet.processes import LAUNCHER, usable_cores
from vitlet.training.files import write_atomically
from vitlet.training.signals import Interrupts


def train_together(runs: Mapping[Path, RunConfig]) -> dict[Path, str]:
    """Train these runs, each in its own process; interrupted runs are resumed, finished ones skipped.

    With as many GPUs as runs each has one of its own, otherwise each has its share of the cores. Interrupted, all save
    and end. Returns the error messages of runs that diverged; any other error is raised.
    """
    started: dict[Path, subprocess.Popen[bytes]] = {}
    with Interrupts() as interrupts:
        for place, (run, config) in enumerate(runs.items()):
            if not (run / "result.json").is_file():
                started[run] = _start(run, config, place, len(runs))
        while any(process.poll() is None for process in started.values()):
            time.sleep(POLL)  # a look at the processes now and then, as a study does
            if interrupts.pending():
                for process in started.values():
                    process.send_signal(signal.SIGTERM)
                for process in started.values():
                    process.wait()
                raise InterruptedRunError("stopped")
    diverged: dict[Path, str] = {}
    for run, process in started.items():
        if process.returncode:
            lines = _log(run).read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
            said = next((line for line in reversed(lines) if line.startswith("vitlet: ")), lines[-1])
            message = f"{said.removeprefix('vitlet: ')} (see {_log(run)})"
            if process.returncode != NotFiniteError.code:
                raise VitletError(message)
            diverged[run] = message
    return diverged


def threads_of_each(processes: int) -> int:
    """Threads per process if this number of processes share the usable cores."""
    return max(1, usable_cores() // processes)


def _start(run: Path, config: RunConfig, place: int, processes: int) -> subprocess.Popen[bytes]:
    """Begin a run, or go on with it, by the command that a person would type."""
    run.parent.mkdir(parents=True, exist_ok=True)
    settings = run.with_suffix(".yaml")
    begun = (run / "config.yaml").is_file()
    words = ["--resume", str(run)] if begun else ["-c", str(settings), "--output", str(run)]
    write_atomically(settings, config.dump())
    own = {"OMP_NUM_THREADS": str(threads_of_each(processes)), LAUNCHER: str(os.getpid())}
    if torch.cuda.device_count() >= processes > 1:
        own["CUDA_VISIBLE_DEVICES"] = str(place)
    with _log(run).open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "vitlet", "train", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **own},
            start_new_session=True,  # a Ctrl-C reaches us alone; we pass it on
        )


def _log(run: Path) -> Path:
    return run.with_suffix(".log")
