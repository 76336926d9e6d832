"""Files that a list or a table names; what it names outside the data folder is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vitlet.errors import VitletError

_FOREIGN = re.compile(r"^[A-Za-z]:|[\\\0]")
"""Drives and backslashes of Windows, and the end of a C string."""


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
    inside: dict[tuple[str, ...], dict[str, bool]] = {}
    labels: dict[str, int] = {}
    paths: list[Path] = []
    absent: list[str] = []
    for entry, label in entries:
        parts = _parts(entry, source)
        name, folder, file = "/".join(parts), parts[:-1], parts[-1]
        if name in labels:
            raise VitletError(f"{source} lists {name!r} twice; each image is needed once. Get the official list.")
        if folder not in inside:
            inside[folder] = _files(home, home.joinpath(*folder))
        known = inside[folder]
        if known.get(file) is False:
            raise VitletError(f"{source} lists {name!r}, a link that leads out of {home}. Put the image itself there.")
        if file in known:
            paths.append(home / name)
            labels[name] = label
        else:
            absent.append(name)
    return Listed(tuple(paths), tuple(labels.values()), tuple(absent))


def _parts(name: str, source: Path) -> tuple[str, ...]:
    """The parts of a relative path that stays where it is, on any system."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if not parts or ".." in parts or name.startswith("/") or _FOREIGN.search(name):
        raise VitletError(
            f"{source} lists {name!r}, which leads out of the data folder; relative paths inside it are needed."
            " Get the official list."
        )
    return parts


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
