"""Untrusted archives, read in place or unpacked: every member is checked before it is used.

Refused: absolute paths, ``..``, links, devices, and members or archives that grow out of proportion.
"""

from __future__ import annotations

import lzma
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, NamedTuple

from vitlet.data.decode import is_hidden, is_image
from vitlet.data.images import EncodedImages
from vitlet.errors import VitletError, first_line

MAX_MEMBER = 512 * 2**20
MAX_MEMBER_RATIO = 1000
"""Bytes of an image that is read in place, and how many times larger than in the archive it may be."""

MAX_RATIO = 50
"""How many times larger than an archive its members together may be; the official ones stay below 2."""

MAX_SMALL = 64 * 2**20
"""Up to this many bytes together, any ratio will do."""

_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, RuntimeError,
    NotImplementedError, ValueError, IndexError, MemoryError
)  # fmt: skip


class HostileMemberError(Exception):
    """A member of an archive is unsafe; the caller adds the name of the archive."""


class Member(NamedTuple):
    """File in an archive: target path, size, and the library's record of it."""

    path: PurePosixPath
    size: int
    info: Any


def contained_path(name: str) -> PurePosixPath | None:
    """The relative path that a name means; None if it points outside of its folder, on any system."""
    path = PureWindowsPath(name)  # knows drives and backslashes, too
    return None if path.anchor or ".." in path.parts or "\0" in name else PurePosixPath(*path.parts)


def checked_members(
    opened: zipfile.ZipFile | tarfile.TarFile, *, others: list[PurePosixPath] | None = None
) -> Iterator[Member]:
    """The files of an archive in their order; raises `HostileMemberError` at the first that is not to be trusted.

    With a list for ``others``, images alone; the names of other files are put there.
    """
    for info in opened.infolist() if isinstance(opened, zipfile.ZipFile) else opened:
        if isinstance(info, zipfile.ZipInfo):
            kind = info.external_attr >> 28  # the Unix type of file; 0 where another system wrote the archive
            name, size, is_folder, is_plain = info.filename, info.file_size, info.is_dir(), kind in (0, 0o4, 0o10)
        else:
            is_plain = (info.isreg() or info.isdir()) and not info.issparse()
            name, size, is_folder = info.name, info.size, info.isdir()
        path = contained_path(name)
        if path is None:
            raise HostileMemberError(f"{name!r} points outside of its folder")
        if others is not None and not is_image(path):
            others += [] if is_folder or is_hidden(path) else [path]
            continue
        if not is_plain:
            raise HostileMemberError(f"{name!r} is a link or a special file")
        if not is_folder:
            yield Member(path, size, info)


@dataclass
class ArchiveTree:
    """A zip or an uncompressed tar file, read in place: nothing is unpacked."""

    file: Path
    members: dict[
        PurePosixPath, tuple[int, int] | str
    ]  # of a tar: offset and size; of a zip: the name as it is written
    others: tuple[PurePosixPath, ...] = ()
    """Files that are not read."""
    _open: dict[int, zipfile.ZipFile] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """For error messages."""
        return str(self.file)

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """Sorted paths of the images."""
        return tuple(self.members)

    @staticmethod
    def open(file: Path) -> ArchiveTree:
        """List an archive; refuses members that would leave it, links, and bombs."""
        found: dict[PurePosixPath, tuple[int, int] | str] = {}
        others: list[PurePosixPath] = []
        try:
            with zipfile.ZipFile(file) if zipfile.is_zipfile(file) else tarfile.open(file, "r:") as opened:
                for path, size, info in checked_members(opened, others=others):
                    if isinstance(info, tarfile.TarInfo):
                        found[path] = info.offset_data, size
                    elif size > min(MAX_MEMBER, MAX_MEMBER_RATIO * max(1, info.compress_size)):
                        raise HostileMemberError(f"{info.filename!r} unpacks to {size} bytes")
                    else:
                        found[path] = info.filename
        except HostileMemberError as problem:
            raise VitletError(f"the archive {file} is refused: {problem}.") from problem
        except tarfile.ReadError:
            if tarfile.is_tarfile(file):
                advice = "Unpack it, or make a plain tar or zip."
                raise VitletError(f"{file} is a compressed tar, which cannot be read in place. {advice}") from None
            raise VitletError(f"{file} is neither a zip nor a tar file, or is damaged.") from None
        except _BROKEN as problem:
            raise VitletError(f"cannot read the archive {file}: {first_line(problem)}.") from problem
        return ArchiveTree(file, dict(sorted(found.items())), tuple(others))

    def read(self, path: PurePosixPath) -> bytes:
        """The bytes of a member; safe in threads and in processes that were forked."""
        member = self.members[path]
        if not isinstance(member, str):
            offset, size = member
            with self.file.open("rb") as opened:
                opened.seek(offset)
                return opened.read(size)
        process = os.getpid()
        try:
            if process not in self._open:
                self._open[process] = zipfile.ZipFile(self.file)
            return self._open[process].read(member)
        except _BROKEN as problem:
            raise VitletError(f"cannot read {path} in {self.file}: {first_line(problem)}.") from problem

    def images(self, paths: Sequence[PurePosixPath], labels: Sequence[int]) -> ArchivedImages:
        """These members as labelled images."""
        return ArchivedImages(self, tuple(paths), tuple(labels))

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_open": {}}


