"""The papers' datasets by name: found on disk or downloaded, with their official splits, their sizes checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitlet.data.named.official import OFFICIAL, Official
from vitlet.errors import VitletError, nearest

if TYPE_CHECKING:
    from vitlet.data.images import Dataset

__all__ = ["OFFICIAL", "Official", "load_named", "require_data"]


def require_data(data: str, data_dir: str | None, *, download: bool) -> None:
    """Refuse a DATA that is not there, as far as that is known without reading it, and without importing torch."""
    if data == "digits" or data.startswith("hf:") or "://" in data or Path(data).exists():
        return
    if data not in OFFICIAL:
        raise VitletError(
            f"no such folder: {data}. DATA is a folder with one sub-folder of images per class, a zip or tar of that,"
            f" a CSV or Parquet table, an .npz file, or the name of a dataset.{nearest(data, [*OFFICIAL, 'digits'])}"
        )
    if not download and not Path(data_dir or "data").exists():
        raise VitletError(_absent(OFFICIAL[data], Path(data_dir or "data"), download=False))


def load_named(
    name: str, data_dir: Path, *, download: bool, class_list: Path | None = None, partial: bool = False
) -> Dataset:
    """The dataset called ``name``, from ``data_dir`` in any layout that people have on disk.

    Args:
        name: a key of ``OFFICIAL``.
        data_dir: the folder that holds it, or its parent.
        download: download it if it is missing.
        class_list: for imagenet100, a file with a WordNet id per line.
        partial: accept other sizes than the official ones; the note then says so.
    """
    official = OFFICIAL.get(name)
    if official is None:
        raise VitletError(f"no dataset is called {name!r}.{nearest(name, OFFICIAL)} Known: {', '.join(OFFICIAL)}.")
    if class_list is not None and name != "imagenet100":
        raise VitletError(f"a class list was given for {name}; it is for imagenet100 only. Leave it out.")
    if data_dir.is_file():
        raise VitletError(f"{data_dir} is a file; the data folder of {name} is needed.")
    dataset = _find(official, data_dir, class_list)
    if dataset is None and download:
        from vitlet.data.named.download import download_dataset

        download_dataset(official, data_dir)
        dataset = _find(official, data_dir, class_list)
    if dataset is None:
        raise VitletError(_absent(official, data_dir, download=download))
    return _checked(dataset, official, data_dir, partial=partial)


def _find(official: Official, data_dir: Path, class_list: Path | None) -> Dataset | None:
    """The dataset in this folder, complete or not; None if no layout is recognized."""
    from vitlet.data.named.cifar import find_cifar
    from vitlet.data.named.domainnet import find_domainnet
    from vitlet.data.named.flowers import find_flowers
    from vitlet.data.named.imagenet import find_imagenet
    from vitlet.data.named.svhn import find_svhn

    if official.family == "imagenet":
        return find_imagenet(official, data_dir, class_list)
    families = {"cifar": find_cifar, "svhn": find_svhn, "flowers": find_flowers, "domainnet": find_domainnet}
    return families[official.family](official, data_dir)


def _absent(official: Official, data_dir: Path, *, download: bool) -> str:
    """Error message for a missing dataset: expected files, found files, and where to get it."""
    if not data_dir.is_dir():
        there = "no such folder"
    else:
        names = sorted(item.name for item in data_dir.iterdir() if not item.name.startswith("."))
        there = f"it holds {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "it is empty"
    way_out = f"Get it from {official.address}"
    if official.files and not download:
        way_out += ", or pass --download"
    return f"found no {official.name} in {data_dir} ({there}). Expected there: {official.layout}. {way_out}."


def _checked(dataset: Dataset, official: Official, data_dir: Path, *, partial: bool) -> Dataset:
    """Hold the sizes to the official ones."""
    wanted = {"training": official.train, "validation": official.val or 0, "test": official.test}
    parts = {"training": dataset.train, "validation": dataset.val, "test": dataset.test}
    found = {part: 0 if images is None else len(images) for part, images in parts.items()}
    what = _counts(found, len(dataset.classes))
    if found == wanted and len(dataset.classes) == official.classes:
        return replace(dataset, note=f"{official.name}: the official {what} ({dataset.note}); {official.note}")
    difference = f"{what} ({dataset.note}), where the official {official.name} has {_counts(wanted, official.classes)}"
    if not found["training"]:
        raise VitletError(
            f"{data_dir} holds {difference}. There is nothing to train on: download it from {official.address}."
        )
    if not partial:
        raise VitletError(
            f"{data_dir} holds {difference}. The download may be incomplete, or another version. Download it again from"
            f" {official.address} into an empty folder, or pass --partial to use the incomplete dataset."
        )
    return replace(dataset, note=f"partial: {difference}; {official.note}")


def _counts(counts: dict[str, int], classes: int) -> str:
    """Such as ``50,000 training and 10,000 test images of 10 classes``."""
    parts = [f"{count:,} {part}" for part, count in counts.items() if count or part != "validation"]
    return f"{', '.join(parts[:-1])} and {parts[-1]} images of {classes:,} classes"
