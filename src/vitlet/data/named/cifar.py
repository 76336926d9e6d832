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

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Rows of 3,072 bytes, and their labels."""


def find_cifar(official: Official, data_dir: Path) -> Dataset | None:
    """The first layout that is there; the test batch may be missing, which the sizes then tell."""
    hundred = official.classes == 100
    train, test = (["train"], "test") if hundred else ([f"data_batch_{number}" for number in range(1, 6)], "test_batch")
    places = roots(data_dir, official.folders)
    for root in places:
        for suffix, layout, names, read in (
            ("", "pickled batches", _pickled_names, _pickled_batch),
            (".bin", "binary batches", _binary_names, _binary_batch),
        ):
            found = [root / f"{name}{suffix}" for name in train if (root / f"{name}{suffix}").is_file()]
            if found:
                classes = names(root, hundred)
                held = root / f"{test}{suffix}"
                held_out = _images([held], classes, read, hundred) if held.is_file() else None
                images = _images(found, classes, read, hundred)
                return Dataset(classes, images, None, held_out, f"{layout} in {root}")
    return next((found for found in map(from_folders, places) if found is not None), None)


def _images(
    paths: Sequence[Path], classes: Sequence[str], read: Callable[[Path, bool], Batch], hundred: bool
) -> Arrays:
    """A split in memory."""
    data, labels = (np.concatenate(parts) for parts in zip(*(read(path, hundred) for path in paths), strict=True))
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise VitletError(
            f"{paths[0].parent} holds the labels {labels.min()} to {labels.max()} for {len(classes)} classes."
            " Download the archive again."
        )
    return Arrays(torch.from_numpy(np.ascontiguousarray(data)).view(-1, 3, 32, 32), tuple(labels.tolist()))


def _pickled_names(root: Path, hundred: bool) -> tuple[str, ...]:
    key, meta = ("fine_label_names", "meta") if hundred else ("label_names", "batches.meta")
    names = read_pickle(root / meta).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise VitletError(f"{root / meta} has no list {key!r}, the names of the classes. Download the archive again.")
    return tuple(name.decode("utf-8") if isinstance(name, bytes) else name for name in names)


def _pickled_batch(path: Path, hundred: bool) -> Batch:
    batch = read_pickle(path)
    data, labels = batch.get("data"), batch.get("fine_labels" if hundred else "labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (_PIXELS,):
        raise VitletError(f"{path} has no 'data' of uint8 rows of {_PIXELS:,}. Download the archive again.")
    numbers = np.asarray(labels if labels is not None else [])
    if numbers.shape != (len(data),) or (len(data) and numbers.dtype.kind not in "iu"):
        raise VitletError(f"{path} holds {len(data):,} images without a label each. Download the archive again.")
    return data, numbers.astype(np.int64)


def _binary_names(root: Path, hundred: bool) -> tuple[str, ...]:
    meta = root / ("fine_label_names.txt" if hundred else "batches.meta.txt")
    if not meta.is_file():
        raise VitletError(f"{root} has binary batches but no {meta.name}, the names of the classes. Get it again.")
    return tuple(line.strip() for line in meta.read_text(encoding="utf-8").splitlines() if line.strip())


def _binary_batch(path: Path, hundred: bool) -> Batch:
    head = 2 if hundred else 1  # the coarse label comes first
    rows = np.fromfile(path, dtype=np.uint8)
    if rows.size % (head + _PIXELS):
        raise VitletError(
            f"{path} has {rows.size:,} bytes, not a multiple of the {head + _PIXELS:,} of an image."
            " It is cut short: get the archive again."
        )
    rows = rows.reshape(-1, head + _PIXELS)
    return rows[:, head:], rows[:, head - 1].astype(np.int64)
