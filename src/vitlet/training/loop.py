"""The training loop: one process or many, interrupted at any moment or not, the same weights in the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.config import BaseConfig, RunConfig
from vitlet.data.images import Dataset
from vitlet.data.randomness import mix_seed
from vitlet.errors import InterruptedRunError, LostProcessError, NotFiniteError, VitletError, first_line
from vitlet.objective import Outcome
from vitlet.training.checkpoint import Checkpoints, save_tensors
from vitlet.training.classifier import make_autocast, prepare
from vitlet.training.distributed import World, joined, local_device, synchronised
from vitlet.training.evaluate import Scores
from vitlet.training.finish import Numbers, RunResult, finish, finished, score
from vitlet.training.job import Job, data_of, learned_from, other_data
from vitlet.training.loaders import Batches, training_batches
from vitlet.training.progress import Reporter
from vitlet.training.run_folder import Config, RunFolder, find_unfinished, read_config, resumed
from vitlet.training.signals import Interrupts
from vitlet.training.state import Means, State
from vitlet.training.trackers import open_trackers, require_trackers


def train(config: RunConfig, dataset: Dataset | None = None, *, title: str = "train") -> RunResult[Scores]:
    """Train a classifier, with any tasks beside it; the folder it returns holds everything.

    Bad settings and unreadable images are refused before anything is written. Started by torchrun, or by
    ``vitlet train --nproc``, in several processes, all of them call this. With ``config.resume`` a run goes on with its
    own settings; others than the defaults have to agree with them.

    Args:
        config: the settings.
        dataset: images of your own (such as `vitlet.data.images.Arrays`) in place of ``config.data``.
        title: what the progress is called.
    """

    def make(resolved: RunConfig, world: World) -> tuple[Job, Batches]:
        prepared = prepare(resolved, dataset)
        return prepared, training_batches(prepared, world)

    return train_job(config, make, Scores, title=title)


def train_job(
    config: Config, make: Callable[[Config, World], tuple[Job, Batches]], kind: type[Numbers], *, title: str
) -> RunResult[Numbers]:
    """The same for any kind of run.

    Args:
        config: the settings.
        make: from settings to what is trained and to this process's batches of it.
        kind: of the numbers that an evaluation gives.
        title: what the progress is called.
    """
    with joined(sharded=_is_sharded(config)) as world:
        try:
            return _train(config, make, kind, world, title)
        except RuntimeError as problem:
            raise _lost_process(problem, world) or problem from problem


def _train(
    config: Config,
    make: Callable[[Config, World], tuple[Job, Batches]],
    kind: type[Numbers],
    world: World,
    title: str,
) -> RunResult[Numbers]:
    require_trackers(config)
    if config.resume is not None:
        asked = config
        config = world.by_first(lambda: resumed(asked, _given(asked)))
        if config.resume not in (None, "auto") and (end := finished(Path(config.resume), kind)) is not None:
            return end
    job, batches = make(replace(config, device=local_device(config.device, world)), world)
    if config.resume == "auto":
        found = world.by_first(lambda: find_unfinished(job.config))
        config = replace(config, resume=None if found is None else str(found))
    folders: list[RunFolder] = []

    def open_folder() -> Path:
        run = RunFolder.reopen(Path(config.resume)) if config.resume else RunFolder.create(job.config)
        folders.append(run)
        return run.path

    path = world.by_first(open_folder)
    try:
        trainer = Trainer(job, batches, path, folders[0] if folders else None, world, title)
        trainer.run()
        return finish(trainer.state, job, path, folders[0] if folders else None, world, kind)
    finally:
        for run in folders:
            run.close()


def _given(config: BaseConfig) -> dict[str, Any]:
    """The settings that differ from the usual ones."""
    usual = type(config)().to_dict()
    return {key: value for key, value in config.to_dict().items() if value != usual.get(key)}


def _is_sharded(config: BaseConfig) -> bool:
    """Whether this run, or the one it continues, spreads its weights over processes."""
    stored = Path(config.resume or "auto")
    return config.fsdp or ((stored / "config.yaml").is_file() and read_config(stored, type(config)).fsdp)


def _lost_process(problem: RuntimeError, world: World) -> VitletError | None:
    """A sentence, if this is PyTorch's way to say that a process is gone."""
    text = first_line(problem)
    if "DataLoader" in str(problem):
        error = LostProcessError(f"a loading process is gone or stuck: {text}. With -j 0 none is needed.")
        error.everywhere = False
        return error
    if world.size > 1 and ("gloo" in text.lower() or "nccl" in text.lower() or "Connection" in text):
        return LostProcessError(f"another process of this run is gone: {text}.")
    return None


