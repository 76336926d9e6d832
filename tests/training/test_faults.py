"""Faults made for real: killed processes, signals, full disks, flipped bytes, hostile files, poisoned losses."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import faults
import vitlet
from builders.runs import finished, run, said
from vitlet.config import RunConfig
from vitlet.data.contents import content_print
from vitlet.errors import LostProcessError
from vitlet.objective import Objective, Outcome
from vitlet.training.checkpoint import MANIFEST, STATE, Checkpoints, _describe
from vitlet.training.files import delete, write_atomically
from vitlet.training.loop import train
from vitlet.training.run_folder import RunFolder, read_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults.write_images(tmp_path_factory.mktemp("faults") / "data")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    train(faults.make_config(data, path))
    return path


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("every task", 1),
        ("2 workers", 3),
        ("2 processes", 2),
        pytest.param("2 processes, 2 workers, bf16, EMA, accumulation", 2, marks=pytest.mark.heavy),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(name: str, seed: int, data: Path, tmp_path: Path) -> None:
    deaths, different = faults.trial(name, data, tmp_path, 3, seed)
    assert sum(deaths.values()) >= 1
    assert different == []


def slow_steps(rank: int) -> None:
    """Leave a parent the time to see a step begin."""
    step = faults.engine.Trainer._step
    faults.engine.Trainer._step = lambda *of: (time.sleep(0.05), step(*of))[1]  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize(
    ("processes", "number"), [(1, signal.SIGINT), (1, signal.SIGTERM), (2, signal.SIGTERM)], ids=str
)
def test_signals_save_this_very_step(processes: int, number: int, data: Path, whole: Path, tmp_path: Path) -> None:
    config = faults.make_config(data, tmp_path / "run", checkpoint_steps=None)
    log = Path(f"{config.output}.log")
    started, watch = faults.start(config, processes, log, victim=processes - 1, before=slow_steps)
    while watch.phase != "step":
        time.sleep(0.001)
    for _ in range(2):  # to one process only, and a second time while it saves
        os.kill(started[-1], number)
        time.sleep(0.02)
    assert faults.await_end(started) == [75] * processes, said(config)
    assert "the state is saved. Continue with: vitlet train --resume" in said(config)
    newest, _ = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert 0 < newest.step < 4  # in the first epoch, though nothing but a signal asked for a checkpoint there
    assert run(config, processes) == [0] * processes
    if processes == 1:
        assert faults.differences(whole, tmp_path / "run") == []


def stop_in_validation(rank: int) -> None:
    """SIGTERM at the beginning of the first validation."""
    evaluate = faults.engine.Trainer._validate
    signals: list[int] = []

    def evaluate_and_signal(*positional: Any, **named: Any) -> Any:
        if not signals:
            signals.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*positional, **named)

    faults.engine.Trainer._validate = evaluate_and_signal  # type: ignore[method-assign]


def test_a_signal_while_evaluating_is_heard(data: Path, whole: Path, tmp_path: Path) -> None:
    config = faults.make_config(data, tmp_path / "run")
    assert run(config, before=stop_in_validation) == [75]
    assert not read_rows(tmp_path / "run")
    assert run(config) == [0]
    assert faults.differences(whole, tmp_path / "run") == []


@pytest.mark.heavy
def test_a_sharded_run_continues_with_a_validation(data: Path, tmp_path: Path) -> None:
    """Its weights are gathered for the first time outside of training."""
    changes: dict[str, Any] = {"fsdp": True, "model_ema": True}
    whole = finished(data, tmp_path / "whole", **changes)
    config = faults.make_config(data, tmp_path / "run", **changes)
    assert run(config, before=stop_in_validation) == [75]
    assert run(config) == [0], said(config)
    assert faults.differences(whole, tmp_path / "run") == []


def break_loss(of_rank: int, at_step: int, how: Callable[[Outcome], Outcome]) -> Callable[[int], None]:
    """From then on, the losses of one process are not what they should be."""

    def before(rank: int) -> None:
        forward, calls = Objective.forward, [0]

        def broken(self: Objective, *positional: Any, **named: Any) -> Outcome:
            calls[0] += self.training
            outcome = forward(self, *positional, **named)
            return how(outcome) if rank == of_rank and calls[0] > at_step + (rank > 0) else outcome

        Objective.forward = broken  # type: ignore[method-assign]

    return before


def infinite_gradient(outcome: Outcome) -> Outcome:
    loss = outcome.loss
    return replace(outcome, loss=loss + (loss - loss.detach()) * float("inf") if loss.requires_grad else loss)


@pytest.mark.parametrize(
    ("what", "how"),
    [("loss", lambda outcome: replace(outcome, loss=outcome.loss * float("nan"))), ("gradient", infinite_gradient)],
)
def test_two_processes_agree_on_what_is_not_finite(
    what: str, how: Callable[[Outcome], Outcome], data: Path, tmp_path: Path
) -> None:
    config = faults.make_config(data, tmp_path / "run", checkpoint_steps=1)
    assert run(config, 2, before=break_loss(1, 6, how)) == [4, 4], said(config)
    told = json.loads((tmp_path / "run" / "not_finite.json").read_text())
    assert (told["epoch"], told["seed"]) == (2, 0)
    assert [part["process"] for part in told["parts_of_the_step"]] == [0, 1]
    images = [image for part in told["parts_of_the_step"] for image in part["images"]]
    assert len(set(images)) == 8
    assert "is not finite in epoch 2" in said(config)
    if what == "loss":
        assert "process 1, training images" in said(config)
    newest, _ = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert newest.step == 4 + told["step"] - 1  # the step before; this one was not taken
    assert all(tensor.isfinite().all() for tensor in newest.tensors("objective.safetensors").values())


def limit_file_size() -> None:
    """No file may grow beyond 10 kB: writing fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def fill_up(at_step: int) -> Callable[[int], None]:
    def before(rank: int) -> None:
        step = faults.engine.Trainer._step

        def fill(self: Any, *positional: Any) -> Any:
            if self.state.steps_done == at_step:
                limit_file_size()
            return step(self, *positional)

        faults.engine.Trainer._step = fill  # type: ignore[method-assign]

    return before


