"""Learning curve in a folder: ordinary runs one after another, then the fit and the conclusions.

A command that was stopped or killed goes on: its plan is in the record, finished runs are not trained again, and a run
that was interrupted continues from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from vitlet.analysis.learning_curve import CurveFit
from vitlet.analysis.probes import centred, extract, linear_accuracy
from vitlet.config import RunConfig
from vitlet.data.images import Dataset, Subset
from vitlet.data.sources import load_dataset
from vitlet.data.splits import keep
from vitlet.errors import InterruptedRunError
from vitlet.experiments.learn_curve.answer import answer_of
from vitlet.experiments.learn_curve.picture import draw_curve
from vitlet.experiments.learn_curve.record import (
    CURVE_FILE,
    PICTURE,
    CurveRecord,
    MeasuredCurveRun,
    PlannedRun,
)
from vitlet.experiments.learn_curve.request import CurveRequest, measured_split
from vitlet.training.clock import Stopwatch
from vitlet.training.inputs import data_request
from vitlet.training.jobs import build_job
from vitlet.training.loop import train
from vitlet.training.progress import duration
from vitlet.training.run_folder import RunFolder

OVERTIME = 1.1
"""Times its minutes that a command may take before it leaves out further seeds."""

LEAST_SEEDS = 2
"""Of every size, before any run is left out."""


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
        """Seconds of the budget used so far."""
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
        dataset = self._dataset(own)
        result = train(own, dataset, title=planned.name, given={})
        scores = result.val if self.record.split == "val" else result.test
        assert scores is not None
        self._add(planned, len(dataset.train), scores.top1, scores.count, self.seconds() - began)

    def _dataset(self, own: RunConfig) -> Dataset:
        """The images of a run; all sizes of a seed are measured on the same ones, however small the subset."""
        dataset = load_dataset(data_request(own))
        whole = load_dataset(data_request(replace(own, fraction=self.config.fraction)))
        return measured_split(replace(dataset, val=whole.val), self.record.split)

    def _add(self, planned: PlannedRun, images: int, accuracy: float, tested: int, seconds: float) -> None:
        measured = MeasuredCurveRun(
            planned.name,
            planned.kind,
            planned.share,
            images,
            planned.seed,
            planned.epochs,
            planned.model,
            accuracy,
            tested,
            seconds,
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
