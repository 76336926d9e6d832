"""Class folders as sets of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vitlet.data.decode import is_image
from vitlet.data.images import Dataset, Files
from vitlet.errors import VitletError

TRAIN = ("train", "training")
VAL = ("val", "valid", "validation")
TEST = ("test",)


def roots(data_dir: Path, names: Sequence[str]) -> list[Path]:
    """Folders to look into: those with a telling name, up to two deep, then the data folder itself."""
    near = [data_dir / name for name in names]
    deep = [folder / name for folder in near for name in names]
    return [folder for folder in [*near, *deep] if folder.is_dir()] + [data_dir]


def first_folder(root: Path, names: Sequence[str]) -> Path | None:
    """The first of the sub-folders that exists."""
    return next((root / name for name in names if (root / name).is_dir()), None)


def class_names(root: Path) -> tuple[str, ...]:
    """Names of the class folders; numbers in the order of numbers."""
    names = [item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith(".")]
    return tuple(sorted(names, key=int if all(name.isdecimal() for name in names) else None))


def read_classes(root: Path, classes: Sequence[str]) -> Files:
    """All images of these class folders, by class and name."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(
            Path(folder, file) for folder, _, files in os.walk(root / name) for file in files if is_image(file)
        )
        paths += found
        labels += [label] * len(found)
    return Files(tuple(paths), tuple(labels))


def refuse_strangers(folder: Path, classes: Sequence[str]) -> None:
    """Every class folder has to be a class of the training images."""
    strangers = sorted(set(class_names(folder)) - set(classes))
    if strangers:
        raise VitletError(
            f"{folder} holds the class {strangers[0]!r}, which the training images do not have; their"
            f" {len(classes)} classes are needed. Remove that folder, or add the class to the training images."
        )


def from_folders(root: Path) -> Dataset | None:
    """``train/CLASS``, and where they are there ``val/CLASS`` and ``test/CLASS``; None without training folders."""
    train = first_folder(root, TRAIN)
    classes = class_names(train) if train is not None else ()
    if train is None or not classes:
        return None
    sets: dict[str, Files | None] = {}
    for split, names in {"val": VAL, "test": TEST}.items():
        folder = first_folder(root, names)
        if folder is not None:
            refuse_strangers(folder, classes)
        sets[split] = None if folder is None else read_classes(folder, classes)
    return Dataset(classes, read_classes(train, classes), sets["val"], sets["test"], f"class folders in {root}")