@pytest.mark.parametrize("processes", [1, 2])
def test_a_file_that_cannot_be_written_leaves_the_old_checkpoint(
    processes: int, data: Path, whole: Path, tmp_path: Path
) -> None:
    config = faults.make_config(data, tmp_path / "run")
    assert run(config, processes, before=fill_up(4)) == [2] * processes
    assert "cannot save a checkpoint" in said(config)
    assert "step-00000004-evaluated is intact: make room, then --resume" in said(config)
    newest, damaged = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert (newest.step, damaged) == (4, [])
    assert run(config, processes) == [0] * processes
    if processes == 1:
        assert faults.differences(whole, tmp_path / "run") == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A real file system of 1 MB, where the system lets us have one."""
    (tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "disk")]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip("a file system of 1 MB needs the right to mount one")
    yield tmp_path / "disk"
    subprocess.run(["umount", str(tmp_path / "disk")], check=True)


def test_a_full_disk_leaves_the_old_checkpoint(small_disk: Path, data: Path, whole: Path) -> None:
    config = faults.make_config(data, small_disk / "run")
    run(replace(config, epochs=1))  # to learn how much a run needs at first
    (small_disk / "run" / "curves.png").unlink()  # drawn at the very end
    used = sum(path.stat().st_size for path in (small_disk / "run").rglob("*") if path.is_file())
    subprocess.run(["rm", "-r", str(small_disk / "run")], check=True)
    filler = small_disk / "filler"
    filler.write_bytes(b"\0" * (2**20 - used - 60_000))
    started, _ = faults.start(config, 1, small_disk.parent / "log")
    assert faults.await_end(started) == [2]
    text = (small_disk.parent / "log").read_text()
    assert "No space left" in text or "os error 28" in text or "failed" in text
    assert "Traceback" not in text
    newest, damaged = Checkpoints(small_disk / "run" / "checkpoints").newest()
    assert newest is not None
    assert damaged == []
    filler.unlink()
    started, _ = faults.start(config, 1, small_disk.parent / "log")
    assert faults.await_end(started) == [0]
    assert faults.differences(whole, small_disk / "run") == []


def interrupted(data: Path, path: Path, **changes: Any) -> RunConfig:
    """A run that was killed after its second epoch, with two checkpoints."""
    config = faults.make_config(data, path, **changes)
    assert run(config, death=faults.Death("step", 11, 0.0)) == [-signal.SIGKILL]
    return config


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing", "added", "manifest"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    how: str, data: Path, whole: Path, tmp_path: Path
) -> None:
    config = interrupted(data, tmp_path / "run")
    older, newer = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    file = newer / ("manifest.json" if how == "manifest" else "objective.safetensors")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "missing":
        file.unlink()
    elif how == "added":
        (newer / "inner").mkdir()
        (newer / "inner" / "notes.txt").write_text("mine")
    else:
        file.write_bytes(content[:-100] if how in ("truncated", "manifest") else content)
    assert run(config) == [0]
    assert f"the checkpoint {newer} is damaged" in said(config)
    if how in ("missing", "added"):
        name = "inner/notes.txt" if how == "added" else file.name
        assert f"files missing or added: {name}" in said(config)
    assert f"continued from {older}" in said(config)
    assert faults.differences(whole, tmp_path / "run") == []


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What is synced, by what the system is asked, and what is put in place, in that order."""
    found: list[tuple[str, Path]] = []
    opened, fsync = os.open, os.fsync
    paths: dict[int, Path] = {}

    def note_open(path: Any, *flags: Any, **named: Any) -> int:
        handle = opened(path, *flags, **named)
        paths[handle] = Path(path)
        return handle

    def note_sync(handle: int) -> None:
        found.append(("synced", paths[handle]))
        fsync(handle)

    def noting(move: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        return lambda path, target: (found.append(("moved", path)), move(path, target))[1]

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", noting(Path.rename))
    monkeypatch.setattr(Path, "replace", noting(Path.replace))
    return found


def test_a_checkpoint_is_on_the_disk_before_the_old_one_goes(events: list[tuple[str, Path]], tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for name in ("step-00000001", "step-00000002"):
        events.clear()
        aside = checkpoints.begin(name)
        (aside / "shards").mkdir()
        for file in ("state.pt", "shards/0.bin"):
            (aside / file).write_text(name)
        checkpoints.finish(name, {"step": 1})
        moved = events.index(("moved", aside))
        inside = ("", "state.pt", "shards", "shards/0.bin", MANIFEST)
        assert {path for what, path in events[:moved] if what == "synced"} == {aside / each for each in inside}
        assert events[moved + 1] == ("synced", tmp_path)
    assert events[moved + 2 :] == [("moved", tmp_path / "step-00000001")]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_files_of_a_run_are_on_the_disk_before_they_replace_others(
    events: list[tuple[str, Path]], tmp_path: Path
) -> None:
    written: tuple[Callable[[str, str], None], ...] = (
        RunFolder(tmp_path).write_text,
        lambda name, text: write_atomically(tmp_path / name, text),
    )
    for write in written:
        events.clear()
        write("name", "text")
        beside = tmp_path / ".name.tmp"
        assert events == [("synced", beside), ("moved", beside), ("synced", tmp_path)]


def test_no_whole_checkpoint_left_is_an_error(data: Path, tmp_path: Path) -> None:
    config = interrupted(data, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").rglob("state.pt"):
        file.write_bytes(b"nonsense")
    with pytest.raises(
        vitlet.VitletError, match=r"checksum of state\.pt is wrong.*No complete checkpoint is left: start the run"
    ):
        train(config)


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("pwned",))


def signed(checkpoint: Path) -> None:
    """Make the checksums right again, as one who means harm would."""
    about = json.loads((checkpoint / MANIFEST).read_text())
    about["files"] = {name: _describe(checkpoint / name) for name in about["files"]}
    (checkpoint / MANIFEST).write_text(json.dumps(about))


def test_a_hostile_state_runs_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = interrupted(data, tmp_path / "run")
    for checkpoint in (tmp_path / "run" / "checkpoints").glob("step-*"):
        torch.save({"epoch": Evil()}, checkpoint / STATE)
        signed(checkpoint)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vitlet.VitletError, match="cannot continue from"):
        train(config)
    assert not (tmp_path / "pwned").exists()


def test_a_hostile_sharded_checkpoint_runs_nothing(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitlet.training.sharded_checkpoint import _SafePlanner, _SafeReader

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(vitlet.VitletError, match=r"refers to posix\.mkdir"):
        _SafeReader(str(tmp_path)).read_metadata()
    torch.save(Evil(), tmp_path / "bytes")
    planner = _SafePlanner()
    with (tmp_path / "bytes").open("rb") as file, pytest.raises(pickle.UnpicklingError):
        planner.load_bytes(None, file)  # type: ignore[arg-type]
    assert not (tmp_path / "pwned").exists()


def processes() -> list[str]:
    """Every process of this machine with its parent."""
    return subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_killed_loading_process_is_named(data: Path, tmp_path: Path) -> None:
    config = faults.make_config(data, tmp_path / "run", workers=2, epochs=200)
    started, watch = faults.start(config, 1, Path(f"{config.output}.log"))
    loading: list[int] = []
    while len(loading) < 2 or watch.phase != "step":
        loading = [int(line.split()[0]) for line in processes() if int(line.split()[1]) == started[0]]
    os.kill(loading[-1], signal.SIGKILL)
    began = time.monotonic()
    assert faults.await_end(started) == [LostProcessError.code], said(config)
    assert time.monotonic() - began < 60
    assert "a loading process is gone or stuck: DataLoader worker" in said(config)
    assert "Traceback" not in said(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.5}, r"other settings: lr 0\.5 \(the run has 0\.001\)"),
        ({"epochs": 9, "drop_path": 0.2}, r"drop_path 0\.2 .*; epochs 9"),
        ({"model": "resnet10t"}, "model 'resnet10t'"),
    ],
    ids=str,
)
def test_other_settings_are_refused_by_name(changes: dict[str, Any], words: str, data: Path, tmp_path: Path) -> None:
    config = interrupted(data, tmp_path / "run")
    with pytest.raises(vitlet.VitletError, match=words):
        train(replace(config, **changes))


