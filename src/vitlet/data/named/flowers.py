"""Flowers-102: numbered pictures with two MATLAB files, or class folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchvision.datasets import Flowers102

from vitlet.data.images import Dataset, Files, Joined
from vitlet.data.named.folders import from_folders, read_listed, roots
from vitlet.data.named.matfile import read_numbers
from vitlet.data.named.official import Official
from vitlet.errors import VitletError

FLOWERS = tuple(name.rstrip("?") for name in Flowers102.classes)
"""The flowers in the order of their numbers."""


def find_flowers(official: Official, data_dir: Path) -> Dataset | None:
    """The three splits of Flowers-102; ``flowers102`` trains on the first two together."""
    found = _read(roots(data_dir, official.folders), data_dir)
    if found is None or found.val is None or official.val is not None:
        return found
    return replace(found, train=Joined((found.train, found.val)), val=None)


def _read(places: list[Path], data_dir: Path) -> Dataset | None:
    for root in places:
        near = (root, root / "jpg", data_dir)
        tables = [
            next((folder / name for folder in near if (folder / name).is_file()), None)
            for name in ("setid.mat", "imagelabels.mat")
        ]
        if (root / "jpg").is_dir() and tables[0] and tables[1]:
            return _numbered(root / "jpg", tables[0], tables[1])
    folders = next((found for found in map(from_folders, places) if found is not None), None)
    return None if folders is None else _by_name(folders)


def _numbered(images: Path, setid: Path, imagelabels: Path) -> Dataset:
    """``setid.mat`` has the numbers of each split's pictures, ``imagelabels.mat`` the flower of each, both from 1."""
    labels = read_numbers(imagelabels, "labels")[0].reshape(-1).tolist()
    splits = [ids.reshape(-1).tolist() for ids in read_numbers(setid, "trnid", "valid", "tstid")]
    everything = [number for ids in splits for number in ids]
    if len(set(everything)) < len(everything):
        raise VitletError(f"{setid} puts one picture into two splits; each belongs to one. Get the official file.")
    if not all(1 <= number <= len(labels) for number in everything) or not set(labels) <= set(range(1, 103)):
        raise VitletError(
            f"{setid} and {imagelabels} do not belong together: {len(labels):,} labels of 1 to 102, and pictures with"
            f" numbers up to {len(labels):,}, are needed. Get the official files."
        )
    listed = [
        read_listed(images, ((f"image_{number:05d}.jpg", labels[number - 1] - 1) for number in ids), setid)
        for ids in splits
    ]
    train, val, test = listed
    note = f"setid.mat of {images.parent}" + "".join(one.remark() for one in listed)
    return Dataset(FLOWERS, train, val, test, note)


def _by_name(found: Dataset) -> Dataset:
    """Class folders named by number get the flowers' names; those named by flower get the official order."""
    if len(found.classes) != len(FLOWERS):
        return found
    if [name for name in found.classes if name.isdecimal()] == list(found.classes):
        numbers = [int(name) for name in found.classes]
        return replace(found, classes=FLOWERS) if numbers in (list(range(102)), list(range(1, 103))) else found
    if set(found.classes) != set(FLOWERS):
        return found
    order = [FLOWERS.index(name) for name in found.classes]
    sets = {
        name: replace(images, labels=tuple(order[label] for label in images.labels))
        for name, images in found.splits().items()
        if isinstance(images, Files)
    }
    return Dataset(FLOWERS, sets["train"], sets.get("val"), sets.get("test"), found.note)
