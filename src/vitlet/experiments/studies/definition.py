"""A study: which runs, as the product of datasets, models, arms, fractions and seeds. Does not import torch.

=============  ======================================================================
title          what the study asks, in a sentence
settings       of every run, by the keys of `RunConfig`
datasets       name -> settings; ``data`` is looked for in the data folder first
models         name -> settings
arms           name -> settings: what is compared; ``first``: a pre-training before, on the same data and network,
               with these settings
baseline       the arm that the others are compared with (default: the first)
fractions      shares of the training images, all of them where it is 1, whatever ``fraction`` says elsewhere
seeds          a list, or how many
tuned          ``DATASET/MODEL`` -> settings found on validation data, the same for every arm; or
               ``DATASET/MODEL/ARM`` -> those of one arm
arms_of        ``DATASET/MODEL`` -> the arms that run there, by name (default: all of them); ``[]``: none
test           false: validation images only, no test number is kept
table          a table of a paper: its rows are the datasets, models and arms, with the published numbers beside ours
scale          of a table: full, or small
=============  ======================================================================

Later settings override earlier ones: settings, dataset, model, tuned, arm, tuned of the arm, fraction, seed.
``recipe: NAME`` in any of them starts from a published setting. A table that also names datasets, models or arms is cut
down to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

from vitlet.config import RunConfig
from vitlet.errors import VitletError, nearest
from vitlet.experiments.recipes import Scale, all_recipes, find_recipe, find_table
from vitlet.tasks import TASKS
from vitlet.values import Names, coerce

AXES = ("datasets", "models", "arms", "fractions", "seeds")
KEYS = ("title", "settings", *AXES, "baseline", "tuned", "arms_of", "test", "table", "scale")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
CellSettings = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """Coordinates of one run in the grid: dataset, model, arm, seed, fraction."""

    dataset: str
    model: str
    arm: str
    fraction: float
    seed: int

    @property
    def name(self) -> str:
        """Name such as ``cifar10/vit/drloc/seed-0``, the path of its record."""
        part = "" if self.fraction == 1 else f"/fraction-{self.fraction:g}"
        return f"{self.dataset}/{self.model}/{self.arm}{part}/seed-{self.seed}"


@dataclass(frozen=True)
class Study:
    """A grid of runs."""

    name: str
    title: str
    arms: Mapping[str, CellSettings]
    settings: CellSettings = field(default_factory=dict)
    datasets: Mapping[str, CellSettings] = field(default_factory=lambda: {"data": {}})
    models: Mapping[str, CellSettings] = field(default_factory=lambda: {"model": {}})
    baseline: str = "baseline"
    fractions: tuple[float, ...] = (1.0,)
    seeds: tuple[int, ...] = (0, 1, 2)
    tuned: Mapping[str, CellSettings] = field(default_factory=dict)
    arms_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    test: bool = True
    table: str | None = None
    scale: Scale = "full"
    fractions_named: bool = False

    def cells(self) -> Iterator[Cell]:
        """All runs; seeds outermost, so that every arm has its first seed early."""
        axes = product(self.seeds, self.datasets, self.models, self.fractions, self.arms)
        for seed, dataset, model, fraction, arm in axes:
            published = self.table is None or f"{self.table}/{dataset}/{model}/{arm}" in all_recipes()
            if published and arm in self.arms_of.get(f"{dataset}/{model}", self.arms):
                yield Cell(dataset, model, arm, fraction, seed)

    def values(self, cell: Cell) -> dict[str, Any]:
        """The settings of a run, under the keys of a YAML file; ``first`` among them where a pre-training precedes."""
        pair = f"{cell.dataset}/{cell.model}"
        tuned, of_arm = (self.tuned.get(key, {}) for key in (pair, f"{pair}/{cell.arm}"))
        fraction = {"fraction": cell.fraction} if cell.fraction != 1 else {}
        layers = (self.datasets[cell.dataset], self.models[cell.model], tuned, self.arms[cell.arm], of_arm, fraction)
        joined = reduce(join, (*layers, {"seed": cell.seed}), dict(self.settings))
        recipe = joined.pop("recipe", self.table and f"{self.table}/{cell.dataset}/{cell.model}/{cell.arm}")
        first = joined.pop("first", None)
        if recipe is not None:
            data = None if joined.get("data") is None else str(joined["data"])
            joined = over_recipe(find_recipe(str(recipe)).values(self.scale, data), joined)
        if self.fractions_named and joined.get("fraction", 1) != cell.fraction:  # of all images, where it is 1
            joined["fraction"] = cell.fraction
        if first is not None:
            first = _mapping(first, f"study {self.name}, {cell.name}: first")
            same = {key: value for key, value in joined.items() if key not in (*TASKS, "task", "init", "first")}
            over = join if recipe is None else over_recipe
            joined["first"] = {"pretrain": True, **over(joined.get("first", same), first)}
        return joined

    def paper(self, cell: Cell) -> float | None:
        """The published number, where the study is a paper's table."""
        row = all_recipes().get(f"{self.table}/{cell.dataset}/{cell.model}/{cell.arm}")
        return row.paper if row else None

    def check(self) -> None:
        """Refuse a study without runs, or any of whose runs has a setting that cannot be."""
        if next(self.cells(), None) is None:
            rows = (
                f"the table {self.table} has no row of these datasets, models and arms" if self.table else "no arm runs"
            )
            raise VitletError(f"study {self.name} has no cells: {rows}.")
        for cell in self.cells():
            values = self.values(cell)
            first = values.pop("first", None)
            RunConfig.from_dict(values, source=f"study {self.name}, {cell.name}")
            try:
                json.dumps([values, first])
            except TypeError as problem:
                raise VitletError(f"study {self.name}, {cell.name}: a value is not plain: {problem}.") from None
            if first is not None:
                RunConfig.from_dict(first, source=f"study {self.name}, {cell.name}, first")


