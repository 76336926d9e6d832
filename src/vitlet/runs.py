"""A run's folder: what it holds, how it is written without ever being half written, who may write it.

==================  ==============================================================
config.yaml         every setting, resolved; ``vitlet train -c`` starts the same run again
metrics.jsonl/.csv  one row per epoch
events.*            the same for TensorBoard
last/ best/         weights in the layout of ``timm.create_model("local-dir:...")``
resume.pt           optimizer and task heads, to continue after the last whole epoch
result.json         final numbers
==================  ==============================================================
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vitlet.config import RunConfig
from vitlet.errors import VitletError


class RunFolder:
    """The folder of one run, locked while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path.with_name(path.name + ".lock"), timeout=0)
        self._board: Any = None

    @staticmethod
    def create(config: RunConfig) -> RunFolder:
        """A new folder, or an emptied one if the user asked for that; resolved settings written first."""
        path = Path(config.output) if config.output else next_free(Path("runs"), config)
        if path.exists() and not path.is_dir():
            raise VitletError(f"{path} is a file; --output needs to be a folder.")
        occupied = path.is_dir() and any(path.iterdir())
        if occupied and not (path / "config.yaml").is_file():
            raise VitletError(f"{path} holds other files and is not a run; choose another --output.")
        if occupied and not config.overwrite:
            raise VitletError(
                f"the run folder {path} already exists. Choose another --output, continue it with --resume {path},"
                " or replace it with --overwrite."
            )
        run = RunFolder(path)
        run.acquire()
        if occupied:
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        run.write_text("config.yaml", config.dump())
        return run

    @staticmethod
    def reopen(path: Path) -> RunFolder:
        """An existing run, to be continued."""
        read_config(path)
        run = RunFolder(path)
        run.acquire()
        return run

    def acquire(self) -> None:
        """Take the folder, or say that another process has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise VitletError(
                f"the run folder {self.path} is in use by another process; choose another --output."
            ) from None

    def close(self) -> None:
        """Give the folder back."""
        if self._board is not None:
            self._board.close()
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        """Write a small file whole or not at all."""
        self.write(name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write(self, name: str, save: Callable[[Path], object]) -> None:
        """Let ``save`` write beside the file, sync, then put it in place in one step."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        save(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)

    def rows(self) -> list[dict[str, Any]]:
        """The rows logged so far."""
        return read_rows(self.path)

    def log(self, row: Mapping[str, Any]) -> None:
        """Add an epoch's row to the JSON lines, the CSV and TensorBoard."""
        rows = [*self.rows(), dict(row)]
        self.write_text("metrics.jsonl", "".join(json.dumps(item) + "\n" for item in rows))
        self.write("metrics.csv", lambda path: _write_csv(path, rows))
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.path))
        for key, value in row.items():
            if isinstance(value, (int, float)) and key != "epoch":
                self._board.add_scalar(key, value, int(row["epoch"]))
        self._board.flush()

    def keep_rows(self, epochs: int) -> None:
        """Forget rows of epochs that will be trained again."""
        rows = [row for row in self.rows() if row["epoch"] <= epochs]
        self.write_text("metrics.jsonl", "".join(json.dumps(item) + "\n" for item in rows))


def next_free(root: Path, config: RunConfig) -> Path:
    """``runs/DATA-MODEL-1`` and so on, the first number that is free."""
    data = "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(config.data).name) or "data"
    number = 1
    while (root / f"{data}-{config.model}-{number}").exists():
        number += 1
    return root / f"{data}-{config.model}-{number}"


def read_config(path: Path) -> RunConfig:
    """The settings of a run folder."""
    if not path.is_dir():
        raise VitletError(f"no such run folder: {path}.")
    if not (path / "config.yaml").is_file():
        raise VitletError(f"{path} is not a run folder: it holds no config.yaml. `vitlet train` makes run folders.")
    return RunConfig.from_dict(RunConfig.read(path / "config.yaml"), source=str(path / "config.yaml"))


def run_weights(path: Path) -> Path:
    """The weights that stand for a run: the best of a supervised one, the last of pre-training; or a file itself."""
    if path.suffix == ".safetensors" and path.is_file():
        return path
    if (path / "model.safetensors").is_file():  # a folder in timm's layout
        return path / "model.safetensors"
    config = read_config(path)
    for folder in ("last", "best") if config.pretrain else ("best", "last"):
        if (path / folder / "model.safetensors").is_file():
            return path / folder / "model.safetensors"
    raise VitletError(f"the run {path} has no weights yet: it has not finished its first epoch.")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``metrics.jsonl``."""
    file = path / "metrics.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
