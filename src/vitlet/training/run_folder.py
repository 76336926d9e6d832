"""A run's folder: what it holds, how it is written without ever being half written, who may write it.

==================  ==============================================================
config.yaml         every setting, resolved; ``vitlet train -c`` starts the same run again
metrics.jsonl/.csv  one row per epoch
events.*            the same for TensorBoard
last/ best/         weights in the layout of ``timm.create_model("local-dir:...")``
checkpoints/        all it takes to continue as if nothing had happened; see `vitlet.training.checkpoint`
result.json         final numbers; once it is there, the run is finished
teacher/            the run of a teacher that was trained first; see `vitlet.training.teachers`
.vitlet.lock        there while a process writes the folder, or after it was killed
==================  ==============================================================
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar, overload

from filelock import FileLock, Timeout

from vitlet.config import BaseConfig, RunConfig
from vitlet.errors import VitletError, first_line
from vitlet.training.files import delete, sync
from vitlet.training.trackers import Tracker

Config = TypeVar("Config", bound=BaseConfig)

OWN = (
    *("config.yaml", "metrics.jsonl", "metrics.csv", "events.*", "last", "best", "checkpoints", "result.json"),
    *(".DS_Store", "not_finite.json", "curves.png", "calibration.json", "export", "report.html", "wandb", "teacher"),
)
"""What runs and the commands on them leave in a run's folder, beside the lock and the `.NAME.tmp` of a file."""

LOCK = ".vitlet.lock"
"""In a run's folder: held by the process that writes it."""