def join(below: CellSettings, above: CellSettings) -> dict[str, Any]:
    """CellSettings overridden by others; a task, its options, model arguments and the first phase key by key."""
    joined = dict(below)
    for key, value in above.items():
        old = joined.get(key)
        joined[key] = join(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined


def over_recipe(values: CellSettings, given: CellSettings) -> dict[str, Any]:
    """A recipe's values overridden by given ones: what would contradict those goes, what they scale follows."""
    below = dict(values)
    for key, other in (("init", "pretrained"), ("per_class", "fraction"), ("fraction", "per_class")):
        if given.get(key) is not None:  # each says the same thing in another way
            below.pop(other, None)
    if "epochs" in given:
        share = coerce(given["epochs"], int, "epochs") / below.get("epochs", RunConfig().epochs)
        if below.get("warmup_epochs"):
            below["warmup_epochs"] *= share
        if below.get("stop_epoch"):
            below["stop_epoch"] = max(1, round(below["stop_epoch"] * share))
    return join(below, given)


def read_study(path: Path, values: CellSettings | None = None) -> Study:
    """Read a study from a YAML file or a dictionary; the error for a mistyped key names the nearest one."""
    values = RunConfig.read(path) if values is None else values
    for key in values:
        if key not in KEYS:
            raise VitletError(f"{path}: unknown key {str(key)!r}.{nearest(str(key), KEYS)} Known: {', '.join(KEYS)}.")
    table = values.get("table")
    if table is not None:
        axes = _axes_of(str(table), coerce(values.get("scale", "full"), Scale, f"{path}: scale"))
        for axis, known in axes.items():
            for name in _mapping(values.get(axis) or {}, f"{path}: {axis!r}", "names to settings"):
                if name not in known:
                    hint = nearest(str(name), known) or f" Known: {', '.join(known)}."
                    raise VitletError(f"{path}: {axis} has {name!r}, which is not in the table {table}.{hint}")
        values = {**axes, **values}
    if not values.get("arms"):
        raise VitletError(f"{path}: a study needs 'arms': what is compared, name by name; or 'table', one of a paper.")
    name = path.parent.name if path.stem == "study" else path.stem
    datasets = _axis(values, "datasets", path) or {"data": {}}
    models = _axis(values, "models", path) or {"model": {}}
    pairs = [f"{dataset}/{model}" for dataset in datasets for model in models]
    arms = _axis(values, "arms", path)
    triples = [f"{pair}/{arm}" for pair in pairs for arm in arms]
    study = Study(
        name=name,
        title=str(values.get("title", name)),
        settings=_mapping(values.get("settings") or {}, f"{path}: settings"),
        arms=arms,
        datasets=datasets,
        models=models,
        baseline=str(values.get("baseline") or next(iter(values["arms"]))),
        fractions=_fractions(values.get("fractions", [1.0]), f"{path}: fractions"),
        seeds=_seeds(values.get("seeds", 3), f"{path}: seeds"),
        tuned={key: _mapping(each, f"{path}: tuned") for key, each in _by_pair(values, "tuned", path, pairs + triples)},
        arms_of={
            key: coerce(each, Names, f"{path}: arms_of") for key, each in _by_pair(values, "arms_of", path, pairs)
        },
        test=coerce(values.get("test", True), bool, f"{path}: test"),
        table=None if table is None else str(table),
        scale=coerce(values.get("scale", "full"), Scale, f"{path}: scale"),
        fractions_named="fractions" in values,
    )
    if study.baseline not in study.arms:
        raise VitletError(f"{path}: the baseline {study.baseline!r} is none of the arms {', '.join(study.arms)}.")
    for arm in (arm for arms in study.arms_of.values() for arm in arms):
        if arm not in study.arms:
            raise VitletError(f"{path}: arms_of names {arm!r}, which is none of the arms.{nearest(arm, study.arms)}")
    study.check()
    return study


def _mapping(value: Any, where: str, what: str = "settings to values") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise VitletError(f"{where} needs to map {what}, found {value!r}.")
    return dict(value)


def _axis(values: CellSettings, key: str, path: Path) -> dict[str, CellSettings]:
    options = _mapping(values.get(key) or {}, f"{path}: {key!r}", "names to settings")
    for name in options:
        if not NAME.fullmatch(str(name)):
            raise VitletError(f"{path}: {key} has the name {name!r}; letters, digits, . _ + - are allowed.")
    return {str(name): _mapping(option or {}, f"{path}: {key} {name}") for name, option in options.items()}


def _by_pair(values: CellSettings, key: str, path: Path, pairs: list[str]) -> Iterator[tuple[str, Any]]:
    """Entries of a study that hold for one dataset with one model."""
    found = _mapping(values.get(key) or {}, f"{path}: {key!r}", "DATASET/MODEL to what holds there")
    for pair, value in found.items():
        if pair not in pairs:
            hint = nearest(str(pair), pairs)
            raise VitletError(f"{path}: {key} {str(pair)!r} is not a DATASET/MODEL of this study.{hint}")
        yield pair, value


def _numbers(value: Any, where: str) -> list[float]:
    known = isinstance(value, list) and all(type(each) in (int, float) for each in value)
    if known and value and all(-1e15 < each < 1e15 for each in value):
        return [float(each) for each in value]
    raise VitletError(f"{where} must be a list of numbers, got {value!r}.")


def _fractions(value: Any, where: str) -> tuple[float, ...]:
    numbers = _numbers(value, where)
    if len({f"{each:g}" for each in numbers}) < len(numbers):  # as cells are called
        raise VitletError(f"{where} contains duplicates: {value!r}. Leave one out.")
    return tuple(numbers)


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    if type(value) is int and value > 0:
        return tuple(range(value))
    numbers = _numbers(value, where)
    if not all(each.is_integer() for each in numbers) or len(set(numbers)) < len(numbers):
        raise VitletError(f"{where} must be distinct whole numbers, got {value!r}.")
    return tuple(int(each) for each in numbers)


def _axes_of(table: str, scale: Scale) -> dict[str, Any]:
    """The datasets, models and arms of a paper's table; of datasets that are the same at this size, the first."""
    axes, rows = {"datasets": "dataset", "models": "model", "arms": "arm"}, find_table(table).recipes
    first = {row.config(scale).data: row.dataset for row in reversed(rows)}
    rows = tuple(row for row in rows if row.dataset in first.values())
    return {axis: {str(getattr(row, key)): {} for row in rows} for axis, key in axes.items()}
