"""Record of a run, read from its folder without changing it; the run may still be training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, overload

from filelock import FileLock, Timeout

from vitlet.config import BaseConfig, RunConfig
from vitlet.errors import VitletError, first_line
from vitlet.statistics import Interval, wilson
from vitlet.training.checkpoint import MANIFEST
from vitlet.training.finish import BEST, score
from vitlet.training.inputs import choose_crop
from vitlet.training.run_folder import LOCK, read_config, read_rows

RunState = Literal["finished", "training", "stopped"]
Kind = TypeVar("Kind", bound=BaseConfig, covariant=True)


@dataclass(frozen=True)
class JobRecord(Generic[Kind]):
    """Record of one run with settings of type ``Kind``.

    Attributes:
        path: path of its folder.
        name: what the report calls it.
        config: its resolved settings.
        rows: the numbers of its epochs.
        result: its ``result.json``, empty until it is finished.
        state: finished; still training; or stopped before its end.
        manifest: manifest of its newest checkpoint, empty if there is none.
    """

    path: Path
    name: str
    config: Kind
    rows: list[dict[str, Any]]
    result: Mapping[str, Any]
    state: RunState
    manifest: Mapping[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, as far as they are known."""
        return tuple(self.result.get("classes") or self.manifest.get("classes") or ())

    @property
    def scores(self) -> tuple[str, Mapping[str, float]] | None:
        """The final numbers and what they are on: test images, else the best epoch's validation images."""
        for split in ("test", "val"):
            if self.result.get(split):
                return split, self.result[split]
        best = self.best
        if best is None or not any(key in best for key in BEST):
            return None
        return "val", {key.removeprefix("val/"): best[key] for key in best if key.startswith("val/")}

    @property
    def best(self) -> dict[str, Any] | None:
        """The row of the best epoch so far."""
        rated = [row for row in self.rows if any(key in row for key in BEST)]
        if rated:
            return max(rated, key=lambda row: (score(row), -row["epoch"]))
        return self.rows[-1] if self.rows else None

    def accuracy(self, split: str) -> Interval | None:
        """Top-1 with its interval."""
        found = self.result.get(split)
        if not found and split == "val" and self.best is not None and "val/top1" in self.best:
            found = {"top1": self.best["val/top1"], "count": self.best["val/count"]}
        if not found or not found["count"]:
            return None
        return wilson(found["top1"] / 100 * found["count"], int(found["count"]))

    @property
    def speed(self) -> float | None:
        """Training images a second: the median over the epochs."""
        speeds = sorted(row["images_per_second"] for row in self.rows if "images_per_second" in row)
        return speeds[len(speeds) // 2] if speeds else None

    def progress(self) -> str:
        """Progress of the run as text."""
        if self.state == "finished":
            return f"finished, {len(self.rows)} epoch{'s' * (len(self.rows) != 1)}"
        done = f"{len(self.rows)} of {self.config.last_epoch} epochs"
        return f"still training, {done} so far" if self.state == "training" else f"not finished, {done}"


AnyRecord = JobRecord[BaseConfig]
RunRecord = JobRecord[RunConfig]


@overload
def read_run(path: Path, name: str) -> RunRecord: ...


@overload
def read_run(path: Path, name: str, kind: type[BaseConfig]) -> AnyRecord: ...


def read_run(path: Path, name: str, kind: type[BaseConfig] = RunConfig) -> AnyRecord:
    """Read the folder of a run of this kind; anything else is refused."""
    config = read_config(path, kind)
    try:
        rows = read_rows(path)
        file = path / "result.json"
        result = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if not isinstance(result, dict):
            raise ValueError("result.json holds no record")
    except ValueError as problem:
        raise VitletError(f"the numbers in {path} cannot be read: {first_line(problem)}.") from problem
    state: RunState = "finished" if result else "training" if is_training(path) else "stopped"
    return JobRecord(path, name, config, rows, result, state, _manifest(path))


def is_training(path: Path) -> bool:
    """Whether another process holds the run's lock now."""
    lock = path / LOCK
    if not lock.is_file():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a file system that cannot be written to has no training on it
        return False


def _manifest(path: Path) -> dict[str, Any]:
    """Manifest of the newest checkpoint."""
    for folder in sorted(path.glob("checkpoints/step-*"), reverse=True):
        try:
            found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def run_names(paths: Sequence[Path]) -> list[str]:
    """Distinct names of runs: folder names, with as much of the path as needed."""
    whole = [path.resolve() for path in paths]
    for parts in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-parts:]) for path in whole]
        if len(set(names)) == len(set(whole)):
            return names
    return [str(path) for path in whole]


def chosen_settings(config: RunConfig, classes: int) -> dict[str, Any]:
    """The settings that differ from what a run has without anybody choosing."""
    usual = RunConfig(aug=config.aug, epochs=config.epochs).resolved(img_size=config.img_size)
    assert config.img_size is not None
    usual = replace(
        usual,
        aug="light",
        img_size=None,
        warmup_epochs=config.epochs / 20,
        num_classes=classes or None,
        workers=0,
        positions="on",
        device="cpu",
        amp=False,
        channels_last=False,
        val_interval=1,
        crop_pct=0.875 if choose_crop(config) == "resized" else 1.0,
    )
    free = {item.name for item in fields(RunConfig) if item.metadata["free"] and item.name != "device"}
    plain = usual.to_dict() | {"epochs": RunConfig().epochs}  # in a record it would contradict a long warm-up
    found = {key: value for key, value in config.to_dict().items() if key not in free and value != plain.get(key)}
    return {key: value for key, value in found.items() if key not in ("task", "data", "model")}


def repeats(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Runs that differ in their seed alone, in groups of two or more."""
    free = {item.name for item in fields(RunConfig) if item.metadata["free"]} | {"seed"}
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        settings = {key: value for key, value in record.config.to_dict().items() if key not in free}
        groups.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(record)
    return [group for group in groups.values() if len(group) > 1]
