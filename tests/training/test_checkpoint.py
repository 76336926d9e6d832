"""A folder of checkpoints by itself: what is kept, swept, refused and found, without a run around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vitlet.errors import VitletError
from vitlet.training.checkpoint import MANIFEST, STATE, Checkpoints, save_tensors
from vitlet.training.distributed import World


def write(points: Checkpoints, step: int, suffix: str = "") -> Path:
    """A checkpoint of two tensors and a state."""
    name = f"step-{step:08d}{suffix}"
    aside = points.begin(name)
    save_tensors({"a": torch.arange(3.0) + step}, aside / "model.safetensors")
    torch.save({"step": step}, aside / STATE)
    points.finish(name, {"step": step})
    return points.folder / name


def names(points: Checkpoints) -> list[str]:
    return sorted(path.name for path in points.folder.iterdir())


def test_the_newest_is_found_and_the_oldest_go(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "run" / "checkpoints")
    assert points.peek() == points.newest() == (None, [])
    for step in (1, 2, 3):
        write(points, step)
    assert names(points) == ["step-00000002", "step-00000003"]  # two are kept unless one says otherwise
    evaluated = write(points, 3, "-evaluated")
    newest, damaged = points.newest()
    assert newest is not None
    assert (newest.path, newest.step, damaged) == (evaluated, 3, [])
    assert newest.tensors("model.safetensors")["a"].tolist() == [3, 4, 5]
    assert newest.state() == {"step": 3}
    manifest = json.loads((evaluated / MANIFEST).read_text())
    assert manifest["format"] == 1
    assert sorted(manifest["files"]) == ["model.safetensors", STATE]
    assert manifest["files"][STATE]["bytes"] == (evaluated / STATE).stat().st_size


def test_a_step_that_is_written_again_replaces_itself(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path, keep=1)
    path = write(points, 7)
    (path / STATE).write_bytes(b"broken")
    write(points, 7)
    newest, damaged = points.newest()
    assert newest is not None and newest.state() == {"step": 7}
    assert (damaged, names(points)) == ([], ["step-00000007"])


def test_only_own_names_are_touched(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path, keep=1)
    others = ["step-1", "step-0000000x", "mine", ".writing-mine", "step-00000001-other"]
    for name in [*others, ".writing-step-00000005", ".deleting-step-00000001-evaluated"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    write(points, 3)
    assert ".writing-step-00000005" in names(points)  # another process may be writing it
    points.peek()
    assert ".writing-step-00000005" in names(points)
    points.newest()
    write(points, 4)
    assert names(points) == sorted([*others, "step-00000004"])


def test_what_begins_is_empty(tmp_path: Path) -> None:
    points = Checkpoints(tmp_path)
    (points.begin("step-00000001") / "old").write_text("left by a killed process")
    aside = points.begin("step-00000001")
    assert aside.name == ".writing-step-00000001"
    assert not list(aside.iterdir())


def test_a_link_is_not_swept_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VitletError, match="is a link, and old checkpoints would be deleted in its target"):
        Checkpoints(tmp_path / "link").newest()


def change_format(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, "format": 2}))


def cut(path: Path) -> None:
    (path / STATE).write_bytes((path / STATE).read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "format": (change_format, "its format is 2, this version of vitlet reads 1"),
    "added": (lambda path: (path / "more").touch(), "files missing or added: more$"),
    "missing": (lambda path: (path / STATE).unlink(), f"files missing or added: {STATE}$"),
    "cut": (cut, f"the checksum of {STATE} is wrong"),
    "flipped": (flip, "the checksum of model.safetensors is wrong"),
    "no manifest": (lambda path: (path / MANIFEST).unlink(), "No such file"),
    "no JSON": (lambda path: (path / MANIFEST).write_text("{"), "Expecting property name"),
    "a list": (lambda path: (path / MANIFEST).write_text("[]"), "list indices"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_is_found(damage: str, tmp_path: Path) -> None:
    points = Checkpoints(tmp_path / "run" / "checkpoints")
    before, path = write(points, 1), write(points, 2)
    hurt, sentence = DAMAGES[damage]
    hurt(path)
    newest, damaged = points.newest()
    assert newest is not None and newest.path == before
    assert len(damaged) == 1
    with pytest.raises(AssertionError, match=rf"step-00000002 is damaged: .*{sentence}"):
        raise AssertionError(damaged[0])
    hurt(before)
    with pytest.raises(VitletError, match=r"step-00000002 is damaged: .*; the checkpoint .*step-00000001 is damaged"):
        points.newest()
    with pytest.raises(VitletError, match=rf"start the run again .* --init {tmp_path / 'run'}\."):
        points.newest()


def test_a_failure_says_what_is_left(tmp_path: Path) -> None:
    points, world = Checkpoints(tmp_path / "run" / "checkpoints"), World()

    def full() -> None:
        raise RuntimeError("no space\nat all")

    points.begin("step-00000001")
    with pytest.raises(VitletError, match=r"cannot save a checkpoint in .*run: no space\. There is none yet: "):
        points.save("step-00000001", {"step": 1}, full, world)
    assert not list(points.folder.iterdir())
    for step in (2, 3):
        write(points, step)
    with pytest.raises(VitletError, match="The checkpoint step-00000003 is intact: make room, then --resume"):
        points.save("step-00000004", {"step": 4}, full, world)
    points.begin("step-00000005")
    points.save("step-00000005", {"step": 5}, lambda: None, world)
    newest, _ = points.newest()
    assert newest is not None and newest.step == 5


def test_a_folder_that_cannot_be_put_in_place_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = Checkpoints(tmp_path)
    points.begin("step-00000001")

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(VitletError, match=r"cannot save a checkpoint .*No space left on device.*There is none yet"):
        points.save("step-00000001", {"step": 1}, lambda: None, World())


def test_tensors_that_share_memory_are_all_there(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    several = {"one": shared, "two": shared, "three": shared.view(2, 3).T, "own": torch.ones(2)}
    save_tensors(several, tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == several.keys()
    assert all(torch.equal(found[name], several[name]) for name in several)
