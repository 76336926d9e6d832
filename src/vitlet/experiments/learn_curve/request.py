"""Request of a learning curve, its plan, and its folder, new or resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlet.config import RunConfig
from vitlet.data.images import Dataset
from vitlet.data.sources import load_dataset
from vitlet.data.splits import keep
from vitlet.errors import VitletError
from vitlet.experiments.learn_curve import plan as planning
from vitlet.experiments.learn_curve.record import CURVE_FILE, PICTURE, CurveRecord, PlannedRun, is_curve, read_curve
from vitlet.training.budget import measure_speed
from vitlet.training.choice import Choice
from vitlet.training.clock import Stopwatch
from vitlet.training.files import delete
from vitlet.training.inputs import data_request
from vitlet.training.jobs import build_job
from vitlet.training.resume import differences
from vitlet.training.run_folder import next_free


@dataclass(frozen=True)
class CurveRequest:
    """Settings of a learning curve.

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
        """Whether a linear classifier on frozen features is measured instead of trained models."""
        return bool(self.config.freeze)


def label_leak(config: RunConfig) -> str:
    """A note where frozen features were learned with labels of this very data, which flatters subsets; or nothing."""
    run = Path(config.init or "")
    if not (config.freeze and (run / "config.yaml").is_file()):
        return ""
    first = RunConfig.read(run / "config.yaml")
    if first.get("pretrain") or first.get("data") != config.data:
        return ""
    return (
        f"note: {run} was trained with labels of {config.data} itself: its features know images that are left out or"
        " measured on here, so accuracies are too high and the curve too flat. Use features of other data, or of"
        " `vitlet pretrain`"
    )


def measured_split(dataset: Dataset, split: str) -> Dataset:
    """The data without the images that nothing is measured on; refuses data that has none to measure on."""
    if dataset.splits().get(split) is None:
        what = "validation images; leave --val-fraction above 0" if split == "val" else "test images; use --split val"
        raise VitletError(f"{dataset.note}: there are no {what}.")
    return replace(dataset, test=None) if split == "val" else replace(dataset, val=None)


def plan_curve(request: CurveRequest, watch: Stopwatch) -> CurveRecord:
    """The record of a new curve; everything is checked, and a speed test made, before anything is written."""
    config = request.config
    source = request.choice.source if request.choice else None
    dataset = measured_split(source or load_dataset(data_request(config)), request.split)
    shares = planning.subset_shares(dataset.train, dataset.classes)
    sizes = {share: len(keep(dataset.train, fraction=share, seed=config.seed)) for share in shares}
    if len(set(sizes.values())) < len(sizes):
        raise VitletError(f"{len(dataset.train)} training images leave no {planning.SUBSETS} different subsets.")
    if request.frozen:
        plan = tuple(
            PlannedRun("size", share, config.seed + seed, 0, 0, config.model, 0.0)
            for seed in range(request.seeds)
            for share in shares
            if share < 1 or seed == 0  # all images give the same classifier whatever the seed
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
    """Folder and record of a learning curve, new or resumed with the same settings."""
    config = request.config
    path = Path(config.output) if config.output else next_free(Path("runs"), replace(config, model="learn-curve"))
    if is_curve(path) and not config.overwrite:
        record = read_curve(path)
        _require_same(path, record, request)
        return path, record
    if path.is_dir() and any(path.iterdir()) and not is_curve(path):
        raise VitletError(f"{path} holds other files and is no learning curve; choose another --output.")
    record = plan_curve(request, watch)
    for name in (PICTURE, "report.html", "runs", CURVE_FILE):  # the record last: what is half deleted is still a curve
        if (path / name).exists():
            delete(path / name)
    return path, record


def _require_same(path: Path, record: CurveRecord, request: CurveRequest) -> None:
    """Refuse to go on with a curve of other settings; the target may be another."""
    by_plan = ("amp", "channels_last", "autotune", "epochs", "minutes")
    stored, asked = (
        {key: value for key, value in each.items() if key not in by_plan}
        for each in (record.settings, request.config.to_dict())
    )
    different = differences(stored, asked, RunConfig, "the curve")
    largest = next(run for run in record.plan if run.share == 1)
    pairs = {"split": (request.split, record.split), "seeds": (request.seeds, len({run.seed for run in record.plan}))}
    if request.minutes is None and not request.frozen:
        pairs["epochs"] = (request.config.epochs, largest.epochs)
    different += [f"{key} {new!r} (the curve has {old!r})" for key, (new, old) in pairs.items() if new != old]
    if different:
        raise VitletError(
            f"cannot go on with the learning curve {path} with other settings: {'; '.join(different)}. Choose another"
            " --output, or replace it with --overwrite."
        )
