"""Recipe: one row of a published table as the settings of a run. Does not import torch."""

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
SMALL_EPOCHS = 0.4
"""Share of the epochs, and of what is counted in them."""
SMALL_DATA = {"cifar100": "cifar10", "svhn": "cifar10"} | {
    name: name for name in ("cifar10", "flowers102", "flowers102-split", "imagenette")
}
"""The data of a recipe at small size, which anybody can have; Imagenette stands for all that are not listed."""
SMALL_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "arvit": ("arvit_reference_patch16_256", {"patch_size": 4, "embed_dim": 192, "mlp_hidden": 96}),
    "vit_tiny_d6": ("vit_tiny_d6_patch16_256", {"patch_size": 4, "embed_dim": 72}),
    **{family: (f"{family}_for_32px", {}) for family in ("cvt", "swin", "t2t", "resnet", "vit")},
}
"""The model that stands for those whose names begin so, the first that fits."""


@dataclass(frozen=True)
class Recipe:
    """One row of a table.

    Attributes:
        table: name of the table such as ``drloc_table4``.
        dataset: column of the table.
        model: row of the table.
        arm: which of the compared trainings.
        make: the settings at full size.
        paper: the published number; None where none is at hand.
        first: the settings of the pre-training before, where there is one.
        unit: unit of the published number.
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
        """Name such as ``drloc_table4/cifar10/swin_t/drloc``."""
        return f"{self.table}/{self.dataset}/{self.model}/{self.arm}"

    def config(self, scale: Scale = "full", data: str | None = None) -> RunConfig:
        """The settings of the run; at small size for ``data``, where that takes the place of the recipe's."""
        return self.make() if scale == "full" else small(self.make(), data)

    def first_config(self, scale: Scale = "full", data: str | None = None) -> RunConfig | None:
        """The settings of its pre-training; at small size also of one that replaces downloaded weights."""
        if self.first is not None:
            return replace(self, make=self.first).config(scale, data)
        run = self.make()
        if scale == "full" or not run.pretrained:
            return None
        other = "cifar10" if small(run).data == "imagenette" else "imagenette"
        return small(replace(run, data=other, tasks={}), data)

    def values(self, scale: Scale = "full", data: str | None = None, first_data: str | None = None) -> dict[str, Any]:
        """Settings of both stages as plain values, without those at their defaults."""
        values, first = _unusual(self.config(scale, data)), self.first_config(scale, first_data)
        return {**values, "first": _unusual(first)} if first is not None else values


@dataclass(frozen=True)
class PaperTable:
    """A published table: its name, such as ``drloc_table4``, its title, and a recipe for each of its numbers.

    ``seeds`` is how many runs a number is the mean of in the paper, where it says so; ``note`` what there is to say of
    how its recipes differ from what was published.
    """

    name: str
    title: str
    recipes: tuple[Recipe, ...]
    note: str = ""
    seeds: int = 3


def published(table: str) -> list[tuple[str, str, str, float]]:
    """Dataset, model, arm and number of every entry of a table in ``published.csv``, where rows are the papers' own."""
    lines = Path(__file__).with_name("published.csv").read_text(encoding="utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines) if row.pop("table") == table]
    entries = ((row.pop("model"), row.pop("arm"), row) for row in rows)
    return [(data, model, arm, float(text)) for model, arm, row in entries for data, text in row.items() if text]


def small(config: RunConfig, data: str | None = None) -> RunConfig:
    """Reduced settings for one CPU core: about 2,000 images of 32 px of a dataset that anybody can have, the
    family's small model, batches of 64, and 0.4 of the epochs. Learning rate, weights, augmentation and schedules
    stay as they are. Of other ``data`` than the named datasets all images are used, for nobody knows how many."""
    from vitlet.data.named.official import OFFICIAL

    data = data or SMALL_DATA.get(config.data, "imagenette")
    model, sizes = next(found for family, found in SMALL_MODELS.items() if config.model.startswith(family))
    views = {key: value for key, value in config.model_kwargs.items() if key == "dynamic_img_size"}
    return replace(
        config,
        data=data,
        model=model,
        model_kwargs={**sizes, **views},
        pretrained=False,
        img_size=(SMALL_RECIPE_SIDE, SMALL_RECIPE_SIDE),
        fraction=min(1.0, round(SMALL_IMAGES / OFFICIAL[data].train, 4)) if data in OFFICIAL else 1.0,
        val_fraction=0.1,
        eval_on_test=False,
        batch_size=64,
        epochs=max(1, round(SMALL_EPOCHS * config.epochs)),
        stop_epoch=None if config.stop_epoch is None else max(1, round(SMALL_EPOCHS * config.stop_epoch)),
        warmup_epochs=None if config.warmup_epochs is None else SMALL_EPOCHS * config.warmup_epochs,
        amp=False,
    )


def _unusual(config: RunConfig) -> dict[str, Any]:
    usual = RunConfig().to_dict()
    return {key: value for key, value in config.to_dict().items() if value != usual.get(key)}
