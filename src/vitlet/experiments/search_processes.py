"""Members of a search trained at the same time: ordinary commands, a process each, on this machine or a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vitlet.config import RunConfig
from vitlet.errors import InterruptedRunError, NotFiniteError, VitletError
from vitlet.experiments.studies.scheduler import POLL
from vitlet.processes import LAUNCHER, usable_cores
from vitlet.training.files import write_atomically
from vitlet.training.search_folder import Workers
from vitlet.training.signals import Interrupts

if TYPE_CHECKING:
    from vitlet.experiments.search_ray import RayRun


def train_together(runs: Mapping[Path, RunConfig], workers: Workers | None = None) -> dict[Path, str]:
    """Train these runs, each in its own process; interrupted runs are resumed, finished ones skipped.

    With as many GPUs as runs each has one of its own, otherwise each has its share of the cores. Interrupted, all save
    and end. Returns the error messages of runs that diverged; any other error is raised. On a Ray cluster a run has
    a GPU or a share of the CPUs of any node; folders and data must be on storage that all nodes share.
    """
    started: dict[Path, subprocess.Popen[bytes] | RayRun] = {}
    with Interrupts() as interrupts:
        for place, (run, config) in enumerate(runs.items()):
            if not (run / "result.json").is_file():
                words = _words(run, config)
                if workers and workers.engine == "ray":
                    from vitlet.experiments.search_ray import start_on_ray

                    started[run] = start_on_ray(words, _log(run), len(runs), workers.address)
                else:
                    started[run] = _start(words, _log(run), place, len(runs))
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


def _words(run: Path, config: RunConfig) -> list[str]:
    """The command that starts or resumes a run; its settings are written beside its folder."""
    run.parent.mkdir(parents=True, exist_ok=True)
    settings = run.with_suffix(".yaml")
    begun = (run / "config.yaml").is_file()
    write_atomically(settings, config.dump())
    words = ["--resume", str(run.absolute())] if begun else ["-c", str(settings.absolute())]
    return ["-m", "vitlet", "train", *words, *([] if begun else ["--output", str(run.absolute())])]


def _start(words: Sequence[str], log: Path, place: int, processes: int) -> subprocess.Popen[bytes]:
    """Start the command on this machine."""
    own = {"OMP_NUM_THREADS": str(threads_of_each(processes)), LAUNCHER: str(os.getpid())}
    if torch.cuda.device_count() >= processes > 1:
        own["CUDA_VISIBLE_DEVICES"] = str(place)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **own},
            start_new_session=True,  # a Ctrl-C reaches us alone; we pass it on
        )


def _log(run: Path) -> Path:
    return run.with_suffix(".log")
