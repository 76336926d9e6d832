"""Downloading a dataset from its official address: checked by checksum, atomic, one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import shutil
import ssl
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import wrap_file

from vitlet.data.archives import unpack
from vitlet.data.named.official import Official, Remote
from vitlet.errors import VitletError, first_line

TIMEOUT = 30.0
"""Seconds without an answer after which the machine counts as offline."""

_UNREACHABLE = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)


def download_dataset(official: Official, data_dir: Path) -> None:
    """Bring what is not there yet into ``data_dir``; a second process waits and finds it done."""
    if not official.files:
        raise VitletError(
            f"{official.name} cannot be downloaded without an account. Get it from {official.address} and put it into"
            f" {data_dir}: {official.layout}."
        )
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(data_dir / ".vitlet-download.lock"):
            for remote in official.files:
                if not (data_dir / remote.makes).exists():
                    _bring(remote, official, data_dir)
    except OSError as problem:
        raise VitletError(
            f"cannot write into {data_dir}: {first_line(problem)}. A folder with room to write is needed; name another"
            " with --data-dir."
        ) from problem


def _bring(remote: Remote, official: Official, data_dir: Path) -> None:
    folder = data_dir / remote.into
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / remote.filename
    own = next((path for path in (place, data_dir / remote.filename) if path.is_file()), None)
    if own is not None and remote.is_archive:  # somebody put it there, and keeps it
        _check(own, remote)
        unpack(own, folder)
        return
    try:
        download(remote, place)
    except _UNREACHABLE as problem:
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty
        raise VitletError(
            f"cannot download {remote.url}: {first_line(problem)}. On a machine without internet access, copy"
            f" {official.name} from"
            f" {official.address} into {data_dir}: {official.layout}."
        ) from problem
    if remote.is_archive:
        try:
            unpack(place, folder)
        finally:
            place.unlink(missing_ok=True)


def download(remote: Remote, place: Path) -> None:
    """Download one file to ``place``, atomically: it is there whole and with the right checksum, or not at all."""
    if not remote.url.startswith(("https://", "http://")):
        raise VitletError(f"{remote.url} is not a web address.")
    part = place.with_name(f"{place.name}.vitlet-part")
    try:
        with urllib.request.urlopen(remote.url, timeout=TIMEOUT) as answer, part.open("wb") as file:
            length = answer.headers.get("Content-Length") or ""
            expected = int(length) if length.isdecimal() else 0  # unknown
            console = Console(stderr=True)
            with wrap_file(answer, expected, description=remote.filename, console=console) as shown:
                shutil.copyfileobj(shown, file, 2**18)
            received = file.tell()
        if received < expected:
            raise ConnectionError(f"it broke off after {received:,} of {expected:,} bytes")
        _check(part, remote)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def _check(path: Path, remote: Remote) -> None:
    """Compare a file with the official checksum: MD5 or SHA-256, told by the length."""
    kind = hashlib.sha256 if len(remote.checksum) == 64 else partial(hashlib.md5, usedforsecurity=False)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != remote.checksum:
        raise VitletError(
            f"{remote.filename} has the checksum {found}, not the official {remote.checksum}: it is incomplete or was"
            f" altered. It was not used; get it again from {remote.url}."
        )