class RunFolder:
    """The folder of one run, locked while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / LOCK, timeout=0)
        self.trackers: list[Tracker] = []

    @staticmethod
    def create(config: BaseConfig, choices: Sequence[str] = ()) -> RunFolder:
        """Create a run folder, or empty one with ``overwrite``, and write the resolved settings.

        Args:
            config: the settings.
            choices: sentences on what was chosen for the user, written above them.
        """
        path = Path(config.output) if config.output else next_free(Path("runs"), config)
        path = path if path.name else path.absolute()
        _require_room(path, overwrite=config.overwrite)  # before a lock is put into somebody else's folder
        run = RunFolder(path)
        run.acquire()
        try:
            _require_room(path, overwrite=config.overwrite)  # another process may have filled it meanwhile
            run.empty()
            run.write_text("config.yaml", "".join(f"# {line}\n" for line in choices) + config.dump())
        except BaseException:
            run.close()
            raise
        return run

    @staticmethod
    def reopen(path: Path) -> RunFolder:
        """An existing run, to be continued."""
        run = RunFolder(path)
        run.acquire()
        return run

    def acquire(self) -> None:
        """Lock the folder; `VitletError` if another process has locked it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout:
            raise VitletError(
                f"the run folder {self.path} is in use by another process; choose another --output."
            ) from None
        except OSError as problem:
            raise VitletError(
                f"cannot write in {self.path.parent}: {problem.strerror}. Choose another --output."
            ) from problem

    def empty(self) -> None:
        """Delete the run in this folder; refuses if anything else is in it."""
        found = [inside for inside in self.path.iterdir() if not _is_left_over(inside)]
        if found:
            _require_only_a_run(self.path)
        try:  # the settings last: what is half deleted is still known as a run
            for inside in sorted(found, key=lambda each: each.name == "config.yaml"):
                delete(inside)
        except OSError as problem:
            raise VitletError(f"cannot empty {self.path}: {first_line(problem)}. Choose another --output.") from problem

    def close(self) -> None:
        """Give the folder back."""
        for tracker in self.trackers:
            tracker.close()
        Path(self._lock.lock_file).unlink(missing_ok=True)  # before it is free: another process may take it at once
        self._lock.release()

    def write_text(self, name: str, text: str) -> None:
        """Write a small file atomically."""
        self.write(name, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write(self, name: str, save: Callable[[Path], object]) -> None:
        """Write a file atomically with ``save``."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            save(temporary)
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)
        except VitletError:
            raise
        except Exception as problem:  # every library has its own name for a full disk
            temporary.unlink(missing_ok=True)
            raise VitletError(
                f"cannot write {target}: {first_line(problem)}. What was saved before is intact: make room, then"
                f" continue with --resume {self.path}."
            ) from problem

    def write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of all epochs as JSON lines and CSV."""
        self.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self.write("metrics.csv", lambda path: _write_csv(path, rows))

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the metrics of all epochs, and log those of the last one to the trackers."""
        self.write_rows(rows)
        numbers = {key: value for key, value in rows[-1].items() if isinstance(value, (int, float))}
        for tracker in self.trackers:
            tracker.log(numbers, int(rows[-1]["epoch"]))


def _is_own(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in OWN)


def _is_left_over(path: Path) -> bool:
    """Whether this is the lock, or a file that `RunFolder.write` did not finish and the next one overwrites."""
    name = path.name
    return name == LOCK or (name.startswith(".") and name.endswith(".tmp") and _is_own(name[1:-4]))


def _require_room(path: Path, *, overwrite: bool) -> None:
    """Refuse what a new run may not have as its folder."""
    if path.exists() and not path.is_dir():
        raise VitletError(f"{path} is a file; --output must be a folder.")
    if not path.is_dir() or all(_is_left_over(inside) for inside in path.iterdir()):
        return
    if not (path / "config.yaml").is_file():
        raise VitletError(f"{path} contains other files and is not a run; choose another --output.")
    if not overwrite:
        raise VitletError(
            f"the run folder {path} already exists. Choose another --output, continue it with --resume {path},"
            " or replace it with --overwrite."
        )
    _require_only_a_run(path)


def _require_only_a_run(path: Path) -> None:
    """Refuse to empty a folder that holds anything but a run."""
    try:
        described = RunConfig.read(path / "config.yaml").keys() >= {"data", "epochs", "seed"}
    except VitletError:
        described = False
    if not described:
        raise VitletError(f"{path} contains other files and is not a run; choose another --output.")
    strangers = sorted(each.name for each in path.iterdir() if not (_is_own(each.name) or _is_left_over(each)))
    if strangers:
        raise VitletError(
            f"{path} holds {strangers[0]!r}, which was not written by a run; --overwrite would delete it. Move it"
            " away, or"
            " choose another --output."
        )


def run_name(config: BaseConfig) -> str:
    """DATA-MODEL, in letters that any file system takes."""
    data = "".join(c if c.isalnum() or c in "-_" else "_" for c in Path(config.data).name) or "data"
    return f"{data}-{config.network}"


def next_free(root: Path, config: BaseConfig) -> Path:
    """``runs/DATA-MODEL-1`` and so on, the first number that is free."""
    number = 1
    while (root / f"{run_name(config)}-{number}").exists():
        number += 1
    return root / f"{run_name(config)}-{number}"


@overload
def read_config(path: Path) -> RunConfig: ...


@overload
def read_config(path: Path, kind: type[Config]) -> Config: ...


def read_config(path: Path, kind: type[BaseConfig] = RunConfig) -> BaseConfig:
    """The settings of a run folder, which has to be of this kind."""
    if not path.is_dir():
        raise VitletError(f"no such run folder: {path}.")
    if not (path / "config.yaml").is_file():
        of_search = f" It is a search: name one of its runs, such as {path / 'members' / '1'}."
        made = of_search if (path / "search.json").is_file() else " `vitlet train` makes run folders."
        raise VitletError(f"{path} is not a run folder: it has no config.yaml.{made}")
    return kind.from_dict(kind.read(path / "config.yaml"), source=str(path / "config.yaml"))


def run_weights(path: Path) -> Path:
    """Weight file of a run: its best, or last for pre-training; a file is returned as it is."""
    if path.suffix == ".safetensors" and path.is_file():
        return path
    if (path / "model.safetensors").is_file():  # a folder in timm's layout
        return path / "model.safetensors"
    for folder in read_config(path).exported:
        if (path / folder / "model.safetensors").is_file():
            return path / folder / "model.safetensors"
    raise VitletError(f"the run {path} has no weights yet: it has not finished its first epoch.")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``metrics.jsonl``."""
    file = path / "metrics.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
