"""Members of a search as tasks of a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitlet.errors import first_line
from vitlet.experiments.studies.ray_engine import connected
from vitlet.processes import LAUNCHER


class RayRun:
    """A run on a Ray cluster, with the methods of a process that a search uses."""

    def __init__(self, ray: Any, task: Any, log: Path) -> None:
        self.ray, self.task, self.log = ray, task, log
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code of the run, None while it is not finished."""
        ready, _ = self.ray.wait([self.task], timeout=0)
        if ready and self.returncode is None:
            try:
                self.returncode = self.ray.get(self.task)
            except self.ray.exceptions.RayError as problem:  # a lost node: the search can be resumed
                with self.log.open("a", encoding="utf-8") as file:
                    file.write(f"vitlet: Ray: {first_line(problem)}\n")
                self.returncode = 1
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Cancel the task; the run saves and ends once its worker is gone."""
        self.ray.cancel(self.task, force=True)

    def wait(self) -> None:
        """Wait until the cluster has given the task up."""
        self.ray.wait([self.task])


def start_on_ray(words: Sequence[str], log: Path, processes: int, address: str | None) -> RayRun:
    """Hand a command to the cluster, with a GPU if there are enough, otherwise with its share of the CPUs."""
    ray = connected(address)
    found = ray.cluster_resources()
    cores = max(1, int(found.get("CPU", 1)) // processes)
    needs = {"num_gpus": 1} if found.get("GPU", 0) >= processes else {"num_cpus": cores}
    remote = ray.remote(max_calls=1, max_retries=0, **needs)(_run)
    return RayRun(ray, remote.remote(list(words), log.absolute(), cores), log)


def _run(words: list[str], log: Path, cores: int) -> int:
    """Run the command in a worker; it ends with its worker."""
    own = {"OMP_NUM_THREADS": str(cores), LAUNCHER: str(os.getpid())}
    with log.open("ab") as file:
        command = [sys.executable, *words]
        return subprocess.run(command, stdout=file, stderr=file, env={**os.environ, **own}, check=False).returncode
