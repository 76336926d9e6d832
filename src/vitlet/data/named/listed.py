"""Files that a list or a table names; what it names outside the data folder is refused."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitlet.data.archives import contained_path
from vitlet.errors import VitletError


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as problem:
        raise VitletError(f"cannot read {path}; a text file in UTF-8 is needed. Get it again.") from problem


@dataclass(frozen=True)
class Listed:
    """The files of a list that are there, their labels, and the names of those that are not."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    absent: tuple[str, ...]

    def remark(self) -> str:
        """For the note; empty where every file is there."""
        if not self.absent:
            return ""
        return f", {len(self.absent):,} listed images are absent, such as {self.absent[0]}"


def read_listed(home: Path, entries: Iterable[tuple[str, int]], source: Path) -> Listed:
    """Files under ``home`` by the names that the list ``source`` gives them; a name that leads out of it is refused."""
    inside: dict[PurePosixPath, dict[str, bool]] = {}
    labels: dict[str, int] = {}
    paths: list[Path] = []
    absent: list[str] = []
    for entry, label in entries:
        path = contained_path(entry)
        if path is None or not path.name:
            raise VitletError(
                f"{source} lists {entry!r}, which leads out of the data folder; relative paths inside it are needed."
                " Get the official list."
            )
        name = str(path)
        if name in labels:
            raise VitletError(f"{source} lists {name!r} twice; each image is needed once. Get the official list.")
        if path.parent not in inside:
            inside[path.parent] = _files(home, home / path.parent)
        known = inside[path.parent]
        if known.get(path.name) is False:
            raise VitletError(f"{source} lists {name!r}, a link that leads out of {home}. Put the image itself there.")
        if path.name in known:
            paths.append(home / path)
            labels[name] = label
        else:
            absent.append(name)
    return Listed(tuple(paths), tuple(labels.values()), tuple(absent))


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
