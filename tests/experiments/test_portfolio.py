"""A search within minutes: its plan, its ensemble, its folder as a run, and its end at any moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from builders.fake_time import FakeTime, charge_for_everything
from builders.runs import config
from vitlet.cli import main
from vitlet.cli.commands.train import minutes_until
from vitlet.config import RunConfig
from vitlet.data.glance import Glance
from vitlet.errors import InterruptedRunError, VitletError
from vitlet.experiments import portfolio
from vitlet.experiments.portfolio import greedy_ensemble, member_choice, portfolio_members
from vitlet.experiments.search_board import member_name
from vitlet.experiments.search_processes import train_together
from vitlet.inference.predict import Predictor
from vitlet.training.choice import choose_for
from vitlet.training.clock import Stopwatch
from vitlet.training.loop import train
from vitlet.training.run_folder import read_config, read_rows
from vitlet.training.search_folder import Workers, best_member, is_search, read_search, used_members

MINUTES = 0.35


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is expected to take 12 seconds, which lets two members into 21."""
    monkeypatch.setattr(portfolio, "SHORT", 0.0)
    monkeypatch.setattr(portfolio, "measure_speed", lambda job, watch: None)
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (12.0, {}))
    monkeypatch.setattr("vitlet.training.clock.STARTED", time.monotonic())


def words(data: Path, output: Path, *more: str, minutes: float = MINUTES) -> list[str]:
    return ["train", str(data), "--minutes", str(minutes), "--device", "cpu", "-j", "0", "--output", str(output), *more]


def test_members_differ_and_keep_what_was_given() -> None:
    found = Glance(1000, 10, 96, 3)
    choice = choose_for(RunConfig(lr=0.1), {"lr"}, found, "cpu")
    planned = portfolio_members(choice, ["lr"])
    members = [each.config for each in planned]
    assert [each.model for each in members] == [
        f"{name}_for_64px" for name in ("resnet_s", "botnet_s", "resnet_s", "convstem_vit_s", "resnet_m")
    ]
    assert [each.cost for each in planned] == [1, 1, 1, 1, 3.5]
    assert member_name(members[2], members[0]) == "resnet_s_for_64px, sched cosine, batch size 64"
    assert {each.lr for each in members} == {0.1} and {each.seed for each in members} == {0}
    assert {each.img_size for each in members} == {(64, 64)}  # an ensemble shows all the same image
    assert members[1].tasks["sprel"].weight == 0.3 and not members[2].tasks
    assert "(measured: " in member_choice(choice, members[0]).lines[0]
    for other in members[1:]:  # the third is the same model with other settings
        assert "(not measured for such data)" in member_choice(choice, other).lines[0]
    config = RunConfig.from_dict({"task": {"drloc": 0.5}})
    choice = choose_for(config, {"task"}, found, "cpu")
    asked = [each.config for each in portfolio_members(choice, ["task"])]
    assert [each.model.split("_")[0] for each in asked] == ["botnet", "convstem"]
    assert all(each.tasks == config.tasks for each in asked)


def test_the_ensemble_is_greedy_and_not_worse_than_its_best_member() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    sure = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.1, 0.9], [0.1, 0.9]])
    other = torch.tensor([[0.4, 0.6], [0.95, 0.05], [0.2, 0.8], [0.2, 0.8]])
    wrong = 1 - sure
    weights, top1 = greedy_ensemble(torch.stack([wrong, sure, other]), labels)
    assert set(weights) == {1, 2} and sum(weights.values()) == pytest.approx(1) and top1 == 100
    weights, top1 = greedy_ensemble(torch.stack([sure, wrong]), labels)
    assert weights == {0: 1.0} and top1 == 75


def test_until_is_a_number_of_minutes() -> None:
    now = datetime(2026, 1, 1, 17, 30)
    assert minutes_until("18:00", now) == 30
    assert minutes_until("17:00", now) == 23.5 * 60
    with pytest.raises(VitletError, match="must be like 18:00"):
        minutes_until("six", now)
    assert main(["train", "digits", "--until", "18:00", "--minutes", "3"]) == 2


