"""Measured settings from ``choices.yaml``, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

from vitlet.config import TaskConfig

FILE = "choices.yaml"
DeviceKind = Literal["cpu", "accelerator"]
Between = tuple[float, float]
EVERY: Between = (0.0, math.inf)


@dataclass(frozen=True)
class MeasuredRun:
    """Measurement of settings: result file, test accuracy over seeds.

    Attributes:
        table: a committed table of runs.
        arm: their name in it.
        cpu_seconds: that each run had.
        accuracy: in percent by dataset, mean and half width of the 95 % interval.
    """

    table: str
    arm: str
    cpu_seconds: float
    accuracy: Mapping[str, tuple[float, float]]

    def shown(self) -> str:
        """Such as ``measured: 72.8 ± 0.5 % (imagenette-852) in 2 minutes of CPU time, benchmarks/results/a.csv``."""
        found = ", ".join(f"{mean:.1f} ± {half:.1f} % ({dataset})" for dataset, (mean, half) in self.accuracy.items())
        return f"measured: {found} in {self.cpu_seconds / 60:g} minutes of CPU time, {self.table}"


@dataclass(frozen=True)
class Rule:
    """Settings for a kind of data and machine; see the head of ``choices.yaml``."""

    device: DeviceKind
    settings: Mapping[str, Any]
    images: Between = EVERY
    side: Between = EVERY
    measured: MeasuredRun | None = None

    def holds(self, device: DeviceKind, images: int, side: float) -> bool:
        """Whether this entry applies to this number of images of this size on this device."""
        within = (self.images[0] <= images <= self.images[1]) and (self.side[0] <= side <= self.side[1])
        return device == self.device and within


@dataclass(frozen=True)
class MeasuredGain:
    """Gains whose intervals exclude zero, found by a committed study on test data.

    Attributes:
        study: its folder under ``studies/``.
        arm: the tasks' name in it.
        models: pattern of the names of models that it speaks for.
        fewest: training images from which on it speaks ...
        most: ... up to here.
        tokens: the most tokens of a final grid that they are chosen for; a task on all pairs needs their square.
        tasks: the tasks that gained.
        gains: points over the baseline by dataset: mean over seeds, half width of the 95 % interval.
        how: under which conditions, in a few words.
    """

    study: str
    arm: str
    models: str
    fewest: int
    most: int
    tokens: int
    tasks: Mapping[str, TaskConfig]
    gains: Mapping[str, tuple[float, float]]
    how: str

    def __post_init__(self) -> None:
        for dataset, (gain, half) in self.gains.items():
            if not 0 < half < gain:
                raise ValueError(
                    f"{self.study}: {dataset}: {gain} ± {half} is not a gain that is significant at the 95 % level"
                )

    @property
    def surely(self) -> float:
        """The least that the intervals promise."""
        return min(gain - half for gain, half in self.gains.values())

    def shown(self) -> str:
        """Such as ``2.00 ± 0.50 (digits), 3.00 ± 1.00 (cifar10)``."""
        return ", ".join(f"{gain:.2f} ± {half:.2f} ({dataset})" for dataset, (gain, half) in self.gains.items())


@dataclass(frozen=True)
class Knowledge:
    """Contents of ``choices.yaml``.

    Attributes:
        rules: settings for training from scratch.
        finetuned: settings for training from trained weights.
        frozen: settings for a classifier fitted on the features of trained weights.
        gains: measured gains of tasks.
        portfolio: members of a search.
        share: smallest useful fraction of a member's usual epochs.
    """

    rules: tuple[Rule, ...]
    finetuned: tuple[Rule, ...]
    frozen: tuple[Rule, ...]
    gains: tuple[MeasuredGain, ...]
    portfolio: tuple[Mapping[str, Any], ...]
    share: float


@cache
def knowledge() -> Knowledge:
    """Contents of ``choices.yaml``."""
    text = (files("vitlet.training") / FILE).read_text(encoding="utf-8")
    found = yaml.safe_load(text)
    portfolio = found["portfolio"]
    rules, finetuned, frozen = (tuple(map(_rule, found[kind])) for kind in ("runs", "finetuned", "frozen"))
    gains = tuple(map(_gain, found["tasks"]))
    return Knowledge(rules, finetuned, frozen, gains, tuple(portfolio["members"]), portfolio["share"])


def _rule(entry: Mapping[str, Any]) -> Rule:
    when, found = dict(entry["when"]), entry.get("measured")
    measured = MeasuredRun(**found | {"accuracy": _pairs(found["accuracy"])}) if found else None
    device = when.pop("device")
    ranges = {key: (float(low), float(high)) for key, (low, high) in when.items()}
    return Rule(device, entry["settings"], measured=measured, **ranges)


def _gain(entry: Mapping[str, Any]) -> MeasuredGain:
    fewest, most = entry["images"]
    tasks = {name: TaskConfig(weight) for name, weight in entry["task"].items()}
    same = {key: entry[key] for key in ("study", "arm", "models", "tokens", "how")}
    return MeasuredGain(**same, fewest=fewest, most=most, tasks=tasks, gains=_pairs(entry["gains"]))


def _pairs(numbers: Mapping[str, list[float]]) -> dict[str, tuple[float, float]]:
    return {name: (mean, half) for name, (mean, half) in numbers.items()}
