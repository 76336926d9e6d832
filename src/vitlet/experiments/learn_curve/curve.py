"""A learning curve in its folder: the runs one after another, each an ordinary run, then the fit and the answer.

A command that was stopped or killed goes on: its plan is in the record, finished runs are not trained again, and a run
that was interrupted continues from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitlet.analysis.learning_curve import CurveFit
from vitlet.analysis.probes import centred, extract, linear_accuracy
from vitlet.config import RunConfig
from vitlet.data.images import Dataset, Subset
from vitlet.data.sources import load_dataset
from vitlet.data.splits import keep
from vitlet.errors import InterruptedRunError, VitletError
from vitlet.experiments.learn_curve import plan as planning
from vitlet.experiments.learn_curve.answer import answer_of
from vitlet.experiments.learn_curve.picture import draw_curve
from vitlet.experiments.learn_curve.record import (
    CURVE_FILE,
    PICTURE,
    CurveRecord,
    MeasuredCurveRun,
    PlannedRun,
    is_curve,
    read_curve,
)
from vitlet.training.budget import measure_speed
from vitlet.training.choice import Choice
from vitlet.training.clock import Stopwatch
from vitlet.training.inputs import data_request
from vitlet.training.jobs import build_job
from vitlet.training.loop import train
from vitlet.training.progress import duration
from vitlet.training.resume import differences
from vitlet.training.run_folder import RunFolder, next_free

OVERTIME = 1.1
"""Times its minutes that a command may take before it leaves out further seeds."""

LEAST_SEEDS = 2
"""Of every size, before any run is left out."""


@dataclass(frozen=True)
class CurveRequest:
    """What is asked for.

    Attributes:
        config: settings of a run on all images, completed.
        given: those that the user named.
        choice: which they are from; None for a model that was named.
        minutes: for everything; None where the epochs were given.
        seeds: runs of each size.
        split: what accuracy is measured on: val or test.
        target: accuracy in percent that is wanted.
    """

    config: RunConfig
    given: Mapping[str, Any]
    choice: Choice | None
    minutes: float | None
    seeds: int
    split: Any
    target: float | None

    @property
    def frozen(self) -> bool:
        """Whether a linear classifier on frozen features is measured in place of trained networks."""
        return bool(self.config.freeze)


def measured_split(dataset: Dataset, split: str) -> Dataset:
    """The data without the images that nothing is measured on; refuses data that has none to measure on."""
    if dataset.splits().get(split) is None:
        what = "validation images; leave --val-fraction above 0" if split == "val" else "test images; use --split val"
        raise VitletError(f"{dataset.note}: there are no {what}.")
    return replace(dataset, test=None) if split == "val" else replace(dataset, val=None)


def plan_curve(request: CurveRequest, watch: Stopwatch) -> CurveRecord:
    """The record of a new curve; everything is checked, and a speed test made, before anything is written."""
    config = request.config
    dataset = load_dataset(data_request(config))
    if request.choice is not None and request.choice.source is not None:
        dataset = request.choice.source
    dataset = measured_split(dataset, request.split)
    shares = planning.subset_shares(dataset.train, dataset.classes)
    sizes = {share: len(keep(dataset.train, fraction=share, seed=config.seed)) for share in shares}
    if len(set(sizes.values())) < len(sizes):
        raise VitletError(f"{len(dataset.train)} training images leave no {planning.SUBSETS} different subsets.")
    if request.frozen:
        plan = tuple(
            PlannedRun("size", share, config.seed + seed, 0, 0, config.model, 0.0)
            for seed in range(request.seeds)
            for share in shares
        )
        return CurveRecord(config.to_dict(), request.split, request.minutes, plan)
    usual = {part: planning.lengths(config, request.choice, request.given, size) for part, size in sizes.items()}
    job = build_job(replace(config, minutes=None, epochs=usual[1.0].epochs), dataset)
    speed = measure_speed(job)
    costs = planning.measured_costs(job, speed, dataset)
    found: dict[str, Any] = {**speed.settings, "autotune": False, "device": config.device}
    config = replace(job.asked, **found)

    def plan_of(share: float) -> tuple[PlannedRun, ...]:
        return planning.planned_runs(sizes, usual, config, request.seeds, costs, share)

    share, runs = 1.0, plan_of(1.0)
    if request.minutes is not None:
        share, runs = planning.fit_into(
            request.minutes, watch.used(RunConfig(minutes=1.0)), config, len(dataset.train), plan_of
        )
    return CurveRecord(config.to_dict(), request.split, request.minutes, runs, round(share, 3))


def open_curve(request: CurveRequest, watch: Stopwatch) -> tuple[Path, CurveRecord]:
    """The folder and the record of a curve: new, or begun before with the same settings."""
    config = request.config
    path = Path(config.output) if config.output else next_free(Path("runs"), replace(config, model="learn-curve"))
    if is_curve(path) and not config.overwrite:
        record = read_curve(path)
        found = ("amp", "channels_last", "autotune", "epochs", "minutes")  # by the speed test and the plan
        stored, asked = (
            {k: v for k, v in each.items() if k not in found} for each in (record.settings, config.to_dict())
        )
        if different := differences(stored, asked, RunConfig, "the curve"):
            raise VitletError(
                f"cannot go on with the learning curve {path} with other settings: {'; '.join(different)}. Choose"
                " another --output, or replace it with --overwrite."
            )
        return path, record
    if path.is_dir() and any(path.iterdir()) and not is_curve(path):
        raise VitletError(f"{path} holds other files and is no learning curve; choose another --output.")
    record = plan_curve(request, watch)
    if is_curve(path):
        RunFolder(path).write_text(CURVE_FILE, record.dump())
    return path, record


class LearnCurve:
    """The runs of a record, trained in its folder.

    Args:
        path: of the folder.
        record: new, or of a curve that was begun.
        request: what was asked for.
        watch: since when the minutes count in this process.
        say: prints a line.
    """

    def __init__(
        self, path: Path, record: CurveRecord, request: CurveRequest, watch: Stopwatch, say: Callable[[str], None]
    ) -> None:
        self.path, self.record, self.request, self.watch, self.say = path, record, request, watch, say
        self.config = replace(RunConfig.from_dict(record.settings), output=None, overwrite=False, resume=None)
        self.folder, self.before = RunFolder(path), record.seconds

    def seconds(self) -> float:
        """That are used of the time."""
        return self.before + self.watch.used(RunConfig(minutes=1.0))

    def run(self) -> CurveRecord:
        """Measure what is left of the plan, fit, and draw."""
        self.folder.acquire()
        try:
            self._save()
            if self.request.frozen:
                self._measure_frozen()
            else:
                self._train_all()
            fit = CurveFit(self.record.points())
            self.record = replace(self.record, answer=answer_of(self.record, fit, self.request.target))
            self._save()
            self.folder.write(PICTURE, lambda file: draw_curve(self.record, fit, self.request.target, file))
        except InterruptedRunError:
            self._save()
            raise InterruptedRunError(
                f"stopped after {len(self.record.runs)} of {len(self.record.plan)} runs. Nothing is lost: the same"
                f" command with --output {self.path} goes on."
            ) from None
        finally:
            self.folder.close()
        return self.record

    def _train_all(self) -> None:
        for number, planned in enumerate(self.record.plan, 1):
            done = [run.name for run in self.record.runs]
            if planned.name in done or planned.name in self.record.left_out:
                continue
            if self._too_late(planned):
                self.record = replace(self.record, left_out=(*self.record.left_out, planned.name))
                self.say(f"left out, for the time is up: {planned.name}")
                continue
            self.say(f"run {number} of {len(self.record.plan)}: {planned.name}, about {duration(planned.seconds)}")
            self._train(planned)

    def _too_late(self, planned: PlannedRun) -> bool:
        """Whether this run would end after the time, and all sizes have their seeds without it."""
        if self.record.minutes is None or planned.seed < self.config.seed + LEAST_SEEDS:
            return False
        return self.seconds() + planned.seconds > OVERTIME * 60 * self.record.minutes

    def _train(self, planned: PlannedRun) -> None:
        output, began = self.path / "runs" / planned.name, self.seconds()
        own = replace(
            self.config,
            fraction=self.config.fraction * planned.share,
            seed=planned.seed,
            epochs=planned.epochs,
            batch_size=planned.batch_size,
            model=planned.model,
            minutes=None,
            val_interval=planned.epochs,  # the last epoch alone: choosing among many would flatter small subsets
            checkpoint_epochs=max(1, planned.epochs // 10),
            output=str(output),
            resume=str(output) if (output / "config.yaml").is_file() else None,
        )
        dataset = measured_split(load_dataset(data_request(own)), self.record.split)
        result = train(own, dataset, title=planned.name, given={})
        scores = result.val if self.record.split == "val" else result.test
        assert scores is not None
        self._add(planned, len(dataset.train), scores.top1, scores.count, self.seconds() - began)

    def _add(self, planned: PlannedRun, images: int, accuracy: float, tested: int, seconds: float) -> None:
        measured = MeasuredCurveRun(
            planned.name, planned.kind, images, planned.seed, planned.epochs, planned.model, accuracy, tested, seconds
        )
        self.record = replace(self.record, runs=(*self.record.runs, measured))
        self._save()
        self.say(f"{planned.name}: {images:,} images, {accuracy:.2f} %")

    def _measure_frozen(self) -> None:
        """A logistic regression for each subset on features that are computed once."""
        dataset = measured_split(load_dataset(data_request(self.config)), self.record.split)
        held = dataset.splits()[self.record.split]
        job = build_job(replace(self.config, minutes=None), dataset)
        (known,), labels = extract(dataset.train, job.model, job.config, job.device)
        (queries,), answers = extract(held, job.model, job.config, job.device)
        for planned in self.record.plan:
            if planned.name in [run.name for run in self.record.runs]:
                continue
            began, subset = self.seconds(), keep(dataset.train, fraction=planned.share, seed=planned.seed)
            chosen = torch.tensor(subset.indices if isinstance(subset, Subset) and subset is not dataset.train else [
                *range(len(labels))
            ])  # fmt: skip
            features, asked = centred(known[chosen], queries)
            accuracy = linear_accuracy(features, labels[chosen], asked, answers)
            self._add(planned, len(chosen), accuracy, len(answers), self.seconds() - began)

    def _save(self) -> None:
        self.record = replace(self.record, seconds=self.seconds())
        self.folder.write_text(CURVE_FILE, self.record.dump())
