"""Saves checkpoints and exported weights during a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vitlet.errors import VitletError
from vitlet.training.checkpoint import Checkpoints, save_tensors
from vitlet.training.clock import Stopwatch
from vitlet.training.distributed import World
from vitlet.training.job import Job, data_of, other_data
from vitlet.training.run_folder import RunFolder
from vitlet.training.state import State


class Saver:
    """Checkpoints and exported weights of one run; all processes call it alike.

    Args:
        job: what is trained.
        state: what it has come to.
        path: path of the run's folder.
        folder: the folder itself, in the first process.
        world: the processes.
        watch: stopwatch of a budget.
    """

    def __init__(
        self, job: Job, state: State, path: Path, folder: RunFolder | None, world: World, watch: Stopwatch | None = None
    ) -> None:
        self.watch = watch
        self.job, self.state, self.path, self.folder, self.world = job, state, path, folder, world
        self.checkpoints = Checkpoints(path / "checkpoints", job.config.checkpoint_hist)
        self._data = data_of(job)  # now: later the files may be others
        self._at, self._name = time.monotonic(), ""  # of the newest checkpoint

    def is_due(self) -> bool:
        """Whether a checkpoint is due after this step, by time or by number of steps."""
        every, minutes = self.job.config.checkpoint_steps, self.job.config.checkpoint_minutes
        by_step = every is not None and (self.state.steps_done + 1) % every == 0
        return by_step or (self.world.first and minutes is not None and time.monotonic() - self._at > 60 * minutes)

    def save(self) -> None:
        """A checkpoint of this very step, unless there is one."""
        state = self.state
        name = f"step-{state.steps_done:08d}" + ("" if state.step else "-evaluated")
        if self._name == name:
            return
        about = {
            "step": state.steps_done,
            "epoch": state.epoch,
            **self._data,
            "processes": self.world.size,
            "config": self.job.config.to_dict(),
        }
        used = self.watch.used(self.job.config) if self.watch is not None else 0.0
        aside = self.world.by_first(lambda: self.checkpoints.begin(name))
        self.checkpoints.save(name, about, lambda: state.write(aside, self.world, used), self.world)
        self._at, self._name = time.monotonic(), name

    def restore(self) -> list[str]:
        """Restore the newest complete checkpoint; returns notes on it."""
        checkpoint, notes = self.world.by_first(self.checkpoints.newest)
        if checkpoint is None:
            return ["no checkpoint was saved before the run ended: from the start"]
        if problem := other_data(checkpoint.about, self.job):
            raise VitletError(f"cannot continue {checkpoint.path}: {problem}")
        self.state.read(checkpoint, self.world)
        self._name = checkpoint.path.name
        place = f"epoch {self.state.epoch + 1}, step {self.state.step + 1}"
        return [*notes, f"continued from {checkpoint.path} at {place}"]

    def after_epoch(self, *, better: bool, last: bool) -> None:
        """The weights for other programs, and the state, each if it is due."""
        every = self.job.config.checkpoint_epochs
        due = last or (every is not None and self.state.epoch % every == 0)
        if better or due:
            weights = self.state.weights()
            names = [name for name, wanted in (("best", better), ("last", due)) if wanted]
            self.world.by_first(lambda: self._write_weights(weights, names))
        if due:
            self.save()

    def _write_weights(self, weights: Mapping[str, Tensor], names: list[str]) -> None:
        assert self.folder is not None
        for name in names:
            self.folder.write_text(f"{name}/config.json", self.job.description)
            self.folder.write(f"{name}/model.safetensors", lambda path: save_tensors(weights, path))