def test_other_data_is_refused(data: Path, tmp_path: Path) -> None:
    own = faults.write_images(tmp_path / "data")
    config = interrupted(own, tmp_path / "run")
    (own / "0" / "0.png").unlink()
    with pytest.raises(vitlet.VitletError, match="its training images were 33, the data now has 32"):
        train(config)
    shutil.copy(own / "0" / "1.png", own / "0" / "another.png")  # as many as before
    with pytest.raises(vitlet.VitletError, match="images are not those that it began with"):
        train(config)
    (own / "1").rename(own / "one")
    with pytest.raises(vitlet.VitletError, match=r"its classes were \['0', '1', '2'\]"):
        train(config)


@pytest.mark.parametrize("cache", ["auto", "none"])
def test_images_overwritten_in_place_are_refused(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = faults.write_images(tmp_path / "data")
    config = interrupted(own, tmp_path / "run", cache=cache)
    image = own / "0" / "0.png"
    before = image.read_bytes()
    image.write_bytes(before[:-12] + b"\0" * 12)  # as long as before, and Pillow does not mind
    with pytest.raises(vitlet.VitletError, match="The content of files has"):
        train(config)
    image.write_bytes(before)  # at another time
    for manifest in (tmp_path / "run").rglob(MANIFEST):  # as older versions wrote it
        about = json.loads(manifest.read_text())
        assert about.pop("contents").keys() == {"train", "val"}
        manifest.write_text(json.dumps(about))
    train(config)
    monkeypatch.setattr("vitlet.data.contents.MOST_BYTES", 10)  # then sizes count
    files = [(path.name, path) for path in sorted(own.rglob("*.png"))]
    known = content_print(files)
    image.write_bytes(before[:-12] + b"\0" * 12)
    assert content_print(files) == known
    image.write_bytes(before + b"\0")
    assert content_print(files) != known


def test_another_number_of_loading_processes_gives_the_same_bits(data: Path, whole: Path, tmp_path: Path) -> None:
    config = interrupted(data, tmp_path / "run")
    assert run(replace(config, workers=2, checkpoint_steps=1)) == [0]
    assert faults.differences(whole, tmp_path / "run") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output": "elsewhere"}, "continues in its own folder; leave out --output elsewhere"),
        ({"overwrite": True}, "--overwrite empties it; give one of them"),
    ],
    ids=str,
)
def test_a_resumed_run_stays_where_it_is(changes: dict[str, Any], words: str, whole: Path) -> None:
    with pytest.raises(vitlet.VitletError, match=words):
        train(RunConfig(resume=str(whole), **changes))


