"""What the records of a study say together: gains, wins, losses and what is marked as significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from scipy import stats

from vitlet.experiments.studies.definition import Cell, Study
from vitlet.experiments.studies.records import Record
from vitlet.experiments.studies.report import as_texts, markdown
from vitlet.experiments.studies.statistics import Estimate, Row, accuracies, first_reaching, summarise

Values = Mapping[str, Sequence[float]]


def study_of(values: Values, **settings: object) -> tuple[Study, dict[Cell, Record]]:
    """A study whose first arm is the baseline, and a record for each arm's number of each seed."""
    arms: dict[str, dict[str, object]] = {arm: {} for arm in values}
    seeds = tuple(range(max(len(numbers) for numbers in values.values())))
    study = Study("s", "t", arms, baseline=next(iter(values)), seeds=seeds, **settings)  # type: ignore[arg-type]
    cells = {
        Cell("data", "model", arm, 1.0, seed): number
        for arm, each in values.items()
        for seed, number in enumerate(each)
    }
    return study, {cell: record(cell, number) for cell, number in cells.items()}


def record(cell: Cell, value: float, seconds: float | None = 10.0, curve: tuple[float, ...] = (1.0, 2.0)) -> Record:
    return Record(cell, {}, curve, 1, value - 1, value, value - 2, {}, 100, 50, seconds)


def rows(values: Values) -> list[Row]:
    return summarise(*study_of(values))


BASE = (50.0, 51.0, 52.0)


@pytest.mark.parametrize(
    ("mean", "half", "marked"),
    [(2.0, 1.0, True), (-2.0, 1.0, True), (0.5, 1.0, False), (-0.5, 1.0, False), (1.0, 1.0, False), (5.0, None, False)],
)
def test_a_difference_is_significant_on_either_side(mean: float, half: float | None, marked: bool) -> None:
    assert Estimate(mean, half, 3).excludes_zero is marked


def test_significant_losses_are_marked_as_gains_are() -> None:
    study, records = study_of(
        {"base": BASE, "better": (53.0, 54.1, 55.0), "worse": (47.0, 47.9, 49.0), "unclear": (50.0, 53.0, 50.0)}
    )
    found = summarise(study, records)
    assert [row.gain is not None and row.gain.excludes_zero for row in found] == [False, True, True, False]
    lines = [line for line in markdown(study, found, records).splitlines() if line.startswith("| data |")]
    assert [line.count("**") for line in lines] == [0, 2, 2, 0]
    assert "**-3.03 ± 0.14**" in lines[2]


def test_a_tie_is_no_win() -> None:
    base, tied, mixed = rows({"base": BASE, "tied": BASE, "mixed": (50.0, 51.5, 51.0)})
    assert (base.wins, tied.wins, mixed.wins) == (0, 0, 1)
    assert [texts["wins"] for texts in as_texts([base, tied, mixed])] == ["", "0 of 3", "1 of 3"]


def test_two_seeds_have_an_interval_and_one_has_none() -> None:
    found = Estimate.of([1.0, 3.0])
    assert found.half == pytest.approx(stats.t.ppf(0.975, 1))
    assert (found.mean, found.count) == (2.0, 2)
    assert Estimate.of([4.0]) == Estimate(4.0, None, 1)
    assert (found.shown("+"), Estimate(-1.0, None, 1).shown()) == ("+2.00 ± 12.71", "-1.00")


def test_the_baseline_has_neither_gain_nor_cost() -> None:
    base, other = rows({"base": BASE, "other": BASE})
    assert (base.gain, base.cost) == (None, None)
    assert (other.gain, other.cost) == (Estimate(0.0, 0.0, 3), 1.0)


def test_an_arm_without_a_baseline_has_no_gain() -> None:
    study, records = study_of({"base": BASE, "other": BASE})
    alone = {cell: made for cell, made in records.items() if cell.arm == "other"}
    (row,) = summarise(study, alone)
    assert (row.arm, row.best.mean, row.gain, row.cost, row.epochs_to_baseline) == ("other", 51.0, None, None, None)
    assert (row.wins, row.reached, row.raced) == (0, 0, 0)


def test_a_study_that_does_not_test_shows_validation_numbers() -> None:
    study, records = study_of({"base": BASE}, test=False)
    assert accuracies(study, records)[0] == "validation"
    (row,) = summarise(study, records)
    assert (row.best.mean, row.last, row.epochs, row.train_images) == (50.0, None, 2, 100)


def test_cost_is_of_seeds_that_both_know() -> None:
    study, records = study_of({"base": BASE, "other": BASE})
    cells = list(records)
    records[cells[0]] = record(cells[0], 50.0, seconds=None)
    records[cells[4]] = record(cells[4], 51.0, seconds=25.0)
    records[cells[5]] = record(cells[5], 52.0, seconds=None)
    assert summarise(study, records)[1].cost == pytest.approx(2.5)  # of the second seed alone


def test_reaching_is_at_least_where_the_baseline_ended() -> None:
    assert first_reaching((1.0, 2.0, 3.0), (9.0, 2.0)) == 2
    assert first_reaching((3.0,), (2.0,)) == 1
    assert first_reaching((1.0,), (2.0,)) is None
    study, records = study_of({"base": BASE, "other": BASE})
    for cell in records:
        if cell.arm == "base":
            records[cell] = record(cell, 50.0, curve=(1.0, 5.0) if cell.seed else ())
        else:
            records[cell] = record(cell, 50.0, curve=(1.0, 2.0, 4.0 + cell.seed / 2))
    other = summarise(study, records)[1]
    assert (other.epochs_to_baseline, other.reached, other.raced, other.epochs) == (3.0, 1, 2, 3)
