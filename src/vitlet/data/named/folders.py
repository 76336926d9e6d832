"""The files of a dataset on disk: in class folders, or named by a list that may not lead out of the data folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitlet.data.archives import contained_path
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


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as problem:
        raise VitletError(f"cannot read {path}; a text file in UTF-8 is needed. Get it again.") from problem


@dataclass(frozen=True)
class Listed(Files):
    """The files of a list that are there, and the names of those that are not."""

    absent: tuple[str, ...] = ()

    def remark(self) -> str:
        """Remark on missing files for the dataset's note; empty if there are none."""
        if not self.absent:
            return ""
        return f", {len(self.absent):,} listed images are absent, such as {self.absent[0]}"


def read_listed(home: Path, entries: Iterable[tuple[str, int]], source: Path) -> Listed:
    """Files under ``home`` by the names in the list ``source``; a name that points outside of it is refused."""
    inside: dict[PurePosixPath, dict[str, bool]] = {}
    labels: dict[str, int] = {}
    paths: list[Path] = []
    absent: list[str] = []
    for entry, label in entries:
        path = contained_path(entry)
        if path is None or not path.name:
            raise VitletError(
                f"{source} lists {entry!r}, which points outside of the data folder; needed are relative paths"
                " inside it. Get the official list."
            )
        name = str(path)
        if name in labels:
            raise VitletError(f"{source} lists {name!r} twice; each image is needed once. Get the official list.")
        if path.parent not in inside:
            inside[path.parent] = _files(home, home / path.parent)
        known = inside[path.parent]
        if known.get(path.name) is False:
            raise VitletError(
                f"{source} lists {name!r}, a link that points outside of {home}. Put the image itself there."
            )
        if path.name in known:
            paths.append(home / path)
            labels[name] = label
        else:
            absent.append(name)
    return Listed(tuple(paths), tuple(labels.values()), absent=tuple(absent))


def _files(home: Path, folder: Path) -> dict[str, bool]:
    """Names of the files in a folder, and whether each really lies inside ``home``."""
    if not folder.is_dir():
        return {}
    base = home.resolve()
    inside = folder.resolve().is_relative_to(base)
    with os.scandir(folder) as items:
        return {
            item.name: inside and (not item.is_symlink() or Path(item.path).resolve().is_relative_to(base))
            for item in items
            if item.is_file()
        }
