"""What is seen while a run goes on: loss and time left from the first step, the validation by itself."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from builders.digits import write_digits
from builders.runs import QUICK, config
from vitlet.cli import main
from vitlet.data.scan.quick import quick_findings
from vitlet.data.sources import Request, load_dataset
from vitlet.pictures import plot_curves
from vitlet.training import progress
from vitlet.training.evaluate import Scores
from vitlet.training.loop import train
from vitlet.training.progress import Reporter
from vitlet.training.summaries import accuracy_verdict


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


def test_a_run_opens_with_a_line_per_fact_and_ends_with_a_verdict(
    shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*QUICK, "--task", "drloc=0.5", "--drloc.hidden", "16", "--output", str(tmp_path / "run")]
    assert main(["train", str(shared_folder), *words]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    facts = [
        "24 training images of 3 classes (digit 0, digit 1, digit 2), 12 validation, 12 test images",
        "vit_tiny_patch16_224 with 0.02 M parameters, images of 16 x 16 px",
        "1 epoch of 3 steps, 8 images per step, learning rate 0.001",
        "tasks: drloc (weight 0.5)",
    ]
    assert lines[:4] == [f"train: {fact}" for fact in facts]
    few = "3 of 3 classes have fewer than 10 training images"
    assert lines[4] == f"train: note on the data: {few}. More by: vitlet scan {shared_folder}"
    assert "chance (always the most frequent class) 33.3 %" in out
    assert "To try next: longer (--epochs 2)" in out
    assert "data: its splits as given" in out


def test_training_mentions_what_a_scan_would_complain_of(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "test")):
        write_digits(tmp_path / split, per_class=12, skip=12 * number)
    assert quick_findings(load_dataset(Request(str(tmp_path), val_fraction=0))) == []
    train_images = sorted((tmp_path / "train" / "digit 0").iterdir())
    shutil.copy(train_images[0], tmp_path / "test" / "digit 0" / "copy.png")
    shutil.copy(train_images[1], tmp_path / "train" / "digit 1" / "other.png")
    for path in sorted((tmp_path / "train" / "digit 2").iterdir())[2:]:
        path.unlink()
    dataset = load_dataset(Request(str(tmp_path), val_fraction=0))
    assert quick_findings(dataset) == [
        "the largest class has 13 images, the smallest 2 (--balance sampler draws them equally often; whether it helps"
        " here is not measured)",
        "1 of 3 classes have fewer than 10 training images",
        "1 training images are also in val or test",
        "1 images are in several classes",
    ]
    assert len(quick_findings(dataset, seconds=-1.0)) == 2


def test_a_verdict_knows_chance_and_what_to_try(tmp_path: Path) -> None:
    settings = config(tmp_path, tmp_path / "run", epochs=20)
    labels = [0] * 60 + [1] * 40

    def verdict(top1: float, best_epoch: int = 20, images: int = 1000, **changes: bool) -> str:
        scores = Scores(100, top1, 100.0, top1, 1.0)
        chosen = replace(settings, **changes)
        return accuracy_verdict(scores, labels, chosen, best_epoch=best_epoch, epochs=20, images=images)

    assert "60.0 %: not above chance by more than noise (± 9.8 points)" in verdict(65.0)
    assert "+20.0 points. To try next: longer (--epochs 40)" in verdict(80.0)
    assert "longer" not in verdict(80.0, best_epoch=10)
    assert "trained weights (--pretrained" in verdict(80.0, best_epoch=10)
    assert "trained weights" not in verdict(80.0, pretrained=True)
    assert "a larger model" in verdict(80.0, images=10_000)
    assert verdict(97.0).endswith("+37.0 points.")


@pytest.mark.parametrize("epochs", [1, 100])
def test_the_curves_of_one_epoch_can_be_seen(epochs: int, tmp_path: Path) -> None:
    rows = [{"epoch": number, "train/loss": 1.0} for number in range(1, epochs + 1)]
    plot_curves({"run": rows}, tmp_path / "curves.png", metrics={"train/loss": "training loss"})
    pixels = np.asarray(Image.open(tmp_path / "curves.png").convert("RGB")).astype(int)
    height, width = pixels.shape[:2]
    middle = pixels[height // 8 : -height // 8, width // 8 : width * 3 // 4]  # without the legend
    blue = np.abs(middle - [31, 119, 180]).sum(-1) < 30
    assert blue.any(0).sum() >= (width // 2 if epochs > 1 else 5)
