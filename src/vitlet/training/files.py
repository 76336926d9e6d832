"""Files that are really on the disk."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk; systems that cannot sync a folder need not."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder on Windows
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically: write a temporary file, sync it, rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def delete(path: Path) -> None:
    """Delete a file or a folder; of a link the link alone, never what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
