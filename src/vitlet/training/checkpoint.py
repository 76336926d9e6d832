"""Checkpoints: written atomically, verified by checksums, loaded without running code.

A checkpoint is a folder ``step-00000120`` (``step-00000120-evaluated`` at the end of an epoch) with ``manifest.json``:
every other file with its size and sha256, the position and the settings of the run. It is written beside its place,
synced, and renamed; the one before stays until then. Weights are safetensors, the rest loads with
``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlet.errors import VitletError, first_line
from vitlet.training.distributed import World
from vitlet.training.files import delete, sync

MANIFEST = "manifest.json"
STATE = "state.pt"

_OWN = re.compile(r"(?P<stale>\.writing-|\.deleting-)?step-\d{8,}(-evaluated)?")
"""Names that are made here; whatever else lies in the folder is somebody else's and stays."""


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint."""

    path: Path
    about: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Steps of the run that are in it."""
        return int(self.about["step"])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The weights in one of its files."""
        return load_file(self.path / name)

    def state(self) -> dict[str, Any]:
        """Everything that is not weights."""
        found: dict[str, Any] = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        return found


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: where they lie.
        keep: how many; at least one more than the one that is being written.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def sweep(self) -> None:
        """Remove what a killed process left half written or half deleted."""
        if self.folder.is_symlink():
            raise VitletError(
                f"{self.folder} is a link, and old checkpoints would be deleted in its target. A run needs a folder"
                " of its own there: move the checkpoints back, or link the whole run."
            )
        for stale in self._own(stale=True):
            _clear(stale)

    def _own(self, *, stale: bool = False) -> list[Path]:
        """The checkpoints from the oldest to the newest; or what is left of half written ones."""
        found = [(path, _OWN.fullmatch(path.name)) for path in self.folder.glob("*")]
        return sorted(path for path, name in found if name is not None and bool(name["stale"]) == stale)

    def begin(self, name: str) -> Path:
        """An empty folder to write the files of a checkpoint into."""
        aside = self.folder / f".writing-{name}"
        _clear(aside)
        aside.mkdir(parents=True)
        return aside

    def finish(self, name: str, about: Mapping[str, Any]) -> None:
        """Sync the files, write their checksums, publish the checkpoint, and delete the oldest ones."""
        aside, target = self.folder / f".writing-{name}", self.folder / name
        files = {file.relative_to(aside).as_posix(): _describe(file) for file in _files(aside)}
        manifest = {"format": 1, **about, "files": files}
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
        for file in _files(aside):
            sync(file)
        for folder in {file.parent for file in _files(aside)}:
            sync(folder)
        if target.exists():  # damaged, or it would have been continued from
            self._drop(target)
        aside.rename(target)
        sync(self.folder)
        for old in self._own()[: -self.keep]:
            self._drop(old)

    def save(self, name: str, about: Mapping[str, Any], write: Callable[[], None], world: World) -> None:
        """Write a checkpoint and publish it; on failure, warn and leave the older checkpoints as they are."""
        try:
            write()
            failed = None
        except Exception as problem:  # every library has its own name for a full disk
            failed = self._failure(problem)
        problems = [each for each in world.gather(failed) if each is not None]
        if problems:
            raise VitletError(problems[0])
        world.by_first(lambda: self._finish_or_say(name, about))

    def _finish_or_say(self, name: str, about: Mapping[str, Any]) -> None:
        try:
            self.finish(name, about)
        except OSError as problem:
            raise VitletError(self._failure(problem)) from problem

    def _failure(self, problem: Exception) -> str:
        """Why there is no checkpoint of this step, and which one there is."""
        self.sweep()
        kept = self._own()
        rest = f"The checkpoint {kept[-1].name} is intact" if kept else "There is none yet"
        path = self.folder.parent
        return f"cannot save a checkpoint in {path}: {first_line(problem)}. {rest}: make room, then --resume {path}."

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest complete checkpoint, if any, and a message for every damaged newer one."""
        self.sweep()
        return self.peek()

    def peek(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest complete checkpoint, read-only: another process may be writing the next one."""
        damaged: list[str] = []
        for path in reversed(self._own()):
            try:
                return Checkpoint(path, _verified(path)), damaged
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
                damaged.append(f"the checkpoint {path} is damaged: {first_line(problem)}")
        if damaged:
            raise VitletError(
                f"{'; '.join(damaged)}. No complete checkpoint is left: start the run again with --overwrite, or"
                " another one from"
                f" its weights with --init {self.folder.parent}."
            )
        return None, damaged

    def _drop(self, path: Path) -> None:
        """Delete in two steps, so that a half deleted checkpoint never looks like a damaged one."""
        aside = path.with_name(f".deleting-{path.name}")
        _clear(aside)
        path.rename(aside)
        _clear(aside)


def _clear(path: Path) -> None:
    """Delete what is not needed any more; what cannot be deleted now is swept up later."""
    with suppress(OSError):
        delete(path)


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Weights as safetensors; parameters that share memory are written once each."""
    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        plain[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    save_file(plain, path, metadata={"format": "pt"})


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _describe(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _verified(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint all of whose files are what it says; no file outside is looked at."""
    about: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    if about["format"] != 1:
        raise ValueError(f"its format is {about['format']!r}, this version of vitlet reads 1")
    present = {file.relative_to(path).as_posix() for file in _files(path)} - {MANIFEST}
    if present != set(about["files"]):
        raise ValueError(f"files missing or added: {', '.join(sorted(present ^ set(about['files'])))}")
    for name, expected in about["files"].items():
        if _describe(path / name) != expected:
            raise ValueError(f"the checksum of {name} is wrong")
    return about
