"""What people give `vitlet train` that cannot work, or hardly: a clear message, and nothing lost."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders.digits import write_digits
from builders.fake_time import FakeTime, charge_for_everything
from vitlet.cli import main
from vitlet.config import RunConfig
from vitlet.data import store
from vitlet.data.images import Arrays
from vitlet.errors import VitletError
from vitlet.experiments import portfolio
from vitlet.training import checkpoint
from vitlet.training.choice import choose
from vitlet.training.clock import Stopwatch
from vitlet.training.jobs import ClassifierJob
from vitlet.training.run_folder import read_config
from vitlet.training.search_folder import read_search


def images(folder: Path, **counts: int) -> Path:
    """Classes of noise."""
    draw = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(draw.integers(0, 255, (12, 12, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


def words(data: Path, output: Path, *more: str) -> list[str]:
    return ["train", str(data), "--device", "cpu", "-j", "0", "--output", str(output), *more]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"cat": 5}, r"holds one class \('cat'\); a classifier needs at least two"),
        ({"cat": 1, "dog": 1}, "no image could be held out for validation: found one image in each class"),
        ({"cat": 0, "dog": 0}, "holds no class folders and no images"),
    ],
)
@pytest.mark.parametrize("length", [("--epochs", "1"), ("--minutes", "5")])
def test_too_little_to_learn_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], counts: dict[str, int], message: str, length: tuple[str, str]
) -> None:
    data = images(tmp_path / "data", **counts)
    assert main(words(data, tmp_path / "run", *length)) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_a_class_of_one_image_is_trained_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = images(tmp_path / "data", cat=12, dog=1)
    assert main(words(data, tmp_path / "run", "--epochs", "1")) == 0
    printed = capsys.readouterr().out
    assert "the smallest 1" in printed and "1 of 2 classes have fewer than 10 training images" in printed


def test_unreadable_files_stop_a_search_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = images(tmp_path / "data", cat=6, dog=6)
    (data / "cat" / "0.png").write_bytes(b"no image")
    (data / "dog" / "1.png").write_bytes(b"")
    assert main(words(data, tmp_path / "s", "--minutes", "5")) == 2
    error = capsys.readouterr().err
    assert "cannot read 2 of" in error and "0.png" in error and "1.png" in error and "--skip-unreadable" in error
    assert not (tmp_path / "s").exists()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """A clock that a step on images of 32 px moves by 2 seconds, of 64 px by 8."""
    found = FakeTime()
    charge_for_everything(found, monkeypatch, step=2.0, image=0.01)
    monkeypatch.setattr(Stopwatch, "of_process", found.watch)
    return found


def test_too_little_time_takes_the_smallest_model(
    tmp_path: Path, time: FakeTime, capsys: pytest.CaptureFixture[str]
) -> None:
    """One pass of 13 steps takes 84 seconds at 48 to 64 px, and 26 at 32 px."""
    data = write_digits(tmp_path / "data", per_class=40, size=64)
    assert main(words(data, tmp_path / "run", "--minutes", "1.5")) == 0
    error = capsys.readouterr().err
    assert "minutes is 1.5, but one pass over 108 images" in error
    assert "the smallest model instead, resnet_xs_for_32px" in error
    found = read_config(tmp_path / "run")
    assert (found.model, found.img_size, found.img_size_start) == ("resnet_xs_for_32px", (32, 32), None)
    assert time.now == pytest.approx(90, rel=0.03)


def test_too_little_time_for_anything_names_the_least(
    shared_folder: Path, tmp_path: Path, time: FakeTime, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(shared_folder, tmp_path / "run", "--minutes", "0.1")) == 2
    error = capsys.readouterr().err
    assert "the smallest model instead" not in error  # no time is left to try it
    least = float(error.split("Needed: --minutes ")[1].split()[0])
    assert least > 0.1 and not (tmp_path / "run").exists()
    time.now = 5.0
    assert main(words(shared_folder, tmp_path / "run", "--minutes", str(least))) == 0
    assert time.now <= 60 * least * 1.03


def test_a_full_disk_stops_a_search_that_goes_on_later(
    shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    time = FakeTime()
    charge_for_everything(time, monkeypatch, step=40.0, image=0.01)  # a quarter of it at 16 px
    monkeypatch.setattr(Stopwatch, "of_process", time.watch)
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (250.0, {}))
    sync, full = checkpoint.sync, True

    def written(path: Path) -> None:
        if full and "members/2" in path.as_posix():
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    monkeypatch.setattr(checkpoint, "sync", written)
    assert main(words(shared_folder, tmp_path / "s", "--minutes", "6")) == 2
    error = capsys.readouterr().err
    assert "cannot save a checkpoint" in error and "No space left on device" in error
    assert "member 2 of 2 of a search" in error and f"vitlet train --resume {tmp_path / 's'};" in error
    assert len(read_search(tmp_path / "s").members) == 1
    assert main(["evaluate", str(tmp_path / "s"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 12
    full, time.now = False, 5.0
    assert main(["train", "--resume", str(tmp_path / "s")]) == 0
    assert read_search(tmp_path / "s").done


def test_a_full_disk_leaves_no_half_of_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    found = Arrays.of(np.zeros((4, 8, 8, 3), np.uint8), [0, 1, 0, 1])
    storing = store.Storing(3, tmp_path / "cache", limit=0)
    with pytest.raises(
        VitletError, match=r"cannot write the image cache .*No space left.*--cache-dir, or --cache none"
    ):
        store.keep_images(found, store.Shrink(8), storing)
    assert not [each for each in (tmp_path / "cache").iterdir() if each.suffix != ".lock"]
    monkeypatch.undo()
    assert len(store.keep_images(found, store.Shrink(8), storing).images) == 4


def test_several_runs_of_a_choice_decode_once(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large photographs take most of a short time to decode."""
    choice = choose(RunConfig(data=str(shared_folder), device="cpu"), {})
    first = ClassifierJob.build(choice.config, choice=choice)
    assert ClassifierJob.build(choice.config, choice=choice).dataset is first.dataset
    other = ClassifierJob.build(RunConfig.from_dict(choice.config.to_dict() | {"img_size": 24}), choice=choice)
    assert other.dataset is not first.dataset and len(choice.decoded) == 2


@pytest.mark.heavy
def test_ten_thousand_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (10_000, 8, 8), dtype=np.uint8)
    labels = np.arange(10_000)
    np.savez(tmp_path / "many.npz", x_train=pixels, y_train=labels, x_val=pixels[::10], y_val=labels[::10])
    assert main(words(tmp_path / "many.npz", tmp_path / "run", "--epochs", "1")) == 0
    printed = capsys.readouterr().out
    assert "10,000 training images of 10000 classes" in printed and max(map(len, printed.splitlines())) < 400
