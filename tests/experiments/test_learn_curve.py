"""`vitlet learn-curve`: its plan, its folder, its answer, and its end at any moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from builders.digits import write_digits
from vitlet.analysis.learning_curve import CurveFit
from vitlet.cli import main
from vitlet.config import RunConfig
from vitlet.data.images import Arrays
from vitlet.errors import InterruptedRunError, VitletError
from vitlet.experiments.learn_curve import curve, plan
from vitlet.experiments.learn_curve.answer import answer_of
from vitlet.experiments.learn_curve.record import CurveRecord, MeasuredCurveRun, is_curve, read_curve
from vitlet.training.run_folder import read_config

TINY = "--model vit_tiny_patch16_224 --img-size 8 --in-chans 1 --hflip 0 --epochs 1 -b 8 -j 0 --device cpu --task none"
KWARGS = ["--model-kwargs", "patch_size=4", "embed_dim=8", "depth=1", "num_heads=1"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_digits(tmp_path / "data", classes=2, per_class=12, size=8)


def words(data: Path, output: Path, *more: str) -> list[str]:
    tiny = [*TINY.split(), *KWARGS, "--val-fraction", "0.3", "--output", str(output)]
    return ["learn-curve", str(data), *tiny, "--seeds", "1", *more]


def labelled(*counts: int) -> Arrays:
    labels = tuple(label for label, count in enumerate(counts) for _ in range(count))
    return Arrays(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), labels)


def test_subsets_halve_where_classes_are_large_enough() -> None:
    assert plan.subset_shares(labelled(100, 40), ("a", "b")) == pytest.approx((1 / 8, 1 / 4, 1 / 2, 1))
    shares = plan.subset_shares(labelled(100, 8), ("a", "b"))
    assert shares[0] == pytest.approx(0.25) and shares[-1] == 1 and len(set(shares)) == 4
    with pytest.raises(VitletError, match="class 'b' has 7 training images; four nested subsets need 8 or more"):
        plan.subset_shares(labelled(100, 7), ("a", "b"))
    with pytest.raises(VitletError, match=r"one class \(a\)"):
        plan.subset_shares(labelled(9), ("a",))


def test_epochs_share_one_factor_that_fits_into_the_time() -> None:
    costs = plan.Costs(image=0.01, reading=0.0, each=1.0)
    sizes, config = {0.5: 500, 1.0: 1000}, RunConfig(model="resnet_s_for_32px")
    usual = {0.5: plan.Length(200, 32), 1.0: plan.Length(100, 64)}

    def make(share: float) -> tuple[Any, ...]:
        return plan.planned_runs(sizes, usual, config, 3, costs, share)

    runs = make(1.0)
    assert [run.kind for run in runs] == ["size", "size", "epochs", "model", *["size"] * 4]
    assert runs[2].epochs == 200 and runs[3].model == "resnet_m_for_32px"
    share, fitting = plan.fit_into(60.0, 0.0, config, 1000, make)
    assert 0.1 < share < 1 and 3000 < sum(run.seconds for run in fitting) <= 3600
    assert fitting[0].epochs == pytest.approx(2 * fitting[1].epochs, abs=1)
    assert plan.fit_into(1e4, 0.0, config, 1000, make)[0] == 1.0
    with pytest.raises(VitletError, match=r"minutes is 1, .* What fits: --minutes \d+.*--fraction 0\.\d+"):
        plan.fit_into(1.0, 0.0, config, 1000, make)


def test_the_next_larger_model() -> None:
    assert plan.larger_model("hybrid_s_for_64px") == "hybrid_m_for_64px"
    assert plan.larger_model("vit_tiny_patch16_224") is None


def test_a_curve_is_measured_continued_and_reported(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, trained, real = tmp_path / "curve", [], curve.train

    def stopping(config: RunConfig, *more: Any, **options: Any) -> Any:
        trained.append(config.output)
        if len(trained) == 3:
            raise InterruptedRunError("stopped")
        return real(config, *more, **options)

    monkeypatch.setattr(curve, "train", stopping)
    assert main(words(images, output, "--target", "99")) == 75
    assert "goes on" in capsys.readouterr().err and is_curve(output)
    assert main(["report", str(output)]) == 2
    assert "is not finished (2 of 5 runs)" in capsys.readouterr().err
    assert main(words(images, output, "--target", "99", "--lr", "0.1")) == 2
    assert "with other settings: lr 0.1" in capsys.readouterr().err
    assert main(words(images, output, "--split", "test")) == 2
    assert "split 'test' (the curve has 'val')" in capsys.readouterr().err
    assert main(words(images, output, "--target", "99")) == 0
    assert len(trained) == 3 + 3  # the two that were finished are not trained again
    printed = capsys.readouterr().out
    for word in ("expected with 2 times as many", "expected with 4 times", "target 99 %", "worth in points"):
        assert word in printed
    record = read_curve(output)
    sizes = sorted({run.images for run in record.runs if run.kind == "size"})
    assert len(sizes) == 4 and sizes[-1] == 16 and len(record.runs) == 5
    config = read_config(output / "runs" / record.runs[0].name)
    assert config.fraction == pytest.approx(0.25) and config.seed == 0
    assert (output / "curve.png").stat().st_size > 10_000
    assert main(["report", str(output)]) == 0
    assert "Is the number of images enough?" in (output / "report.html").read_text(encoding="utf-8")


def test_frozen_features_take_a_moment(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, output = tmp_path / "first", tmp_path / "curve"
    assert main(["train", str(images), *TINY.split(), *KWARGS, "--output", str(first)]) == 0
    asked = ["learn-curve", str(images), "--init", str(first), "--freeze", "--output", str(output)]
    assert main([*asked, "--val-fraction", "0.3", "--seeds", "2", "--device", "cpu"]) == 0
    assert "was trained with labels of" in capsys.readouterr().out
    found = json.loads((output / "curve.json").read_text(encoding="utf-8"))["answer"]
    assert len(found["sizes"]) == 4 and found["expected"]["4x"]["low"] <= found["expected"]["4x"]["high"]
    assert found["target"] is None and not (output / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--target", "100"], "target is 100"),
        (["--seeds", "0"], "seeds is 0"),
        (["--minutes", "3"], "--epochs and --minutes"),
        (["--per-class", "3"], "--per-class"),
        (["--val-fraction", "0"], "there are no validation images"),
        (["--split", "test"], "there are no test images"),
        (["--fraction", "0.5"], "four nested subsets need 8 or more"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    flags: list[str], problem: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "curve"
    assert main(words(images, output, *flags)) == 2
    assert problem in capsys.readouterr().err and not output.exists()


def test_too_few_minutes_are_refused_with_what_fits(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = words(images, tmp_path / "curve", "--minutes", "0.001")
    place = asked.index("--epochs")
    assert main(asked[:place] + asked[place + 2 :]) == 2
    assert "What fits: --minutes" in capsys.readouterr().err and not (tmp_path / "curve").exists()


def record_of(accuracies: dict[int, float], more: float, larger: float) -> CurveRecord:
    runs = [
        MeasuredCurveRun(f"{n}-{seed}", "size", n / 1000, n, seed, 5, "m", accuracy + 0.1 * seed, 1000, 1.0)
        for n, accuracy in accuracies.items()
        for seed in range(3)
    ]
    most = max(accuracies)
    runs.append(MeasuredCurveRun("e", "epochs", 1.0, most, 0, 10, "m", accuracies[most] + more, 1000, 1.0))
    runs.append(MeasuredCurveRun("m", "model", 1.0, most, 0, 5, "l", accuracies[most] + larger, 1000, 1.0))
    return CurveRecord({}, "val", None, (), runs=tuple(runs))


def test_what_is_worth_most_is_said_as_far_as_it_is_known() -> None:
    steep = {125: 40.0, 250: 50.0, 500: 60.0, 1000: 70.0}
    flat = {125: 69.0, 250: 69.5, 500: 69.8, 1000: 70.0}

    def lines(record: CurveRecord, target: float | None = None) -> str:
        return "\n".join(answer_of(record, CurveFit(record.points()), target)["lines"])

    assert "worth most: twice the images" in lines(record_of(steep, 0.1, -1.0))
    assert "worth most: the next larger model" in lines(record_of(flat, 0.1, 9.0))
    assert "out of reach of 4 times the images" in lines(record_of(flat, 0.0, 0.0), 99.0)
    assert "reached with about" in lines(record_of(steep, 0.0, 0.0), 55.0)
    rounds = lines(record_of(steep, 0.0, 0.0), 78.0)
    assert "target 78 %: about" in rounds and "collect in rounds: up to" in rounds
