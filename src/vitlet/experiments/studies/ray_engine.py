"""Cells of a study on a Ray cluster: a process and a core each, wherever there is one."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from vitlet.errors import VitletError, first_line
from vitlet.experiments.studies.definition import Cell
from vitlet.experiments.studies.scheduler import Place


class RayEngine:
    """Starts cells as Ray tasks; runs and data need to lie on storage that all nodes see.

    Args:
        place: the study's files.
        address: of the cluster; None: the one this machine belongs to, or a new one on this machine.
        processes: cells at once; None: one per core of the cluster.
    """

    def __init__(self, place: Place, *, address: str | None = None, processes: int | None = None) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise VitletError("--engine ray needs Ray: pip install 'vitlet[ray]'.") from None
        self.ray = ray
        self.place = place
        try:
            local = {"num_cpus": processes} if address is None and processes else {}
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False, **local)
        except (ConnectionError, ValueError, RuntimeError) as problem:
            raise VitletError(f"cannot reach the Ray cluster {address or 'here'}: {first_line(problem)}.") from problem
        self.slots = processes or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._remote = ray.remote(num_cpus=1, max_calls=1, max_retries=2)(_run)
        self._tasks: dict[Any, Cell] = {}

    def start(self, cell: Cell) -> None:
        """Hand a cell to the cluster."""
        work = (self.place.work / cell.name).absolute()
        data = self.place.data_dir.absolute() if self.place.data_dir else None
        task = self._remote.remote(
            str(self.place.file.absolute()), cell.name, str(self.place.output.absolute()), str(work), data and str(data)
        )
        self._tasks[task] = cell

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
        """Cancel what is running: each run goes on from its last checkpoint."""
        for task in self._tasks:
            self.ray.cancel(task, force=True)
        self.ray.shutdown()


def _run(file: str, name: str, output: str, work: str, data_dir: str | None) -> str | None:
    """A cell in a worker's process; returns the reason if it failed."""
    from vitlet.experiments.studies.cell import run_cell
    from vitlet.experiments.studies.definition import read_study

    try:
        study = read_study(Path(file))
        cell = next(cell for cell in study.cells() if cell.name == name)
        run_cell(study, cell, Path(work), Path(data_dir) if data_dir else None).write(Path(output))
    except Exception as problem:  # whatever it was, it is shown beside the cell
        known = isinstance(problem, VitletError)
        return str(problem) if known else f"{type(problem).__name__}: {first_line(problem)}"
    return None
