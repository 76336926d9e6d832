"""CIFAR-10 and CIFAR-100: pickled batches, binary batches, or class folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitlet.data.images import Arrays, Dataset
from vitlet.data.named.folders import from_folders, roots
from vitlet.data.named.official import Official
from vitlet.data.named.pickles import read_pickle
from vitlet.errors import VitletError

_PIXELS = 3 * 32 * 32
_TEN = tuple(f"data_batch_{number}" for number in range(1, 6))

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Rows of 3,072 bytes, and their labels."""


def find(official: Official, data_dir: Path) -> Dataset | None:
    """The first layout that is there."""
    train, test = (_TEN, "test_batch") if official.classes == 10 else (("train",), "test")
    places = roots(data_dir, official.folders)
    for root in places:
        if any((root / name).is_file() for name in train):
            return _pickled(root, train, test, hundred=official.classes == 100)
        if any((root / f"{name}.bin").is_file() for name in train):
            return _binary(root, train, test, hundred=official.classes == 100)
    return next((found for found in map(from_folders, places) if found is not None), None)


def _pickled(root: Path, train: Sequence[str], test: str, *, hundred: bool) -> Dataset:
    key, meta = ("fine_label_names", "meta") if hundred else ("label_names", "batches.meta")
    names = read_pickle(root / meta).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise VitletError(f"{root / meta} has no list {key!r}, the names of the classes. Get the archive again.")
    classes = tuple(name.decode("utf-8") if isinstance(name, bytes) else name for name in names)

    def read(name: str) -> Batch:
        batch = read_pickle(root / name)
        data, labels = batch.get("data"), batch.get("fine_labels" if hundred else "labels")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (_PIXELS,):
            raise VitletError(f"{root / name} has no 'data' of uint8 rows of {_PIXELS:,}. Get the archive again.")
        numbers = np.asarray(labels if labels is not None else [])
        if numbers.shape != (len(data),) or (len(data) and numbers.dtype.kind not in "iu"):
            raise VitletError(f"{root / name} holds {len(data):,} images without a label each. Get the archive again.")
        return data, numbers.astype(np.int64)

    return _dataset(root, classes, [n for n in train if (root / n).is_file()], test, read, "pickled batches")


def _binary(root: Path, train: Sequence[str], test: str, *, hundred: bool) -> Dataset:
    meta = root / ("fine_label_names.txt" if hundred else "batches.meta.txt")
    if not meta.is_file():
        raise VitletError(f"{root} has binary batches but no {meta.name}, the names of the classes. Get it again.")
    classes = tuple(line.strip() for line in meta.read_text(encoding="utf-8").splitlines() if line.strip())
    head = 2 if hundred else 1  # the coarse label comes first

    def read(name: str) -> Batch:
        rows = np.fromfile(root / name, dtype=np.uint8)
        if rows.size % (head + _PIXELS):
            raise VitletError(
                f"{root / name} has {rows.size:,} bytes, not a multiple of the {head + _PIXELS:,} of an image."
                " It is cut short: get the archive again."
            )
        rows = rows.reshape(-1, head + _PIXELS)
        return rows[:, head:], rows[:, head - 1].astype(np.int64)

    files = [f"{name}.bin" for name in train if (root / f"{name}.bin").is_file()]
    return _dataset(root, classes, files, f"{test}.bin", read, "binary batches")


def _dataset(
    root: Path, classes: tuple[str, ...], train: Sequence[str], test: str, read: Callable[[str], Batch], layout: str
) -> Dataset:
    """Both splits in memory; the test batch may be missing, which the sizes then tell."""

    def images(names: Sequence[str]) -> Arrays:
        data, labels = (np.concatenate(parts) for parts in zip(*map(read, names), strict=True))
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
            raise VitletError(
                f"{root} holds the labels {labels.min()} to {labels.max()} for {len(classes)} classes."
                " Get the archive again."
            )
        pixels = torch.from_numpy(np.ascontiguousarray(data)).view(-1, 3, 32, 32)
        return Arrays(pixels, tuple(labels.tolist()))

    held = images([test]) if (root / test).is_file() else None
    return Dataset(classes, images(train), None, held, f"{layout} in {root}")
