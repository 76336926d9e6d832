"""The training loop: one process or many, interrupted at any moment or not, the same weights in the end.

In short::

    join the other processes; decide whether a run is resumed; build the job; open the run folder
    train its teacher, if it asks for one
    for each epoch:
        for each step:
            for each micro-batch of this process:
                loss = objective(images, labels)        # criterion + weighted tasks
                backward
            clip the gradient; stop all processes if anything is not finite
            optimizer step; update the moving average of the weights
            save a checkpoint if it is due, or if someone wants the run to stop
        validate; log a row; export the weights; save a checkpoint
    test the best weights once; write the result and the curves

Randomness has no state: a step draws by (seed, step, micro-batch), so a resumed run needs only its position.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitlet.config import BaseConfig, RunConfig
from vitlet.data.images import Dataset
from vitlet.data.randomness import mix_seed
from vitlet.errors import InterruptedRunError
from vitlet.objective import Outcome
from vitlet.training.budget import count_time, last_epoch_in_time, left_open, planned_job, planned_settings
from vitlet.training.choice import Choice
from vitlet.training.clock import Sizes, Stopwatch, budget_seconds
from vitlet.training.distributed import World, joined, local_device, lost_process, synchronised
from vitlet.training.evaluate import Scores
from vitlet.training.finish import RunResult, finish, finished, score
from vitlet.training.job import Batches, Job
from vitlet.training.jobs import ImageJob, job_class
from vitlet.training.not_finite import not_finite_error, one_value_error
from vitlet.training.optim import make_autocast
from vitlet.training.progress import Above, Reporter
from vitlet.training.resume import find_unfinished, given_settings, is_sharded, resumed
from vitlet.training.run_folder import RunFolder
from vitlet.training.saver import Saver
from vitlet.training.signals import Interrupts
from vitlet.training.state import Means, State
from vitlet.training.summaries import opening_lines
from vitlet.training.teachers import train_teachers
from vitlet.training.trackers import open_trackers, require_trackers

AnyConfig = TypeVar("AnyConfig", bound=BaseConfig)


def train(
    config: RunConfig,
    dataset: Dataset | None = None,
    *,
    title: str = "train",
    given: Mapping[str, Any] | None = None,
    open_tasks: bool = False,
    watch: Stopwatch | None = None,
    choice: Choice | None = None,
    above: Above | None = None,
) -> RunResult[Scores]:
    """Train a classifier, with or without tasks; returns the result and the run folder.

    Bad settings and unreadable images are refused before anything is written. Started by torchrun, or by
    ``vitlet train --nproc``, in several processes, all of them call this. With ``config.resume`` a run continues with
    its own settings; those that are given again must agree with them.

    Args:
        config: the settings.
        dataset: your own images (such as `vitlet.data.images.Arrays`) instead of ``config.data``.
        title: title of the progress lines.
        given: settings that the user named (default: those that differ from the defaults).
        open_tasks: whether a new run without tasks gets those that were measured to help on such data.
        watch: start of the time budget (default: now).
        choice: the automatic choice that these settings are from; its reasons are printed and saved.
        above: what a terminal shows above the progress.

    Example:
        >>> result = vitlet.train(vitlet.RunConfig(data="photos", epochs=50))
        >>> print(result.val.top1, result.path)
    """
    options = {"dataset": dataset, "open_tasks": open_tasks, "choice": choice}
    return train_job(config, job_class, title=title, given=given, watch=watch, above=above, **options)


def train_job(
    config: AnyConfig,
    find_job: Callable[[AnyConfig], type[Job]],
    *,
    title: str,
    given: Mapping[str, Any] | None = None,
    watch: Stopwatch | None = None,
    above: Above | None = None,
    **options: Any,
) -> RunResult[Any]:
    """Train any kind of job.

    Args:
        config, title, given, watch, above: as in `train`.
        find_job: the kind of job of the settings, once it is known which run is resumed.
        options: further arguments of the job's ``build``.
    """
    watch = watch or Stopwatch()
    with joined(sharded=is_sharded(config)) as world:
        try:
            return _train(config, find_job, world, title, given, options, watch, above)
        except RuntimeError as problem:
            raise lost_process(problem, world) or problem from problem
        except ValueError as problem:
            if (error := one_value_error(problem)) is None:
                raise
            raise error from problem


def _train(
    config: AnyConfig,
    find_job: Callable[[AnyConfig], type[Job]],
    world: World,
    title: str,
    given: Mapping[str, Any] | None,
    options: dict[str, Any],
    watch: Stopwatch,
    above: Above | None,
) -> RunResult[Any]:
    require_trackers(config)
    # A run that is resumed brings its own settings; the first process looks, all get its answer.
    if config.resume is not None:
        asked = config
        config = world.by_first(lambda: resumed(asked, given_settings(asked) if given is None else given))
        if config.resume not in (None, "auto"):
            if (end := finished(Path(config.resume), find_job(config).SCORES)) is not None:
                return end
            options |= dict.fromkeys(options.keys() & {"open_tasks", "choice"})  # it has its settings
    # Everything is checked while the job is built; only then is anything written.
    job = find_job(config).build(replace(config, device=local_device(config.device, world)), **options)
    speed_line = ""
    if config.resume == "auto":
        found = world.by_first(lambda: find_unfinished(job.config, left_open(job)))
        config = replace(config, resume=None if found is None else str(found))
        if found is not None and isinstance(job, ImageJob):
            job = job.rebuilt(**planned_settings(found))
    if isinstance(job, ImageJob) and config.resume is None:
        job, speed_line = planned_job(job, world, watch)
    batches = job.batches(world)
    folders: list[RunFolder] = []  # of the first process alone

    def open_folder() -> Path:
        run = RunFolder.reopen(Path(config.resume)) if config.resume else RunFolder.create(job.config, job.choices)
        folders.append(run)
        return run.path

    path = world.by_first(open_folder)
    try:
        folder = folders[0] if folders else None
        own = partial(train, dataset=options.get("dataset"), watch=watch.restarted())
        train_teachers(job.objective, job.config, path, own)
        resumes = bool(config.resume)
        trainer = Trainer(job, batches, path, folder, world, title, resumes=resumes, watch=watch, above=above)
        trainer.notes += [speed_line] if speed_line else []
        trainer.run()
        return finish(trainer.state, job, path, folder, world)
    finally:
        for run in folders:
            run.close()


class Trainer:
    """The loop.

    Args:
        job: data, network and settings.
        batches: batches of this process, with their order.
        path: path of the run's folder.
        folder: the folder itself, in the first process.
        world: the processes.
        title: what the progress is called.
        resumes: go on from the newest checkpoint in the folder.
        watch: since when a budget counts.
        above: what a terminal shows above the progress.
    """

    def __init__(
        self,
        job: Job,
        batches: tuple[Batches, Any],
        path: Path,
        folder: RunFolder | None,
        world: World,
        title: str,
        *,
        resumes: bool = False,
        watch: Stopwatch | None = None,
        above: Above | None = None,
    ) -> None:
        self.watch = watch or Stopwatch()
        self.job, self.config, self.world, self.folder = job, job.config, world, folder
        self.order, self.loader = batches
        self.state = State.begin(job, world, self.order.steps)
        self.autocast, self.lr_at = make_autocast(self.config, job.device), job.learning_rate()
        self.interrupts = Interrupts()
        self.saver = Saver(job, self.state, path, folder, world, self.watch)
        self.sizes: Sizes | None = getattr(job, "sizes", None)
        if self.sizes is not None:
            self.order.size_at = self._size_at  # type: ignore[attr-defined]
        if (speed := getattr(job, "speed", None)) is not None:
            self.state.clock.expect(speed.steps, speed.validation, speed.test)
        self.notes = self.saver.restore() if resumes else []
        steps, done, last = self.order.steps, self.state.steps_done, self.last_epoch
        self.reporter = Reporter(title, epochs=last, steps=steps, done=done, silent=not world.first, above=above)

    def run(self) -> None:
        """Train until the last epoch, or until someone wants it to stop."""
        if self.folder is not None:
            self.folder.trackers = open_trackers(self.config, self.folder.path, self.state.epoch)
            self.folder.write_rows(self.state.rows)  # those of epochs that will be trained again are gone
        with self.interrupts, self.reporter:
            self._open()
            try:
                while self.state.epoch < self.last_epoch and not self._patience_is_over():
                    self._epoch()
                    self._plan_again()
            except InterruptedRunError:
                self.saver.save()
                place = f"epoch {self.state.epoch + 1}, after {self.state.step} of its {self.order.steps} steps"
                raise InterruptedRunError(
                    f"stopped in {place}; the state is saved. Continue with:"
                    f" vitlet {self.config.JOB} --resume {self.saver.path}"
                ) from None

    @property
    def last_epoch(self) -> int:
        """The epoch, counted from 1, that the run ends with."""
        return self.config.stop_epoch or math.ceil(self.state.clock.last)

    def _size_at(self, epoch: float) -> tuple[int, int]:
        """The size of the training images at a (fractional) epoch of a run whose images grow."""
        assert self.sizes is not None
        return self.sizes(self.state.clock.planned(epoch))

    def _plan_again(self) -> None:
        """Plan the rest of a run with a budget again if steps are slower or faster than expected."""
        state, clock = self.state, self.state.clock
        last = self.world.by_first(lambda: last_epoch_in_time(state, self.config, self.sizes, self.watch))
        if last != clock.last:
            clock.end_after(state.epoch, last)
            self.reporter.epochs = self.last_epoch
            self.reporter.say_length(clock.pace)

    def _open(self) -> None:
        """Print model, data and settings, and warnings about the data."""
        lines = opening_lines(self.job, self.order, self.world.size)
        if self.world.first and (wrong := self.job.complaints()):
            lines.append(f"note on the data: {'; '.join(wrong)}. More by: vitlet scan {shlex.quote(self.config.data)}")
        for line in (*lines, *self.notes):
            self.reporter.say(line)

    def _epoch(self) -> None:
        """The rest of the epoch under way, its evaluation, its row."""
        state = self.state
        steps = state.clock.steps_in(state.epoch, self.order.steps)
        self.order.epoch, self.order.start = state.epoch, state.step
        started, first = time.monotonic(), state.step
        before = self.watch.used(self.config)
        state.module.train()
        if self.config.freeze:
            self.job.model.eval()
        batches = iter(self.loader) if state.step < steps else iter(())
        while state.step < steps:
            stop, due = self._step(batches)
            self.reporter.step(state.means.loss)
            if stop:
                raise InterruptedRunError
            if due:
                self.saver.save()
        seconds = time.monotonic() - started
        if self.job.pixels is not None:
            size_at = self._size_at if self.sizes else None
            trained = self.watch.used(self.config) - before
            count_time(state, self.job.pixels, size_at, first, trained, budget_seconds(self.config))
        rate = self.lr_at(state.clock.planned(state.epoch))
        row: dict[str, Any] = {"epoch": state.epoch + 1, **state.means.over(self.world), "lr": rate}
        last, interval = state.epoch + 1 == self.last_epoch, self.config.val_interval or 1
        if last or (state.epoch + 1) % interval == 0:
            before = self.watch.used(self.config)
            row |= self._validate()
            state.clock.count_validation(self.watch.used(self.config) - before)
        row["images_per_second"] = (steps - first) * self.order.batch_size / max(seconds, 1e-9)
        better = self.job.validates and score(row) > max(map(score, state.rows), default=-math.inf)
        state.rows.append(row)
        state.epoch, state.step, state.means = state.epoch + 1, 0, Means()
        self.saver.after_epoch(better=better, last=last or self._patience_is_over())
        if self.folder is not None:
            self.folder.log(state.rows)
        self.reporter.epoch(row)

    def _step(self, batches: Iterator[Any]) -> tuple[bool, bool]:
        """One step of the optimizer; returns whether to stop, and whether to save."""
        config, state = self.config, self.state
        # 0. A job without gradients, such as a logistic regression on frozen features, is fitted in one step.
        if (fitted := self.job.fit(self._stop_if_asked)) is not None:
            state.means.add(fitted, self.order.batch_size)
            state.step += 1
            return self.interrupts.pending(), False
        # 1. The learning rate and the weights of the tasks at this moment.
        now = state.clock.planned(state.epoch + state.step / self.order.steps)
        weights = state.objective.weights(now)
        for group in state.optimizer.param_groups:
            group["lr"] = self.lr_at(now) * group.get("lr_scale", 1.0)
        state.optimizer.zero_grad()
        # 2. Forward and backward of each micro-batch. Gradients travel between processes with the last one only.
        outcomes: list[Outcome] = []
        for part in self.order.mine:
            batch = next(batches)
            # For dropout, the tasks' samples and mixup: the same draws whichever process has this micro-batch.
            torch.manual_seed(mix_seed(config.seed, state.steps_done, part))
            images, labels = self.job.inputs(batch, now)
            with synchronised(state.module, part == self.order.mine[-1]):
                with self.autocast():
                    outcome: Outcome = state.module(images, labels, weights)
                state.scaler.scale(outcome.loss / len(self.order.mine)).backward()
            outcomes.append(outcome)
        # 3. Clip, and agree with the other processes that everything is finite before any weight moves.
        state.scaler.unscale_(state.optimizer)
        norm = nn.utils.clip_grad_norm_(state.objective.parameters(), config.clip_grad or math.inf)
        stop, due = self._agree(outcomes, norm)
        # 4. The step itself.
        state.scaler.step(state.optimizer)
        state.scaler.update()
        # 5. What is kept of it: running means, the balance of the tasks, the position, the average of the weights.
        for outcome in outcomes:
            state.means.add(outcome, self.order.batch_size // self.order.parts)
        if outcomes[0].norms and state.objective.balance is not None:
            state.objective.balance.update(self._norms(outcomes))
        state.step += 1
        if state.average is not None:
            state.average.update(state.steps_done)
        return stop, due

    def _norms(self, outcomes: list[Outcome]) -> list[dict[str, float]]:
        """The gradient norms of all micro-batches of the step, in their order whichever process had them."""
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
        # One message for three questions: is anything broken, does anyone want to stop, is a checkpoint due?
        any_broken, stop, due = self.world.largest([broken, self.interrupts.pending(), self.saver.is_due()])
        if any_broken:
            raise not_finite_error(outcomes, norm, self.state, self.order, self.saver, self.world)
        return bool(stop), bool(due)

    def _validate(self) -> dict[str, float]:
        """An epoch's validation numbers, as they are logged; and those of the test images, if they are watched."""
        if not self.job.validates and not self.job.watches_test:
            return {}
        state = self.state
        row: dict[str, float] = {}
        state.module.eval()
        with state.averaged():
            self.world.share(state.objective.buffers())  # inside, for the average has running means of its own
            if self.job.validates:
                with self.reporter.validation(self.job.validation_batches(self.world)):
                    epoch = state.clock.planned(state.epoch + 1)
                    found = self.job.validate(self.world, self._stop_if_asked, epoch)
                row |= {f"val/{name}": value for name, value in found.items()}
            if self.job.watches_test:
                row |= {f"test/{name}": value for name, value in self.job.test(self.world).to_dict().items()}
        return row

    def _stop_if_asked(self) -> None:
        """Stop between two batches of a validation if requested."""
        self.reporter.validated()
        if self.world.largest([self.interrupts.pending()])[0]:
            raise InterruptedRunError

    def _patience_is_over(self) -> bool:
        """Whether the best epoch is too long ago (early stopping)."""
        rows, patience = self.state.rows, self.config.patience
        if patience is None or not self.job.validates or not rows:
            return False
        best = max(rows, key=lambda row: (score(row), -row["epoch"]))
        return int(rows[-1]["epoch"]) - int(best["epoch"]) >= patience