def test_a_search_is_a_run_for_every_command(
    shared_folder: Path,
    tmp_path: Path,
    quick: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output, image = tmp_path / "s", next((shared_folder / "test" / "digit 1").iterdir())
    began = time.monotonic()
    assert main(words(shared_folder, output)) == 0
    seconds = time.monotonic() - began
    printed = capsys.readouterr().out
    assert "member 1 of 2: resnet_s_for_32px" in printed and "member 2 of 2: botnet_s_for_32px" in printed
    assert "best so far" in printed and "tested once" in printed
    record = read_search(output)
    assert record.done and len(record.members) == 2 and record.test is not None
    assert 0.5 * 60 * MINUTES < record.seconds < seconds + 1
    assert sum(record.weights.values()) == pytest.approx(1)
    assert (output / "search.png").stat().st_size > 5000
    assert read_config(output / "members" / "2").tasks["sprel"].weight == 0.3
    assert main(["report", str(output)]) == 0
    capsys.readouterr()
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "<h2>Search</h2>" in page and "2: botnet_s_for_32px + sprel" in page and "tested once" in page
    assert main(["evaluate", str(output), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["top1"] == pytest.approx(record.test["top1"])
    assert main(["predict", str(output), str(image), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["classes"]) == 3
    assert main(["explain", str(output), "--images", str(image), "--output", str(tmp_path / "e")]) == 2
    assert "It is a search: name one of its runs" in capsys.readouterr().err
    monkeypatch.setattr("vitlet.training.clock.STARTED", time.monotonic())
    assert main(words(shared_folder, output)) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["train", "--resume", str(output)]) == 0
    assert read_search(output).members == record.members
    assert main(["train", "--resume", str(output), "--epochs", "3"]) == 2
    both = {member.folder: 0.5 for member in record.members}
    (output / "search.json").write_text(
        json.dumps(json.loads((output / "search.json").read_text()) | {"weights": both})
    )
    mixed = Predictor.load(output)
    batch = torch.randn(3, mixed.config.in_chans, *mixed.preprocess.size)
    parts = [Predictor.load(output / "members" / name)(batch)[0] for name in "12"]
    torch.testing.assert_close(mixed(batch)[0], torch.stack(parts).mean(0), atol=1e-5, rtol=0.0)
    assert main(["export", str(output), "--format", "timm"]) == 2
    assert "mean of 2 networks" in capsys.readouterr().err
    assert main(["export", str(output), "--format", "safetensors"]) == 0
    torch.testing.assert_close(Predictor.load(output / "export" / "safetensors")(batch)[0], mixed(batch)[0])
    assert best_member(output).parent == output / "members" and len(used_members(output)) == 2


def test_a_search_that_is_stopped_keeps_its_best_and_goes_on(
    shared_folder: Path,
    tmp_path: Path,
    quick: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    output = tmp_path / "s"

    def stopped(config: Any, **options: Any) -> Any:
        if options["title"] == "member 2":
            raise InterruptedRunError("stopped")
        return train(config, **options)

    monkeypatch.setattr(portfolio, "train", stopped)
    assert main(words(shared_folder, output)) == InterruptedRunError.code
    assert f"vitlet train --resume {output}" in capsys.readouterr().err
    assert is_search(output) and len(read_search(output).members) == 1
    assert main(["evaluate", str(output)]) == 0
    monkeypatch.setattr(portfolio, "train", train)
    monkeypatch.setattr("vitlet.training.clock.STARTED", time.monotonic())
    assert main(["train", "--resume", str(output)]) == 0
    record = read_search(output)
    assert record.done and [member.folder for member in record.members] == ["members/1", "members/2"]
    assert record.seconds < 2 * 60 * MINUTES


def test_too_few_minutes_are_one_run(
    shared_folder: Path, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (100.0, {}))
    assert main(words(shared_folder, tmp_path / "run")) == 0
    assert read_config(tmp_path / "run").model == "resnet_s_for_32px" and not is_search(tmp_path / "run")


PACES: dict[str, Callable[[float], float]] = {
    "as expected": lambda now: 1.0,
    "slower in the second member": lambda now: 1.0 if now < 350 else 1.7,
    "back and forth": lambda now: 1.4 if int(now / 40) % 2 else 0.8,
}


@pytest.mark.parametrize("pace", PACES)
def test_a_search_ends_within_3_percent_of_its_minutes(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None, pace: str
) -> None:
    """By a clock that moves with its parts alone; the answers of its members take longer than was guessed."""
    time = FakeTime(PACES[pace])
    charge_for_everything(time, monkeypatch, step=24.0, image=0.3)
    monkeypatch.setattr(portfolio, "draw_search", time.charged(portfolio.draw_search, 0.8))
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (400.0, {}))
    monkeypatch.setattr(Stopwatch, "of_process", time.watch)
    assert main(words(shared_folder, tmp_path / "s", minutes=10)) == 0
    record = read_search(tmp_path / "s")
    assert len(record.members) == 2 and record.done
    assert time.now == pytest.approx(600, rel=0.03)
    assert record.seconds == pytest.approx(time.now, abs=1.0)
    assert all(0.3 < (member.ended - member.began) / 600 < 0.6 for member in record.members)


def test_members_trained_at_the_same_time_have_their_share(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """Four members, two at a time: each has about half of the time; all of it ends within 3 %."""
    time = FakeTime()
    charge_for_everything(time, monkeypatch, step=40.0, image=0.3)
    shares: list[float] = []

    def together(runs: dict[Path, RunConfig], workers: Workers) -> dict[Path, str]:
        assert workers == Workers(2)
        began, ends = time.now, []
        for each in runs.values():
            time.now = began
            train(each, watch=time.watch().restarted())
            shares.append(each.minutes or 0.0)
            ends.append(time.now)
        time.now = max(ends)
        return {}

    monkeypatch.setattr(portfolio, "train_together", together)
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (400.0, {}))
    monkeypatch.setattr(Stopwatch, "of_process", time.watch)
    assert main(words(shared_folder, tmp_path / "s", "--processes", "2", minutes=10)) == 0
    record = read_search(tmp_path / "s")
    assert [Path(member.folder).name for member in record.members] == ["1", "2", "3", "4"] and record.done
    assert len(set(shares)) == 2 and all(0.4 < share / 10 < 0.5 for share in shares)
    assert time.now == pytest.approx(600, rel=0.03)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--processes 0 --minutes 3", "the number of runs that a search trains at the same time"),
        ("--processes 2 --epochs 3", "the number of runs that a search trains at the same time"),
        ("--engine ray --minutes 3", "need --processes N"),
        ("--address here --processes 2 --minutes 3", "add --engine ray"),
    ],
)
def test_processes_are_those_of_a_search(
    folder: Path, tmp_path: Path, more: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(folder), "--output", str(tmp_path / "run"), *more.split()]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_no_time_for_another_member_ends_a_search_with_what_there_is(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    time = FakeTime()
    charge_for_everything(time, monkeypatch, step=24.0, image=0.3)
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (400.0, {}))
    monkeypatch.setattr(Stopwatch, "of_process", time.watch)

    def late(config: Any, **options: Any) -> Any:
        found = train(config, **options)
        time.charge(400.0)  # the machine stood still
        return found

    monkeypatch.setattr(portfolio, "train", late)
    assert main(words(shared_folder, tmp_path / "s", minutes=10)) == 0
    record = read_search(tmp_path / "s")
    assert record.done and len(record.members) == record.count == 1 and record.test is not None


@pytest.mark.parametrize("diverging", [("1",), ("1", "2")])
def test_a_member_that_diverges_does_not_end_a_search(
    shared_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick: None,
    capsys: pytest.CaptureFixture[str],
    diverging: tuple[str, ...],
) -> None:
    time = FakeTime()
    charge_for_everything(time, monkeypatch, step=24.0, image=0.3)
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (400.0, {}))
    monkeypatch.setattr(Stopwatch, "of_process", time.watch)

    def unlucky(config: Any, **options: Any) -> Any:
        if Path(config.output).name in diverging:
            config = replace(config, lr=1e30)
        return train(config, **options)

    monkeypatch.setattr(portfolio, "train", unlucky)
    code = main(words(shared_folder, tmp_path / "s", minutes=10))
    record, printed = read_search(tmp_path / "s"), capsys.readouterr()
    assert "member 1 diverged and is not used: the " in printed.out
    if len(diverging) == 1:
        assert code == 0 and record.done and record.weights == {"members/2": 1.0} and record.test is not None
        assert [bool(member.diverged) for member in record.members] == [True, False]
        assert "diverged" in printed.out.split("members/1")[-1].splitlines()[0]
        assert best_member(tmp_path / "s").name == "2"
        assert main(["report", str(tmp_path / "s")]) == 0  # of the diverged member, too
        page = (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
        assert ">diverged<" in page.partition("<h2>Search</h2>")[2].partition("<h2>Result</h2>")[0]
    else:
        assert code == 4 and "all 2 members diverged: the " in printed.err and not record.done


@pytest.mark.heavy
def test_runs_in_processes_of_their_own(shared_folder: Path, tmp_path: Path) -> None:
    runs = {
        tmp_path / name: config(shared_folder, tmp_path / name, epochs=epochs, workers=0)
        for name, epochs in (("1", 1), ("2", 2))
    }
    assert train_together(runs) == {}
    assert [len(read_rows(run)) for run in runs] == [1, 2]
    assert all((run / "result.json").is_file() and run.with_suffix(".log").stat().st_size for run in runs)
    train_together(runs)  # nothing is left to do
    wild = {tmp_path / "4": config(shared_folder, tmp_path / "4", epochs=2, workers=0, lr=1e30)}
    assert "is not finite" in train_together(wild)[tmp_path / "4"]
    bad = {tmp_path / "3": config(shared_folder / "nothing", tmp_path / "3")}
    with pytest.raises(VitletError, match=r"nothing.*see .*3\.log"):
        train_together(bad)


@pytest.mark.heavy
def test_runs_on_a_ray_cluster(shared_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    runs = {tmp_path / name: config(shared_folder, tmp_path / name, epochs=1, workers=0) for name in ("1", "2")}
    assert train_together(runs, Workers(2, "ray")) == {}
    losses = [[row["train/loss"] for row in read_rows(run)] for run in runs]
    assert losses[0] == losses[1] and len(losses[0]) == 1
    assert all((run / "result.json").is_file() and run.with_suffix(".log").stat().st_size for run in runs)
