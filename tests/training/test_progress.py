"""What is seen while a run goes on: loss and time left from the first step, the validation by itself."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from builders.runs import config
from vitlet.training import progress
from vitlet.training.loop import train
from vitlet.training.progress import Reporter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, to be set by a test."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def reporter(*, terminal: bool) -> tuple[Reporter, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200)
    return Reporter("train", epochs=2, steps=10, console=console), file


def test_a_slow_first_step_shows_loss_and_time_left(clock: list[float]) -> None:
    bar, file = reporter(terminal=True)
    with bar:
        clock[0] = 40.0  # slower than the 30 s that rich looks back
        bar.step(2.5)
    assert "loss 2.500" in file.getvalue()
    assert "12:40 left" in file.getvalue()


def test_plain_lines_tell_of_slow_steps_but_not_of_each(clock: list[float]) -> None:
    lines, file = reporter(terminal=False)
    for number in range(1, 9):
        clock[0] = 40.0 * number
        lines.step(2.5)
    said = file.getvalue().splitlines()
    assert said[0] == "train: epoch 1/2, step 1/10  loss 2.500  12:40 left"
    assert len(said) == 4  # after 1, 2, 4 and 8 steps


def test_validation_is_a_phase_with_its_own_progress(clock: list[float]) -> None:
    bar, file = reporter(terminal=True)
    with bar:
        with bar.validation(4):
            bar.validated()
            assert bar.bar is not None and bar.checking is not None
            task = next(each for each in bar.bar.tasks if each.id == bar.checking)
            assert (task.description, task.completed, task.total) == ("validation", 1, 4)
            bar.bar.refresh()
        assert len(bar.bar.tasks) == 1
    assert "validation" in file.getvalue()


def test_a_run_counts_the_batches_of_its_validation(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    counted: list[int] = []
    phase = Reporter.validation

    def noted(self: Reporter, number: int) -> object:
        batches.append(number)
        return phase(self, number)

    monkeypatch.setattr(Reporter, "validation", noted)
    monkeypatch.setattr(Reporter, "validated", lambda self: counted.append(1))
    train(config(shared_folder, tmp_path / "run", epochs=1))
    assert batches == [len(counted)]