@dataclass(frozen=True)
class ArchivedImages(EncodedImages):
    """Images inside an archive."""

    tree: ArchiveTree
    paths: tuple[PurePosixPath, ...]
    labels: tuple[int, ...]

    def content(self, index: int) -> bytes:
        return self.tree.read(self.paths[index])

    def name(self, index: int) -> str:
        return f"{self.tree.file}:{self.paths[index]}"

    def key(self, index: int) -> str:
        return str(self.paths[index])


def unpack(archive: Path, target: Path) -> None:
    """Put the members of a tar or zip file into ``target``: all of them, or none.

    They are written as plain files, without the archive's owners and rights, into a folder beside the target, and moved
    when all are there.
    """
    room = target / f".{archive.name}.unpacking"
    shutil.rmtree(room, ignore_errors=True)  # of a process that was killed
    try:
        for _, content in _contents(archive):
            content.close()
        room.mkdir(parents=True)
        for name, content in _contents(archive):
            place = room.joinpath(*name.parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            with content, place.open("wb") as file:
                shutil.copyfileobj(content, file, 2**20)
        taken = next((target / item.name for item in sorted(room.iterdir()) if (target / item.name).exists()), None)
        if taken is not None:
            raise VitletError(
                f"{taken} exists already and would be overwritten by the archive. Move or remove it, and try again."
            )
        for item in sorted(room.iterdir()):
            item.replace(target / item.name)
    except HostileMemberError as problem:
        raise VitletError(f"the archive {archive} is refused: {problem}. Nothing was unpacked.") from problem
    except _BROKEN as problem:
        raise VitletError(
            f"cannot unpack {archive}: {first_line(problem)}. Nothing was unpacked; the disk may be full, or the"
            " archive"
            " damaged. Download it again."
        ) from problem
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _contents(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Path and content of each file, checked as it comes."""
    limit = max(MAX_SMALL, MAX_RATIO * archive.stat().st_size)
    total = 0
    with zipfile.ZipFile(archive) if archive.suffix == ".zip" else tarfile.open(archive, "r:*") as opened:
        for path, size, info in checked_members(opened):
            total += size
            if total > limit:
                raise HostileMemberError(f"it would grow beyond {limit:,} bytes, out of proportion to its size")
            content = opened.open(info) if isinstance(opened, zipfile.ZipFile) else opened.extractfile(info)
            assert content is not None  # it is a file
            yield path, content
        if isinstance(opened, tarfile.TarFile):
            _require_end(opened)


def _require_end(tar: tarfile.TarFile) -> None:
    """tarfile takes a broken header for the end of the archive; after the real end there are zeros only."""
    stream = tar.fileobj
    assert stream is not None
    stream.seek(tar.offset)
    while block := stream.read(2**20):
        if block.strip(b"\0"):
            raise tarfile.ReadError("the header of a member is broken")