def test_stale_temporaries_are_swept(data: Path, tmp_path: Path) -> None:
    config = interrupted(data, tmp_path / "run")
    stale = tmp_path / "run" / "checkpoints" / ".writing-step-00000099"
    stale.mkdir()
    (stale / "state.pt").write_bytes(b"half")
    train(config)
    assert not stale.exists()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob(".*")] == []


def test_only_what_runs_have_made_is_deleted(data: Path, tmp_path: Path) -> None:
    """Other folders among the checkpoints, links, and what lies beside the run stay as they are."""
    checkpoints = tmp_path / "run" / "checkpoints"
    config = interrupted(data, tmp_path / "run")
    mine = [checkpoints / name for name in (".ssh", ".writing-letters", "step-by-step", "step-00000000-copy")]
    mine += [tmp_path / name for name in (".run.old", "run.lock", "elsewhere")]
    for path in mine:
        path.mkdir()
        (path / "key").write_text("mine")
    (checkpoints / ".writing-step-00000098").symlink_to(tmp_path / "elsewhere")
    (checkpoints / "step-00000000").symlink_to(tmp_path / "elsewhere")  # the oldest, which is let go
    train(config)
    assert not list(checkpoints.glob(".writing-step-*"))
    assert not (checkpoints / "step-00000000").is_symlink()
    train(replace(config, output=str(tmp_path / "run2"), resume=None))
    assert all((path / "key").read_text() == "mine" for path in mine)
    with pytest.raises(vitlet.VitletError, match="is not a run"):
        train(replace(config, output=str(checkpoints), resume=None, overwrite=True))


