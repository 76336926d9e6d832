"""Fetching a dataset from its official address: checked by checksum, whole or not at all, one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from vitlet.data.named.official import Official, Remote
from vitlet.data.named.unpack import unpack
from vitlet.errors import VitletError, first_line

TIMEOUT = 30.0
"""Seconds without an answer after which the machine counts as offline."""

_CHUNK = 2**18
_UNREACHABLE = (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException)


def fetch(official: Official, data_dir: Path) -> None:
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
        _compare(own, _digest_of(own, remote.checksum), remote)
        unpack(own, folder)
        return
    try:
        download(remote, place)
    except _UNREACHABLE as problem:
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty
        raise VitletError(
            f"cannot fetch {remote.url}: {first_line(problem)}. On a machine that is offline, get {official.name} from"
            f" {official.address} by other means and put it into {data_dir}: {official.layout}."
        ) from problem
    if remote.is_archive:
        try:
            unpack(place, folder)
        finally:
            place.unlink(missing_ok=True)


def download(remote: Remote, place: Path) -> None:
    """Fetch one file to ``place``: what is there afterwards is whole and has the right checksum, or nothing is."""
    if not remote.url.startswith(("https://", "http://")):
        raise VitletError(f"{remote.url} is no address of a web server.")
    part = place.with_name(f"{place.name}.part")
    digest = _hash(remote.checksum)
    try:
        with urllib.request.urlopen(remote.url, timeout=TIMEOUT) as answer, part.open("wb") as file:
            length = answer.headers.get("Content-Length")
            expected = int(length) if length is not None and length.isdecimal() else None
            received = 0
            with _bar() as bar:
                line = bar.add_task(remote.filename, total=expected)
                while block := answer.read(_CHUNK):
                    file.write(block)
                    digest.update(block)
                    received += len(block)
                    bar.update(line, completed=received)
        if expected is not None and received < expected:
            raise ConnectionError(f"it broke off after {received:,} of {expected:,} bytes")
        _compare(part, digest.hexdigest(), remote)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))


def _hash(checksum: str) -> Any:
    """MD5 or SHA-256, told by the length."""
    return hashlib.sha256() if len(checksum) == 64 else hashlib.md5(usedforsecurity=False)


def _digest_of(path: Path, checksum: str) -> str:
    digest = _hash(checksum)
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return str(digest.hexdigest())


def _compare(path: Path, found: str, remote: Remote) -> None:
    if found != remote.checksum:
        raise VitletError(
            f"{path.name.removesuffix('.part')} has the checksum {found}, not the official {remote.checksum}: it is"
            f" incomplete or was altered. It was not used; get it again from {remote.url}."
        )