def evaluate(job: Job, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
    """An epoch's validation numbers, as they are logged."""
    return {f"val/{name}": value for name, value in job.validate(world, between, epoch).items()}


class Trainer:
    """The loop.

    Args:
        job: data, network and settings.
        batches: their order, and the batches themselves.
        path: of the run's folder.
        folder: the folder itself, in the first process.
        world: the processes.
        title: what the progress is called.
    """

    def __init__(
        self, job: Job, batches: Batches, path: Path, folder: RunFolder | None, world: World, title: str
    ) -> None:
        self.job, self.config, self.world, self.folder = job, job.config, world, folder
        config = self.config
        self.order, self.loader = batches
        self.state = State.begin(job, world)
        self.autocast, self.lr_at = make_autocast(config, job.device), job.learning_rate()
        self.interrupts, self.saved_at, self.saved = Interrupts(), time.monotonic(), ""
        self.checkpoints = Checkpoints(path / "checkpoints", config.checkpoint_hist)
        self.notes = self._restore() if config.resume else []
        self.reporter = Reporter(
            title,
            epochs=config.epochs,
            steps=self.order.steps,
            done=self.step,
            silent=not world.first,
        )

    @property
    def step(self) -> int:
        """Steps that are done, of the whole run."""
        return self.state.epoch * self.order.steps + self.state.step

    def run(self) -> None:
        """Train until the last epoch, or until someone wants it to stop."""
        if self.folder is not None:
            self.folder.trackers = open_trackers(self.config, self.folder.path, self.state.epoch)
            self.folder.write_rows(self.state.rows)  # those of epochs that will be trained again are gone
        with self.interrupts, self.reporter:
            for line in (learned_from(self.job), *self.notes, self._rules()):
                self.reporter.say(line)
            try:
                while self.state.epoch < self.config.epochs and not self._patience_is_over():
                    self._epoch()
            except InterruptedRunError:
                self._save()
                place = f"epoch {self.state.epoch + 1}, after {self.state.step} of its {self.order.steps} steps"
                path = self.checkpoints.folder.parent
                raise InterruptedRunError(
                    f"stopped in {place}. Nothing is lost; continue with: vitlet {self.config.JOB} --resume {path}"
                ) from None

    def _epoch(self) -> None:
        """The rest of the epoch under way, its evaluation, its row."""
        state, steps = self.state, self.order.steps
        self.order.epoch, self.order.start = state.epoch, state.step
        started, first = time.monotonic(), state.step
        self.state.module.train()
        if self.config.freeze:
            self.job.model.eval()
        batches = iter(self.loader) if state.step < steps else iter(())
        while state.step < steps:
            stop, due = self._step(batches)
            self.reporter.step()
            if stop:
                raise InterruptedRunError
            if due:
                self._save()
        seconds = time.monotonic() - started
        row: dict[str, Any] = {"epoch": state.epoch + 1, **state.means.over(self.world), "lr": self.lr_at(state.epoch)}
        row |= self._validate()
        row["images_per_second"] = (steps - first) * self.order.batch_size / max(seconds, 1e-9)
        better = self.job.validates and score(row) > max(map(score, state.rows), default=-math.inf)
        state.rows.append(row)
        state.epoch, state.step, state.means = state.epoch + 1, 0, Means()
        self._export(better)
        if self.folder is not None:
            self.folder.log(state.rows)
        self.reporter.epoch(row)

    def _step(self, batches: Iterator[Any]) -> tuple[bool, bool]:
        """One step of the optimizer; returns whether to stop, and whether to save."""
        config, state = self.config, self.state
        now = state.epoch + state.step / self.order.steps
        weights = state.objective.weights(now)
        for group in state.optimizer.param_groups:
            group["lr"] = self.lr_at(now) * group.get("lr_scale", 1.0)
        state.optimizer.zero_grad()
        outcomes: list[Outcome] = []
        for part in self.order.mine:
            batch = next(batches)
            torch.manual_seed(mix_seed(config.seed, self.step, part))  # of the network, the tasks and mixup
            images, labels = self.job.inputs(batch)
            with synchronised(state.module, part == self.order.mine[-1]):
                with self.autocast():
                    outcome: Outcome = state.module(images, labels, weights)
                state.scaler.scale(outcome.loss / len(self.order.mine)).backward()
            outcomes.append(outcome)
        state.scaler.unscale_(state.optimizer)
        norm = nn.utils.clip_grad_norm_(state.objective.parameters(), config.clip_grad or math.inf)
        stop, due = self._agree(outcomes, norm)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        for outcome in outcomes:
            state.means.add(outcome, self.order.batch_size // self.order.parts)
        if outcomes[0].norms and state.objective.balance is not None:
            state.objective.balance.update(self._norms(outcomes))
        state.step += 1
        if state.average is not None:
            state.average.update(self.step)
        return stop, due

    def _norms(self, outcomes: list[Outcome]) -> list[dict[str, float]]:
        """The gradient norms of all parts of the step, in their order whichever process had them."""
        mine = [
            (part, {name: float(norm) for name, norm in outcome.norms.items()})
            for part, outcome in zip(self.order.mine, outcomes, strict=True)
        ]
        found = [each for process in self.world.gather(mine) for each in process]
        return [norms for _, norms in sorted(found, key=lambda each: each[0])]

    def _agree(self, outcomes: list[Outcome], norm: Tensor) -> tuple[bool, bool]:
        """Before the optimizer's step: raise if any process has a loss or gradient that is not finite."""
        checked = [outcome.loss.detach() for outcome in outcomes]
        if not self.state.scaler.is_enabled():  # which leaves out steps with infinite gradients by itself
            checked.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        broken = not torch.stack(checked).isfinite().all().item()
        any_broken, stop, due = self.world.largest([broken, self.interrupts.pending(), self._save_is_due()])
        if any_broken:
            raise self._not_finite(outcomes, norm)
        return bool(stop), bool(due)

    def _not_finite(self, outcomes: list[Outcome], norm: Tensor) -> NotFiniteError:
        """What was being trained on when the loss or gradient broke, in a sentence and in full in a file."""
        mine = [
            {
                "process": self.world.rank,
                "loss": float(outcome.loss.detach()),
                "parts": {name: float(part) for name, part in outcome.parts.items()},
                "images": self.order.images(self.state.step, part),
            }
            for part, outcome in zip(self.order.mine, outcomes, strict=True)
        ]
        found = [each for process in self.world.gather(mine) for each in process]
        worst = next((each for each in found if not math.isfinite(each["loss"])), found[0])
        about: dict[str, Any] = {"epoch": self.state.epoch + 1, "step": self.state.step + 1, "seed": self.config.seed}
        about |= {"gradient_norm": float(norm), "parts_of_the_step": found}
        if self.folder is not None:
            self.folder.write_text("not_finite.json", json.dumps(about, indent=1))
        what = "gradient" if math.isfinite(worst["loss"]) else "loss"
        parts = ", ".join(f"{name} {value:g}" for name, value in worst["parts"].items())
        shown = ", ".join(map(str, worst["images"][:8])) + (", ..." if len(worst["images"]) > 8 else "")
        kept = sorted(self.checkpoints.folder.glob("step-*"))
        rest = f"The state of {kept[-1].name} is kept." if kept else "No state was saved before."
        return NotFiniteError(
            f"the {what} is not finite in epoch {about['epoch']}, step {about['step']} (seed {about['seed']}): {parts};"
            f" gradient norm {float(norm):g}; process {worst['process']}, training images {shown} (all of them in"
            f" {self.checkpoints.folder.parent / 'not_finite.json'}). The step was not taken. {rest} Lower --lr or the"
            " task's weight, or train without --amp."
        )

    def _validate(self) -> dict[str, float]:
        """An epoch's validation numbers."""
        if not self.job.validates:
            return {}
        state = self.state
        state.module.eval()
        self.world.share(state.objective.buffers())
        with state.averaged():
            return evaluate(self.job, self.world, self._stop_if_asked, state.epoch + 1)

    def _stop_if_asked(self) -> None:
        if self.world.largest([self.interrupts.pending()])[0]:
            raise InterruptedRunError

    def _patience_is_over(self) -> bool:
        """Whether the best epoch lies too far back."""
        rows, patience = self.state.rows, self.config.patience
        if patience is None or not self.job.validates or not rows:
            return False
        best = max(rows, key=lambda row: (score(row), -row["epoch"]))
        return int(rows[-1]["epoch"]) - int(best["epoch"]) >= patience

    def _export(self, better: bool) -> None:
        """After an epoch: the weights for other programs, and the state, each if it is due."""
        every, epoch = self.config.checkpoint_epochs, self.state.epoch
        last = epoch == self.config.epochs or self._patience_is_over()
        due = last or (every is not None and epoch % every == 0)
        if better or due:
            weights = self.state.weights()
            names = [name for name, wanted in (("best", better), ("last", due)) if wanted]
            self.world.by_first(lambda: self._write_weights(weights, names))
        if due:
            self._save()

    def _write_weights(self, weights: Mapping[str, Tensor], names: list[str]) -> None:
        assert self.folder is not None
        for name in names:
            self.folder.write_text(f"{name}/config.json", self.job.description)
            self.folder.write(f"{name}/model.safetensors", lambda path: save_tensors(weights, path))

    def _save_is_due(self) -> bool:
        """Whether the clock or the number of steps asks for a checkpoint after this step."""
        every, minutes = self.config.checkpoint_steps, self.config.checkpoint_minutes
        by_step = every is not None and (self.step + 1) % every == 0
        return by_step or (self.world.first and minutes is not None and time.monotonic() - self.saved_at > 60 * minutes)

    def _save(self) -> None:
        """A checkpoint of this very step, unless there is one."""
        name = f"step-{self.step:08d}" + ("" if self.state.step else "-evaluated")
        if self.saved == name:
            return
        about = {
            "step": self.step,
            "epoch": self.state.epoch,
            **data_of(self.job),
            "processes": self.world.size,
            "config": self.config.to_dict(),
        }
        aside = self.world.by_first(lambda: self.checkpoints.begin(name))
        self.checkpoints.save(name, about, lambda: self.state.write(aside, self.world), self.world)
        self.saved_at, self.saved = time.monotonic(), name

    def _restore(self) -> list[str]:
        """Go on from the newest whole checkpoint; sentences on what was found."""
        checkpoint, notes = self.world.by_first(self.checkpoints.newest)
        if checkpoint is None:
            return ["no checkpoint was saved before the run ended: from the start"]
        if problem := other_data(checkpoint.about, self.job):
            raise VitletError(f"cannot continue {checkpoint.path}: {problem}")
        self.state.read(checkpoint, self.world)
        self.saved = checkpoint.path.name
        place = f"epoch {self.state.epoch + 1}, step {self.state.step + 1}"
        return [*notes, f"continued from {checkpoint.path} at {place}"]

    def _rules(self) -> str:
        """How the batch is shared and where the learning rate comes from."""
        config, size = self.config, self.order.batch_size
        parts = f"{self.world.size} x {config.grad_accum_steps} x {size // self.order.parts}"
        return f"{size} images a step (processes x accumulated parts x images: {parts}), {config.learning_rate_rule}"
