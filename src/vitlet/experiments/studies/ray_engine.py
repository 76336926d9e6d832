"""Cells of a study on a Ray cluster: a process and a core each, wherever there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitlet.errors import VitletError, first_line, require_extra
from vitlet.experiments.studies.definition import Cell
from vitlet.experiments.studies.paths import StudyPaths


class RayEngine:
    """Runs cells as Ray tasks; runs and data must be on storage that all nodes share.

    Args:
        paths: the study's files.
        address: address of the cluster; None: the one this machine belongs to, or a new one on this machine.
        processes: cells at once; None: one per core of the cluster.
    """

    def __init__(self, paths: StudyPaths, *, address: str | None = None, processes: int | None = None) -> None:
        self.paths, self.ray = paths, connected(address, processes)
        ray = self.ray
        self.slots = processes or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_calls=1, max_retries=2)(_run)
        self._tasks: dict[Any, Cell] = {}

    def start(self, cell: Cell) -> None:
        """Hand a cell to the cluster."""
        folders = {"work": self.paths.work / cell.name, "output": self.paths.output, "data_dir": self.paths.data_dir}
        places = {name: folder and folder.absolute() for name, folder in folders.items()}
        self._tasks[self._remote.remote(self.paths.file.absolute(), cell.name, places)] = cell

    def ended(self) -> list[tuple[Cell, str | None]]:
        """The cells that have come to an end."""
        if not self._tasks:
            return []
        ready, _ = self.ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        found = []
        for task in ready:
            cell = self._tasks.pop(task)
            try:
                found.append((cell, self.ray.get(task)))
            except self.ray.exceptions.RayError as problem:
                found.append((cell, first_line(problem)))
        return found

    def stop(self) -> None:
        """Cancel all running cells; each can be resumed from its last checkpoint."""
        for task in self._tasks:
            self.ray.cancel(task, force=True)
        self.ray.shutdown()


def connected(address: str | None, processes: int | None = None) -> Any:
    """The module ray, connected to the cluster; without one, a new one with so many CPUs on this machine."""
    ray = require_extra("ray", "ray", "--engine ray")
    try:
        local = {"num_cpus": processes} if address is None and processes else {}
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False, **local)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        raise VitletError(f"cannot reach the Ray cluster {address or 'here'}: {first_line(problem)}.") from problem
    return ray


def _run(file: Path, name: str, folders: dict[str, Any]) -> str | None:
    """Run a cell in a worker's process; returns the reason if it failed."""
    from vitlet.experiments.studies.cell import run_named_cell

    try:
        run_named_cell(file, name, **folders)
    except Exception as problem:  # whatever it was, it is shown beside the cell
        known = isinstance(problem, VitletError)
        return str(problem) if known else f"{type(problem).__name__}: {first_line(problem)}"
    return None
