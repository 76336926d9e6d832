"""The folder of a learning curve: ``curve.json``, and its runs as ordinary run folders under ``runs/``.

==================  ==============================================================
curve.json          settings, plan, what each run reached, and the answer
runs/half-seed-0    the runs; of frozen features there are none, for a fit takes a moment
curve.png           measured points, the fitted band, the target
==================  ==============================================================
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitlet.analysis.learning_curve import CurvePoint
from vitlet.errors import VitletError

CURVE_FILE = "curve.json"
PICTURE = "curve.png"

RunKind = Literal["size", "epochs", "model"]
"""A run on a subset, or one on all images with twice the epochs, or with a larger model."""


@dataclass(frozen=True)
class PlannedRun:
    """Planned run: fraction of the training images, seed, epochs (0: frozen features) and model."""

    kind: RunKind
    share: float
    seed: int
    epochs: int
    batch_size: int
    model: str
    seconds: float

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        what = {"size": f"{self.share:.3f}", "epochs": "more-epochs", "model": "larger-model"}[self.kind]
        return f"{what}-seed-{self.seed}"


@dataclass(frozen=True)
class MeasuredCurveRun:
    """Result of a planned run: training images, accuracy in percent, number of evaluated images, seconds."""

    name: str
    kind: RunKind
    share: float
    images: int
    seed: int
    epochs: int
    model: str
    accuracy: float
    tested: int
    seconds: float


@dataclass(frozen=True)
class CurveRecord:
    """Contents of ``curve.json``.

    Attributes:
        settings: of a run on all images, as plain values.
        split: what accuracy is measured on: val or test.
        minutes: for all runs; None where the epochs were given.
        plan: every run, in order.
        share: of the epochs that `vitlet train` takes, which all runs have.
        seconds: used so far.
        runs: that are finished.
        left_out: planned runs that the time was too short for.
        answer: what the fitted curve says, once there is one.
    """

    settings: dict[str, Any]
    split: Literal["val", "test"]
    minutes: float | None
    plan: tuple[PlannedRun, ...]
    share: float = 1.0
    seconds: float = 0.0
    runs: tuple[MeasuredCurveRun, ...] = ()
    left_out: tuple[str, ...] = ()
    answer: dict[str, Any] = field(default_factory=dict)

    def dump(self) -> str:
        """The record as JSON text."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def points(self) -> list[CurvePoint]:
        """The runs on subsets; of one share, groups and rounding may leave seeds an image more or less."""
        runs = [run for run in self.runs if run.kind == "size"]
        counts = {share: [run.images for run in runs if run.share == share] for share in {run.share for run in runs}}
        sizes = {share: round(sum(found) / len(found)) for share, found in counts.items()}
        return [CurvePoint(sizes[run.share], run.seed, run.accuracy) for run in runs]

    def pairs(self, kind: RunKind) -> list[tuple[MeasuredCurveRun, MeasuredCurveRun]]:
        """Runs of this kind, each with the plain run on all images of the same seed."""
        plain = {run.seed: run for run in self.runs if run.kind == "size" and run.share == 1}
        return [(plain[run.seed], run) for run in self.runs if run.kind == kind and run.seed in plain]


def is_curve(path: Path) -> bool:
    """Whether this is the folder of a learning curve."""
    return (path / CURVE_FILE).is_file()


def read_curve(path: Path) -> CurveRecord:
    """Read ``curve.json`` of a learning curve."""
    try:
        found = json.loads((path / CURVE_FILE).read_text(encoding="utf-8"))
        plan = tuple(PlannedRun(**each) for each in found.pop("plan"))
        runs = tuple(MeasuredCurveRun(**each) for each in found.pop("runs"))
        return CurveRecord(**found | {"left_out": tuple(found["left_out"])}, plan=plan, runs=runs)
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise VitletError(f"{path / CURVE_FILE} is not the record of a learning curve: {problem}.") from problem
