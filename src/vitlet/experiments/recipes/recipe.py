"""What a recipe is: one row of a published table as the settings of a run. Does not import torch."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitlet.config import RunConfig

Scale = Literal["full", "small"]
SMALL_IMAGES, SMALL_RECIPE_SIDE = 2000, 32
"""Training images, and their height and width, of a recipe at small size."""


@dataclass(frozen=True)
class Recipe:
    """One row of a table.

    Attributes:
        table: such as ``drloc_table4``.
        dataset: column of the table.
        model: row of the table.
        arm: which of the compared trainings.
        make: the settings at full size.
        paper: the published number; None where none is at hand.
        first: the settings of the pre-training before, where there is one.
        unit: of the published number.
        needs: what has to be at hand to start as published, where that cannot be downloaded by name.
    """

    table: str
    dataset: str
    model: str
    arm: str
    make: Callable[[], RunConfig]
    paper: float | None = None
    first: Callable[[], RunConfig] | None = None
    unit: str = "top-1 %"
    needs: str = ""

    @property
    def name(self) -> str:
        """Such as ``drloc_table4/cifar10/swin_t/drloc``."""
        return f"{self.table}/{self.dataset}/{self.model}/{self.arm}"

    def config(self, scale: Scale = "full") -> RunConfig:
        """The settings of the run."""
        return self.make() if scale == "full" else small(self.make())

    def first_config(self, scale: Scale = "full") -> RunConfig | None:
        """The settings of its pre-training."""
        return None if self.first is None else replace(self, make=self.first).config(scale)

    def values(self, scale: Scale = "full") -> dict[str, Any]:
        """Both as plain values, without those that are as usual."""
        values, first = _unusual(self.config(scale)), self.first_config(scale)
        return {**values, "first": _unusual(first)} if first is not None else values


@dataclass(frozen=True)
class PaperTable:
    """A published table: its name, such as ``drloc_table4``, its title, and a recipe for each of its numbers.

    ``note`` is what there is to say of how its recipes differ from what was published.
    """

    name: str
    title: str
    recipes: tuple[Recipe, ...]
    note: str = ""


def published(table: str) -> list[tuple[str, str, str, float]]:
    """Dataset, model, arm and number of every entry of a table in ``published.csv``, where rows are the papers' own."""
    lines = Path(__file__).with_name("published.csv").read_text(encoding="utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines) if row.pop("table") == table]
    entries = ((row.pop("model"), row.pop("arm"), row) for row in rows)
    return [(data, model, arm, float(text)) for model, arm, row in entries for data, text in row.items() if text]


def small(config: RunConfig) -> RunConfig:
    """The same question at a size for one CPU core: about 2,000 images of 32 px, the family's small network, batches of
    64 instead of 1,024, and 0.4 of the epochs. Learning rate, weights, augmentation and schedules stay as they are."""
    from vitlet.data.named.official import OFFICIAL

    name, official = config.model.removeprefix("ar"), OFFICIAL[config.data]  # arvit is of the family of vit
    family = next(family for family in ("cvt", "swin", "t2t", "resnet", "vit") if name.startswith(family))
    return replace(
        config,
        model=f"{family}_for_32px",
        model_kwargs={"dynamic_img_size": True} if "dynamic_img_size" in config.model_kwargs else {},
        pretrained=False,
        img_size=(SMALL_RECIPE_SIDE, SMALL_RECIPE_SIDE),
        per_class=None if config.pretrain else max(2, round(SMALL_IMAGES / official.classes)),
        fraction=min(1.0, SMALL_IMAGES / official.train) if config.pretrain else 1.0,
        val_fraction=0.1,
        batch_size=64,
        epochs=max(1, round(0.4 * config.epochs)),
        warmup_epochs=None if config.warmup_epochs is None else 0.4 * config.warmup_epochs,
        amp=False,
    )


def _unusual(config: RunConfig) -> dict[str, Any]:
    usual = RunConfig().to_dict()
    return {key: value for key, value in config.to_dict().items() if value != usual.get(key)}
