"""Runs by the clock, growing images, and the ingredients of short trainings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builders.fake_time import FakeTime, charge_for_everything
from builders.runs import config
from vitlet import VitletError
from vitlet.cli import main
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.loading import EpochOrder
from vitlet.errors import InterruptedRunError
from vitlet.inference.predict import Predictor
from vitlet.objective.schedules import WarmupStableDecay
from vitlet.training import budget
from vitlet.training.budget import Speed, equal_epochs, last_epoch_in_time, plan_steps
from vitlet.training.clock import Clock, Sizes, Stopwatch, growing_sizes
from vitlet.training.distributed import World
from vitlet.training.ema import short_run_decay
from vitlet.training.evaluate import averaged_over
from vitlet.training.jobs import ClassifierJob, build_job
from vitlet.training.loop import Trainer, train
from vitlet.training.mixing import Mixing
from vitlet.training.run_folder import read_config, read_rows

RESNET: dict[str, Any] = {"model": "resnet_for_32px", "model_kwargs": {"channels": [8, 8, 16, 16], "layers": [1] * 4}}
SMALL: dict[str, Any] = RESNET | {"img_size": (32, 32), "crop": "resized", "workers": 0}


def last(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "last" / "model.safetensors")


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A speed test that always finds the same: a tenth of a second a step."""

    def measured(job: Any, watch: Any) -> Speed:
        sizes = job.sizes.sizes if job.sizes else [job.config.img_size]
        return Speed({"amp": False, "channels_last": True}, dict.fromkeys(sizes, 0.1), validation=0.05, test=0.0)

    monkeypatch.setattr(budget, "measure_speed", measured)
    monkeypatch.setattr(budget, "OFF_TIME", 99.0)
    monkeypatch.setattr(Stopwatch, "used", lambda self, config: 0.0)  # a busy machine takes seconds to begin


