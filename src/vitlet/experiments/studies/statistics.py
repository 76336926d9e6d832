"""What the cells of a study say together: means and intervals over seeds, and differences of the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.records import Record
from vitlet.statistics import student


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half width of its 95 % interval (Student's); None with one seed."""

    mean: float
    half: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        """From one number per seed."""
        if len(values) < 2:
            return Estimate(values[0], None, len(values))
        found = student(values)
        return Estimate(found.value, found.high - found.value, len(values))

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is larger than its interval."""
        return self.half is not None and abs(self.mean) > self.half

    def shown(self, sign: str = "") -> str:
        """Such as ``+1.2 ± 0.5``."""
        half = "" if self.half is None else f" ± {self.half:.2f}"
        return f"{self.mean:{sign}.2f}{half}"


@dataclass(frozen=True)
class Row:
    """An arm of a study on one dataset with one model: accuracies in percent, differences in points.

    Attributes:
        best: at the epoch that is best on the validation images; on which images, `accuracies` tells.
        last: at the last epoch.
        gain: of the same seeds, less the baseline; None for the baseline itself.
        wins: seeds with a larger number than the baseline's.
        epochs_to_baseline: first epoch whose validation accuracy reaches the baseline's last one, mean over the seeds
            that reach it; ``reached`` counts them, ``raced`` those that could.
        cost: CPU time over the baseline's of the same seeds, where both are known.
        paper: the published number.
    """

    dataset: str
    model: str
    fraction: float
    arm: str
    best: Estimate
    last: Estimate | None
    gain: Estimate | None
    wins: int
    epochs: int
    epochs_to_baseline: float | None
    reached: int
    raced: int
    cost: float | None
    paper: float | None
    train_images: int


def accuracies(study: Study, records: Mapping[Cell, Record]) -> tuple[str, dict[Cell, float]]:
    """Which images a study's numbers are of, test or validation, and the number of every record that has one.

    All are of the same images: where some records have a test number, those without one have no number here.
    """
    tested = study.test and any(record.test_best is not None for record in records.values())
    found = {cell: record.test_best if tested else record.val_best for cell, record in records.items()}
    return "test" if tested else "validation", {cell: value for cell, value in found.items() if value is not None}


def summarise(study: Study, records: Mapping[Cell, Record]) -> list[Row]:
    """A row for every arm that has a number, in the study's order; pairs are seeds that both arms have."""
    _, numbers = accuracies(study, records)
    rows = []
    for dataset in study.datasets:
        for model in study.models:
            for fraction in study.fractions:
                arms = {
                    arm: {
                        seed: (numbers[cell], records[cell])
                        for seed in study.seeds
                        if (cell := Cell(dataset, model, arm, fraction, seed)) in numbers
                    }
                    for arm in study.arms
                }
                rows += [
                    _row(study, (dataset, model, fraction, arm), of_arm, arms.get(study.baseline, {}))
                    for arm, of_arm in arms.items()
                    if of_arm
                ]
    return rows


def _row(
    study: Study,
    place: tuple[str, str, float, str],
    of_arm: Mapping[int, tuple[float, Record]],
    baseline: Mapping[int, tuple[float, Record]],
) -> Row:
    dataset, model, fraction, arm = place
    gains = [number - baseline[seed][0] for seed, (number, _) in of_arm.items() if seed in baseline]
    pairs = [(record, baseline[seed][1]) for seed, (_, record) in of_arm.items() if seed in baseline]
    is_baseline = arm == study.baseline
    epochs = [first_reaching(own.val_curve, other.val_curve) for own, other in pairs if other.val_curve]
    reached = [epoch for epoch in epochs if epoch is not None]
    last = [record.test_last for _, record in of_arm.values() if study.test and record.test_last is not None]
    costs = [own.cpu_seconds / other.cpu_seconds for own, other in pairs if own.cpu_seconds and other.cpu_seconds]
    _, some = next(iter(of_arm.values()))
    return Row(
        dataset=dataset,
        model=model,
        fraction=fraction,
        arm=arm,
        best=Estimate.of([number for number, _ in of_arm.values()]),
        last=Estimate.of(last) if last else None,
        gain=Estimate.of(gains) if gains and not is_baseline else None,
        wins=sum(gain > 0 for gain in gains),
        epochs=len(some.val_curve),
        epochs_to_baseline=statistics.fmean(reached) if reached else None,
        reached=len(reached),
        raced=len(epochs),
        cost=statistics.fmean(costs) if costs and not is_baseline else None,
        paper=study.paper(dataset, model, arm),
        train_images=some.train_images,
    )


def first_reaching(curve: Sequence[float], baseline: Sequence[float]) -> int | None:
    """The first epoch, from 1, at which a curve is at least where the baseline ended."""
    if not baseline:
        return None
    return next((epoch for epoch, value in enumerate(curve, 1) if value >= baseline[-1]), None)
