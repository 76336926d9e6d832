"""Statistics of a study: means and intervals over seeds, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

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
        """Create from one number per seed."""
        if len(values) < 2:
            return Estimate(values[0], None, len(values))
        found = student(values)
        return Estimate(found.value, found.high - found.value, len(values))

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is larger than its interval."""
        return self.half is not None and abs(self.mean) > self.half

    def shown(self, sign: str = "") -> str:
        """Text such as ``+1.2 ± 0.5``."""
        half = "" if self.half is None else f" ± {self.half:.2f}"
        return f"{self.mean:{sign}.2f}{half}"


@dataclass(frozen=True)
class Row:
    """An arm of a study on one dataset with one model: accuracies in percent, differences in points.

    Attributes:
        best: at the epoch that is best on the validation images; on which images, `accuracies` tells.
        last: at the last epoch.
        gain: paired difference from the baseline; None for the baseline itself.
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
    """Accuracies of the records, and the split that they are of: test or validation.

    All are of the same images: where some records have a test number, those without one have no number here.
    """
    tested = study.test and any(record.test_best is not None for record in records.values())
    found = {cell: record.test_best if tested else record.val_best for cell, record in records.items()}
    return "test" if tested else "validation", {cell: value for cell, value in found.items() if value is not None}


def summarise(study: Study, records: Mapping[Cell, Record]) -> list[Row]:
    """A row for every arm that has a number, in the study's order; pairs are seeds that both arms have."""
    _, numbers = accuracies(study, records)
    found = {cell: (number, records[cell]) for cell, number in numbers.items()}
    rows = []
    for dataset, model, fraction, arm in product(study.datasets, study.models, study.fractions, study.arms):
        own = [Cell(dataset, model, arm, fraction, seed) for seed in study.seeds]
        pairs = [(found[cell], found.get(replace(cell, arm=study.baseline))) for cell in own if cell in found]
        if pairs:
            rows.append(_row(study, own[0], pairs))
    return rows


SeedRecord = tuple[float, Record]
"""The accuracy of a cell, and its record."""


def _row(study: Study, cell: Cell, found: Sequence[tuple[SeedRecord, SeedRecord | None]]) -> Row:
    """The row of a cell's place from every seed's own number and the baseline's, where there is one."""
    pairs = [(own, other) for own, other in found if other is not None]
    records = [(own, other) for (_, own), (_, other) in pairs]
    gains = [number - other for (number, _), (other, _) in pairs]
    is_baseline = cell.arm == study.baseline
    epochs = [first_reaching(own.val_curve, other.val_curve) for own, other in records if other.val_curve]
    reached = [epoch for epoch in epochs if epoch is not None]
    last = [record.test_last for (_, record), _ in found if study.test and record.test_last is not None]
    costs = [own.cpu_seconds / other.cpu_seconds for own, other in records if own.cpu_seconds and other.cpu_seconds]
    some = found[0][0][1]
    return Row(
        dataset=cell.dataset,
        model=cell.model,
        fraction=cell.fraction,
        arm=cell.arm,
        best=Estimate.of([number for (number, _), _ in found]),
        last=Estimate.of(last) if last else None,
        gain=Estimate.of(gains) if gains and not is_baseline else None,
        wins=sum(gain > 0 for gain in gains),
        epochs=len(some.val_curve),
        epochs_to_baseline=fmean(reached) if reached else None,
        reached=len(reached),
        raced=len(epochs),
        cost=fmean(costs) if costs and not is_baseline else None,
        paper=study.paper(cell),
        train_images=some.train_images,
    )


def first_reaching(curve: Sequence[float], baseline: Sequence[float]) -> int | None:
    """The first epoch, from 1, at which a curve is at least where the baseline ended."""
    if not baseline:
        return None
    return next((epoch for epoch, value in enumerate(curve, 1) if value >= baseline[-1]), None)
