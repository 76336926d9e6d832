"""Unpacking archives that may be hostile: all members are checked before the first byte is written.

Members are written as plain files, without the archive's owners and rights, into a folder beside the target, and moved
when all are there.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from vitlet.data.archives import MAX_RATIO, MAX_SMALL, HostileMemberError, checked_members
from vitlet.errors import VitletError, first_line

_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError, ValueError
)  # fmt: skip


def unpack(archive: Path, target: Path) -> None:
    """Put the members of a tar or zip file into ``target``: all of them, or none."""
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
            raise VitletError(f"{taken} is in the way of what the archive holds. Move or remove it, and try again.")
        for item in sorted(room.iterdir()):
            item.replace(target / item.name)
    except HostileMemberError as problem:
        raise VitletError(f"the archive {archive} is refused: {problem}. Nothing of it was unpacked.") from problem
    except _BROKEN as problem:
        raise VitletError(
            f"cannot unpack {archive}: {first_line(problem)}. Nothing of it was kept; is the disk full, or the archive"
            " broken? Get it again."
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