def test_linked_checkpoints_are_not_swept(data: Path, tmp_path: Path) -> None:
    config = interrupted(data, tmp_path / "run")
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "home")
    (tmp_path / "home" / ".ssh").mkdir()
    (tmp_path / "home" / ".writing-step-00000099").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "home")
    before = sorted(path.name for path in (tmp_path / "home").iterdir())
    with pytest.raises(vitlet.VitletError, match=r"checkpoints is a link, .* move the checkpoints back"):
        train(config)
    train(replace(config, resume=None, overwrite=True))  # takes the link away, and makes a folder
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == before
    assert not (tmp_path / "run" / "checkpoints").is_symlink()


def test_a_run_that_is_being_overwritten_is_known_as_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(interrupted(data, tmp_path / "run"), resume=None, overwrite=True)
    (tmp_path / "run" / ".curves.png.tmp").write_bytes(b"half")
    (tmp_path / "run" / ".vitlet.lock").touch()  # of the process that was killed
    gone: list[Path] = []

    def delete_two(path: Path) -> None:
        if len(gone) == 2:
            raise PermissionError(13, "Permission denied")
        gone.append(path)
        delete(path)

    monkeypatch.setattr("vitlet.training.run_folder.delete", delete_two)
    with pytest.raises(vitlet.VitletError, match=r"cannot empty .*Permission denied"):
        train(config)
    monkeypatch.undo()
    train(config)  # the lock was given back, and what is left is still a run
    assert (tmp_path / "run" / "result.json").is_file()


def test_a_run_killed_before_its_first_checkpoint_starts_again(data: Path, whole: Path, tmp_path: Path) -> None:
    config = faults.make_config(data, tmp_path / "run")
    assert run(config, death=faults.Death("step", 2, 0.0)) == [-signal.SIGKILL]
    assert run(config) == [0]
    assert "from the start" in said(config)
    assert faults.differences(whole, tmp_path / "run") == []


def test_a_finished_run_is_not_trained_again(data: Path, whole: Path) -> None:
    before = (whole / "result.json").stat().st_mtime_ns
    result = train(faults.make_config(data, whole))
    assert "the run was finished already; nothing was trained" in result.warnings
    assert (whole / "result.json").stat().st_mtime_ns == before