def test_a_budget_becomes_epochs_that_another_run_repeats(shared_folder: Path, tmp_path: Path, instant: None) -> None:
    """24 images in batches of 8 are 3 steps a pass; 2.4 s are 20 steps or so."""
    train(config(shared_folder, tmp_path / "run", **SMALL, minutes=0.04, model_ema=True))
    found = read_config(tmp_path / "run")
    assert found.channels_last and not found.amp and found.minutes == 0.04
    assert found.planned_steps == found.epochs * round(3 * found.epoch_repeats)
    assert 14 <= found.planned_steps <= 24
    rows = read_rows(tmp_path / "run")
    assert len(rows) == found.epochs and "val/top1" in rows[-1]
    assert sum("val/top1" in row for row in rows) <= -(-found.epochs // found.val_interval) + 1
    again = RunConfig.from_dict(RunConfig.read(tmp_path / "run" / "config.yaml") | {"output": str(tmp_path / "again")})
    train(again)
    ours, theirs = last(tmp_path / "run"), last(tmp_path / "again")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_speed_test_of_a_real_run(shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(config(shared_folder, tmp_path / "run", **SMALL, minutes=0.1, autotune=True, aug="standard"))
    said = capsys.readouterr().out
    found = read_config(tmp_path / "run")
    assert "speed test: 0:06 are" in said and found.planned_steps and found.planned_steps >= 3
    assert found.autotune is False and found.amp in (True, False) and found.channels_last in (True, False)
    assert found.mixup_off_epoch == pytest.approx(0.9 * found.epochs)


def test_minutes_too_short_for_a_pass(shared_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VitletError, match=r"minutes is 1e-05, but one pass over 24 images takes about .* --minutes"):
        train(config(shared_folder, tmp_path / "run", **SMALL, minutes=1e-5))
    assert not (tmp_path / "run").exists()
    with pytest.raises(VitletError, match="both limit the run; give one of them"):
        RunConfig(minutes=1, cpu_minutes=1)


def test_the_plan_uses_the_time(shared_folder: Path, tmp_path: Path) -> None:
    job = build_job(config(shared_folder, tmp_path, **SMALL, minutes=1))
    for step, validation in ((0.11, 0.0), (0.013, 2.0), (0.7, 0.3)):
        speed = Speed({}, {(32, 32): step}, validation, test=1.0)
        plan = plan_steps(job, World(), speed, used=5.0)
        steps = plan["epochs"] * round(plan["epoch_repeats"] * 3)
        validations = plan["epochs"] // plan["val_interval"] if validation else 0
        assert steps == plan["planned_steps"]
        total = 5 + steps * step + validations * validation + 1.0
        assert 0.93 * 60 < total < 60, (step, validation)
        assert validations * validation <= 0.1 * 60


def test_a_slower_machine_ends_earlier_and_on_the_same_schedule() -> None:
    clock = Clock(100)
    assert clock.planned(33.3) == 33.3
    clock.end_after(40, 70)
    assert clock.planned(20) == 20 and clock.planned(40) == 40
    assert clock.planned(55) == pytest.approx(70) and clock.planned(70) == 100
    clock.end_after(55, 65)
    assert clock.planned(50) == pytest.approx(60) and clock.planned(60) == pytest.approx(85)
    other = Clock(100)
    other.fill(clock.to_dict(used=7.0))
    assert other.knots == clock.knots and other.last == 65 and other.seconds == 7.0


def test_the_pace_decides_when_to_end(shared_folder: Path, tmp_path: Path) -> None:
    settings = config(shared_folder, tmp_path, **SMALL, cpu_minutes=1)

    class Watch(Stopwatch):
        def used(self, config: Any) -> float:
            return 40.0

    class StateSoFar:
        clock, epoch, steps = Clock(100), 50, 3

    StateSoFar.clock.costs = {(32, 32): 0.1}
    StateSoFar.clock.expected, StateSoFar.clock.trained = 15.0, 30.0
    # twice as slow: 0.6 s an epoch of three steps, 19.4 s are left after the reserve
    assert last_epoch_in_time(StateSoFar, settings, None, Watch()) == 50 + round(19.4 / 0.2) / 3  # type: ignore[arg-type]
    # slightly slower, and 0.306 s an epoch: 50 more of them would leave time, 63 use it
    StateSoFar.clock.trained = 15.3
    assert last_epoch_in_time(StateSoFar, settings, None, Watch()) == 50 + 190 / 3  # type: ignore[arg-type]
    # as planned, but for a moment of less than 1 % of the time
    StateSoFar.clock.last = 112.0
    assert last_epoch_in_time(StateSoFar, settings, None, Watch()) == 112.0  # type: ignore[arg-type]
    # the validations on the way, every tenth epoch, and that at the end are counted
    StateSoFar.clock.validation = 1.0
    settings = replace(settings, val_interval=10)
    assert last_epoch_in_time(StateSoFar, settings, None, Watch()) == 50 + 136 / 3  # type: ignore[arg-type]


def test_a_fraction_of_a_pass_goes_on_where_the_last_ended() -> None:
    whole = EpochOrder(range(20), batch_size=4, seed=1)
    parts = EpochOrder(range(20), batch_size=4, seed=1, repeats=0.4)
    assert (whole.steps, parts.steps) == (5, 2)
    seen = []
    for epoch in range(5):
        parts.epoch = epoch
        seen += list(parts)
    expected = []
    for epoch in range(2):
        whole.epoch = epoch
        expected += list(whole)
    assert seen == expected
    parts.epoch = 2
    assert [index for _, index in expected[4]] == parts.images(0, 0)


def test_images_grow(shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert growing_sizes((48, 48), (64, 64)) == [(48, 48), (56, 56), (64, 64)]
    assert growing_sizes((24, 32), (48, 64)) == [(24, 32), (32, 40), (36 // 8 * 8, 48), (40, 56), (48, 64)]
    sizes = Sizes([(1, 1), (2, 2), (3, 3)], 10)
    assert [sizes(epoch)[0] for epoch in (0, 1.7, 1.8, 5.2, 5.3, 10)] == [1, 1, 2, 2, 3, 3]
    assert sum(sizes.shares().values()) == pytest.approx(1)
    assert sizes.shares()[3, 3] == pytest.approx(0.475, abs=0.01)
    seen: list[tuple[int, ...]] = []
    step = Trainer._step

    def noted(self: Trainer, batches: Any) -> Any:
        inputs = self.job.inputs
        monkeypatch.setattr(self.job, "inputs", lambda b, e: (seen.append(tuple(b[0].shape[2:])), inputs(b, e))[1])
        try:
            return step(self, batches)
        finally:
            monkeypatch.setattr(self.job, "inputs", inputs)

    monkeypatch.setattr(Trainer, "_step", noted)
    words = f"{shared_folder} --model resnet_for_32px --img-size 16:32 --crop resized --epochs 4 -b 8 --task position"
    assert main(["train", *words.split(), "--output", str(tmp_path / "run"), "-j", "0"]) == 0
    assert seen[0] == (16, 16) and seen[-1] == (32, 32) and (24, 24) in seen
    assert seen == sorted(seen)
    found = read_config(tmp_path / "run")
    assert found.img_size == (32, 32) and found.img_size_start == (16, 16)


@pytest.mark.parametrize("workers", [0, 1])
def test_growing_runs_resume_exactly(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    more = SMALL | {"img_size_start": (16, 16), "epochs": 3, "epoch_repeats": 0.67, "opt": "muon", "workers": workers}
    more |= {"aug": "standard", "model_ema": True, "channels_last": True, "amp": True}
    train(config(shared_folder, tmp_path / "whole", **more))
    monkeypatch.setattr("vitlet.training.signals.Interrupts.pending", lambda self: next(asked, False))
    asked = iter([False, False, True])
    with pytest.raises(InterruptedRunError):
        train(config(shared_folder, tmp_path / "cut", **more))
    train(RunConfig(resume=str(tmp_path / "cut")))
    ours, theirs = last(tmp_path / "whole"), last(tmp_path / "cut")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    shutil.rmtree(tmp_path / "cut")


@pytest.mark.parametrize("named", [True, False])
def test_a_stopped_run_goes_on_with_its_plan(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: None, named: bool
) -> None:
    """`--resume auto` with the same flags, whatever a second speed test would find; with and without `--output`."""
    monkeypatch.chdir(tmp_path)
    asked = config(shared_folder, Path("runs/cut"), **SMALL, minutes=0.04, autotune=True, resume="auto", epochs=100)
    asked = asked if named else replace(asked, output=None)
    monkeypatch.setattr("vitlet.training.signals.Interrupts.pending", lambda self: next(moments, False))
    moments = iter([False, False, True])
    with pytest.raises(InterruptedRunError):
        train(asked)
    (run,) = Path("runs").iterdir()
    plan = read_config(run)
    twice = Speed({"amp": False, "channels_last": True}, {(32, 32): 0.05}, validation=0.05, test=0.0)
    monkeypatch.setattr(budget, "measure_speed", lambda job, watch: twice)
    assert train(asked).path.resolve() == run.resolve()
    assert [each.name for each in Path("runs").iterdir()] == [run.name]
    assert len(read_rows(run)) == plan.epochs and plan.planned_steps < 30


def test_a_teacher_is_part_of_the_budget(shared_folder: Path, tmp_path: Path, instant: None) -> None:
    """A third of the time for the teacher, as many steps of a tenth of a second; the student has the rest."""
    task = TaskConfig(1.0, options={"teacher": "auto", "teacher_share": 1 / 3, "levels": 1})
    train(config(shared_folder, tmp_path / "alone", **SMALL, minutes=0.1))
    train(config(shared_folder, tmp_path / "run", **SMALL, minutes=0.1, tasks={"guidance": task}))
    whole, student, teacher = (
        read_config(tmp_path / name).planned_steps or 0 for name in ("alone", "run", "run/teacher")
    )
    assert student < 0.75 * whole and teacher < 0.45 * whole
    assert student + teacher > 0.7 * whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size_start": (16, 16), "crop": "padded"}, "needs crops that are resized"),
        ({"img_size_start": (64, 64)}, "img_size_start must be at most img_size"),
        ({"img_size_start": (8, 8), "tasks": "position"}, "cannot start with images of 8x8"),
        (
            {
                "model": "vit_tiny_patch16_224",
                "model_kwargs": {"patch_size": 8, "depth": 1},
                "img_size_start": (16, 16),
            },
            "dynamic_img_size=true",
        ),
        ({"opt": "adamwww"}, "the optimizer 'adamwww' cannot be made.*adamw"),
        ({"opt_betas": "0.9"}, "opt_betas must be .*, got '0.9'"),
        ({"opt_betas": "a,b"}, "opt_betas must be .*, got 'a,b'"),
    ],
)
def test_bad_settings_are_refused(shared_folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    if "tasks" in changes:
        changes = changes | {"tasks": {"position": TaskConfig(1.0)}}
    with pytest.raises(VitletError, match=message):
        train(config(shared_folder, tmp_path / "run", **SMALL | changes))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_mixing_has_a_probability_and_an_end() -> None:
    images, labels = torch.rand(8, 3, 4, 4), torch.arange(8)
    mixing = Mixing(RunConfig(mixup=1.0, cutmix=1.0, mixup_prob=0.3, mixup_off_epoch=5.0, num_classes=8))
    mixed = [mixing(images, labels, 1.0)[1].ndim == 2 for _ in range(300)]
    assert 0.2 < sum(mixed) / 300 < 0.4
    assert not any(mixing(images, labels, 5.0)[1].ndim == 2 for _ in range(50))
    assert all(Mixing(RunConfig(mixup=1.0, num_classes=8))(images, labels, 99.0)[1].ndim == 2 for _ in range(5))


def test_flips_are_averaged_as_probabilities(shared_folder: Path, tmp_path: Path) -> None:
    table = torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

    def classify(images: torch.Tensor) -> torch.Tensor:
        return table[(images[:, 0, 0, 0] > 0).long()]  # by the left edge, which a flip changes

    image = torch.tensor([[[[1.0, -1.0]]]])
    found = averaged_over(classify, image, "flip").exp()[0]
    assert torch.allclose(found, table.softmax(1).mean(0))
    assert torch.equal(averaged_over(classify, image, "none")[0], table[1])
    run = tmp_path / "run"
    result = train(config(shared_folder, run, **SMALL, tta="flip", val_interval=2, epochs=3))
    assert ["val/top1" in row for row in read_rows(run)] == [False, True, True]
    assert result.test is not None
    scores, _ = Predictor.load(run).evaluate(split="test")
    assert scores.loss == pytest.approx(result.test.loss, abs=1e-4)


def test_the_learning_rate_stays_and_then_falls() -> None:
    rate = WarmupStableDecay(2.0, epochs=10, warmup_epochs=1, end=0.5)
    assert [rate(epoch) for epoch in (0, 0.5, 1, 6.9, 7, 8.5, 10, 11)] == [0, 1, 2, 2, 2, 1.25, 0.5, 0.5]


def test_short_runs_average_fewer_steps() -> None:
    assert short_run_decay(10**6) == 0.9998
    assert short_run_decay(1000) == pytest.approx(1 - 1 / 200)
    assert short_run_decay(1) == 0.0


PACES: dict[str, Callable[[float], float]] = {
    "as expected": lambda now: 1.0,
    "slower from the middle on": lambda now: 1.0 if now < 150 else 2.0,
    "faster after a while": lambda now: 1.0 if now < 60 else 0.6,
    "back and forth": lambda now: 1.5 if int(now / 30) % 2 else 0.7,
    "a little slower": lambda now: 1.0 if now < 30 else 1.04,
}


@pytest.mark.parametrize(
    ("pace", "more"),
    [
        *((pace, {}) for pace in PACES),
        ("slower from the middle on", {"img_size_start": (16, 16)}),
        ("back and forth", {"val_interval": 3, "model_ema": True}),
    ],
)
def test_a_run_ends_within_3_percent_of_its_minutes(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: str, more: dict[str, Any]
) -> None:
    """By a clock that moves with the parts of the run alone: imports, decoding, speed test, steps, tests, files."""
    time = FakeTime(PACES[pace])
    charge_for_everything(time, monkeypatch, step=4.0, image=0.1)
    result = train(config(shared_folder, tmp_path / "run", **SMALL, minutes=5, **more), watch=time.watch())
    assert result.test is not None
    assert time.now == pytest.approx(300, rel=0.03)
    assert read_config(tmp_path / "run").epochs >= 40  # it can end at any of them


def test_a_run_stopped_and_continued_ends_within_its_minutes(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = FakeTime()
    charge_for_everything(time, monkeypatch, step=4.0, image=0.1)
    monkeypatch.setattr("vitlet.training.signals.Interrupts.pending", lambda self: next(moments, False))
    moments = iter([False] * 20 + [True])
    with pytest.raises(InterruptedRunError):
        train(config(shared_folder, tmp_path / "run", **SMALL, minutes=5), watch=time.watch())
    used, time.now, time.slower = time.now, 5.0, lambda now: 1.5
    assert used < 150
    train(RunConfig(resume=str(tmp_path / "run")), watch=time.watch())
    assert used + time.now == pytest.approx(300, rel=0.03)


def test_cpu_minutes_count_all_but_the_test(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = FakeTime(lambda now: 1.0 if now < 100 else 1.3)
    charge_for_everything(time, monkeypatch, step=4.0, image=0.1)
    ended: list[float] = []
    test = ClassifierJob.test
    monkeypatch.setattr(ClassifierJob, "test", lambda job, world: (ended.append(time.now), test(job, world))[1])
    train(config(shared_folder, tmp_path / "run", **SMALL, cpu_minutes=5), watch=time.watch())
    assert ended == [pytest.approx(300, rel=0.03)]


def test_the_last_epoch_may_be_a_part_of_one() -> None:
    clock = Clock(10)
    assert [clock.steps_in(epoch, 7) for epoch in (0, 9)] == [7, 7]
    clock.end_after(4, 6.3)
    assert [clock.steps_in(epoch, 7) for epoch in (5, 6)] == [7, 2]
    assert clock.planned(6.3) == 10 and clock.planned(4 + 2.3 / 2) == pytest.approx(7)
    clock.end_after(6, 6.01)
    assert clock.steps_in(6, 7) == 1  # never none


@pytest.mark.parametrize("steps", [1, 7, 50, 125, 149, 689, 1000])
def test_epochs_of_equal_length_use_the_steps(steps: int) -> None:
    count = equal_epochs(steps, min(steps, 50))
    assert count * (steps // count) >= 0.98 * steps
    assert 0.5 * min(steps, 50) - 1 <= count <= 2 * min(steps, 50)
