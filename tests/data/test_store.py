"""Decoded images in memory and in the cache on disk: the same pixels, built once, shared by processes."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image

from builders.digits import write_digits
from vitlet.data.images import Arrays, ImageSet
from vitlet.data.preprocess import Preprocess
from vitlet.data.sources import Request, load_dataset
from vitlet.data.store import Fit, Lazy, Loose, Packed, Shrink, Stored, Storing, Transform, keep_images
from vitlet.errors import VitletError

FIT = Fit(Preprocess((12, 10), crop_pct=0.9, mean=[0.5] * 3, std=[0.5] * 3))


def images(folder: Path) -> ImageSet:
    return load_dataset(Request(str(folder), val_fraction=0.0)).train


def kept(
    found: ImageSet, transform: Transform = FIT, *, limit: int = 0, cache: Path | None = None, **options: bool
) -> Stored:
    return keep_images(found, transform, Storing(3, cache, limit, **options))


@pytest.mark.parametrize("transform", [FIT, Shrink(8), Shrink(99)])
def test_memory_disk_and_no_cache_give_the_same_pixels(transform: Transform, folder: Path, tmp_path: Path) -> None:
    found = images(folder)
    stored = [
        kept(found, transform, limit=2**20).images,
        kept(found, transform, cache=tmp_path / "cache").images,
        kept(found, transform).images,
    ]
    assert [type(each) for each in stored] == [Arrays, Packed, Lazy]
    for index in range(len(found)):
        expected = transform(found.image(index, 3))
        for each in stored:
            assert torch.equal(each.image(index, 3), expected)
            assert each.name(index) == found.name(index)
            assert each.key(index) == found.key(index)
    assert all(list(each.labels) == list(found.labels) for each in stored)
    assert stored[0].one_size
    assert stored[1].one_size


def test_images_of_several_sizes(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (20, 9), (9, 9, 9)).save(folder / "digit 0" / "wide.png")
    found = images(folder)
    memory, disk = (kept(found, Shrink(8), limit=size, cache=tmp_path / "cache").images for size in (2**20, 0))
    assert isinstance(memory, Loose)
    assert isinstance(disk, Packed)
    assert not memory.one_size
    assert not disk.one_size
    wide = next(index for index in range(len(found)) if found.name(index).endswith("wide.png"))
    assert memory.image(wide, 3).shape == disk.image(wide, 3).shape == (3, 8, 18)


def test_the_cache_is_built_once_and_follows_the_content(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    kept(images(folder), cache=cache)
    entries = {path.name for path in cache.iterdir() if path.is_dir()}
    assert len(entries) == 1
    monkeypatch.setattr(Preprocess, "pixels", lambda *_: pytest.fail("decoded again"))
    again = kept(images(folder), cache=cache).images
    assert again.image(0, 3).shape == (3, 12, 10)
    monkeypatch.undo()
    moved = folder.rename(folder.with_name("moved"))  # elsewhere, but the same images
    kept(images(moved), cache=cache)
    assert {path.name for path in cache.iterdir() if path.is_dir()} == entries
    file = next(moved.rglob("*.png"))
    Image.new("RGB", (16, 16), (1, 2, 3)).save(file)
    kept(images(moved), cache=cache)
    assert len({path.name for path in cache.iterdir() if path.is_dir()}) == 2


def build(folder: Path, cache: Path, answers: multiprocessing.Queue[float]) -> None:
    torch.set_num_threads(1)
    answers.put(sum(float(kept(images(folder), cache=cache).images.image(i, 3).sum()) for i in range(24)))


@pytest.mark.heavy
def test_two_processes_share_one_cache(folder: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[float] = context.Queue()
    processes = [context.Process(target=build, args=(folder, tmp_path / "cache", answers)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert found[0] == found[1] > 0
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1
    assert not list((tmp_path / "cache").glob(".building-*"))


def test_an_interrupted_build_leaves_nothing_half_done(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def stop(self: Preprocess, image: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return image[:, :12, :10]

    monkeypatch.setattr(Preprocess, "pixels", stop)
    with pytest.raises(KeyboardInterrupt):
        kept(images(folder), cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    monkeypatch.undo()
    assert len(kept(images(folder), cache=tmp_path / "cache").images) == 24


@pytest.mark.parametrize("disk", [False, True])
def test_unreadable_files_stop_or_are_counted(disk: bool, folder: Path, tmp_path: Path) -> None:
    bad = sorted((folder / "digit 1").glob("*.png"))[2]
    bad.write_bytes(bad.read_bytes()[:-40])
    where = {"cache": tmp_path / "cache"} if disk else {"limit": 2**20}
    with pytest.raises(VitletError, match=f"cannot read the image .*{bad.name}"):
        kept(images(folder), **where)  # type: ignore[arg-type]
    stored = kept(images(folder), skip_unreadable=True, **where)  # type: ignore[arg-type]
    assert len(stored.skipped) == 1
    assert bad.name in stored.skipped[0]
    assert len(stored.images) == 23
    labels = [
        label
        for label, name in zip(images(folder).labels, map(images(folder).name, range(24)), strict=True)
        if name != str(bad)
    ]
    assert list(stored.images.labels) == labels
    assert all(stored.images.name(index) != str(bad) for index in range(23))
    if disk:  # a later run that does not skip still says so
        with pytest.raises(VitletError, match=bad.name):
            kept(images(folder), **where)  # type: ignore[arg-type]


@pytest.mark.parametrize("disk", [False, True])
def test_all_unreadable_files_are_named_with_what_to_do(disk: bool, folder: Path, tmp_path: Path) -> None:
    bad = sorted(folder.rglob("*.png"))[3:15]
    for file in bad:
        file.write_bytes(b"no image")
    where = {"cache": tmp_path / "cache"} if disk else {"limit": 2**20}
    with pytest.raises(
        VitletError, match=r"cannot read 12 of 24 images: .*; and 2 more\. .*--skip-unreadable"
    ) as problem:
        kept(images(folder), **where)  # type: ignore[arg-type]
    assert [str(file) in str(problem.value) for file in bad] == [True] * 10 + [False] * 2
    for file in bad[1:]:
        file.unlink()
    with pytest.raises(
        VitletError,
        match=f"cannot read the image .*{bad[0].name}: it is not in a supported image format.*--skip-unreadable",
    ):
        kept(images(folder), **where)  # type: ignore[arg-type]


def test_a_full_disk_is_foreseen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100})())
    with pytest.raises(VitletError, match="Choose another --cache-dir, or --cache none"):
        kept(images(folder), cache=tmp_path / "cache")


def test_sets_travel_to_other_processes(folder: Path, tmp_path: Path) -> None:
    packed = kept(images(folder), cache=tmp_path / "cache").images
    packed.image(0, 3)  # the map is open
    assert len(pickle.dumps(packed)) < 20_000
    copy = pickle.loads(pickle.dumps(packed))
    assert torch.equal(copy.image(5, 3), packed.image(5, 3))
    zipped = write_digits(tmp_path / "more")
    assert len(images(zipped)) == 24
