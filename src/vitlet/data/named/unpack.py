"""Unpacking archives that may be hostile: every member is looked at before the first byte is written.

Refused: absolute paths, ``..``, links, devices, and archives that grow out of proportion. Members are written as plain
files, without the archive's owners and rights, into a folder beside the target, and moved when all are there.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from vitlet.errors import VitletError, first_line

MAX_RATIO = 50
"""Images hardly shrink: the official archives grow by less than 2."""

MAX_SMALL = 64 * 2**20
"""Up to this many bytes any ratio will do."""

_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError, ValueError
)  # fmt: skip


class _HostileError(Exception):
    """What is wrong with a member."""


def unpack(archive: Path, target: Path) -> None:
    """Put the members of a tar or zip file into ``target``: all of them, or none."""
    room = target / f".{archive.name}.unpacking"
    shutil.rmtree(room, ignore_errors=True)  # of a process that was killed
    limit = max(MAX_SMALL, MAX_RATIO * archive.stat().st_size)
    members = _zip_members if archive.suffix == ".zip" else _tar_members
    try:
        for _, content in members(archive, limit):
            content.close()
        room.mkdir(parents=True)
        for name, content in members(archive, limit):
            place = room.joinpath(*name.parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with content, place.open("wb") as file:
                shutil.copyfileobj(content, file, 2**20)
        _move(room, target)
    except _HostileError as problem:
        raise VitletError(f"the archive {archive} is refused: {problem}. Nothing of it was unpacked.") from problem
    except _BROKEN as problem:
        raise VitletError(
            f"cannot unpack {archive}: {first_line(problem)}. Nothing of it was kept; is the disk full, or the archive"
            " broken? Get it again."
        ) from problem
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _move(room: Path, target: Path) -> None:
    items = sorted(room.iterdir())
    taken = next((target / item.name for item in items if (target / item.name).exists()), None)
    if taken is not None:
        raise VitletError(f"{taken} is in the way of what the archive holds. Move or remove it, and try again.")
    for item in items:
        item.replace(target / item.name)


def _tar_members(archive: Path, limit: int) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Name and content of each file, checked as it comes."""
    total = 0
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            name = _safe(member.name)
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise _HostileError(f"{member.name!r} is a link or no plain file")
            total += member.size
            _bounded(total, limit)
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None:
                yield name, content
        _at_its_end(tar)


def _at_its_end(tar: tarfile.TarFile) -> None:
    """tarfile takes a broken header for the end of the archive; after the real end there are zeros only."""
    stream = tar.fileobj
    assert stream is not None
    stream.seek(tar.offset)
    while block := stream.read(2**20):
        if block.strip(b"\0"):
            raise tarfile.ReadError("the header of a member is broken")


def _zip_members(archive: Path, limit: int) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """The same for zip files, which keep a Unix mode in the upper half of an attribute."""
    total = 0
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            name = _safe(member.filename)
            kind = member.external_attr >> 28
            if kind not in (0, 0o4, 0o10):
                raise _HostileError(f"{member.filename!r} is a link or no plain file")
            total += member.file_size
            _bounded(total, limit)
            if not member.is_dir():
                yield name, zipped.open(member)


def _safe(name: str) -> PurePosixPath:
    """A relative path that stays inside, on any system."""
    windows = PureWindowsPath(name)
    if windows.root or windows.drive or ".." in windows.parts or "\\" in name or "\0" in name:
        raise _HostileError(f"{name!r} leads out of its folder")
    return PurePosixPath(name)


def _bounded(total: int, limit: int) -> None:
    if total > limit:
        raise _HostileError(f"it would grow beyond {limit:,} bytes, out of proportion to its size")
