"""What a recipe is: one row of a published table as the settings of a run. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitlet.config import RunConfig

Scale = Literal["full", "small"]


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
    """

    table: str
    dataset: str
    model: str
    arm: str
    make: Callable[[], RunConfig]
    paper: float | None = None
    first: Callable[[], RunConfig] | None = None
    unit: str = "top-1 %"

    @property
    def name(self) -> str:
        """Such as ``drloc_table4/cifar10/swin_t/drloc``."""
        return f"{self.table}/{self.dataset}/{self.model}/{self.arm}"

    def config(self, scale: Scale = "full") -> RunConfig:
        """The settings of the run."""
        return self.make() if scale == "full" else small(self.make())

    def first_config(self, scale: Scale = "full") -> RunConfig | None:
        """The settings of its pre-training."""
        if self.first is None:
            return None
        return self.first() if scale == "full" else small(self.first())

    def values(self, scale: Scale = "full") -> dict[str, Any]:
        """Both as plain values, without those that are as usual."""
        values, first = _unusual(self.config(scale)), self.first_config(scale)
        return {**values, "first": _unusual(first)} if first is not None else values


SMALL_IMAGES = 2000
SMALL_SIDE = 32
SMALL_MODELS = {
    "cvt": "cvt_for_32px",
    "swin": "swin_for_32px",
    "t2t": "t2t_for_32px",
    "resnet": "resnet_for_32px",
    "vit": "vit_for_32px",
    "arvit": "vit_for_32px",
}


def small(config: RunConfig) -> RunConfig:
    """The same question at a size for one CPU core: about 2,000 images of 32 px, the family's small network, batches of
    64 instead of 1,024, and 0.4 of the epochs. Learning rate, weights, augmentation and schedules stay as they are."""
    from vitlet.data.named.official import OFFICIAL

    family = next(name for name in (*SMALL_MODELS,) if config.model.startswith(name))
    classes = OFFICIAL[config.data].classes
    epochs = max(1, round(0.4 * config.epochs))
    warmup = config.warmup_epochs
    return replace(
        config,
        model=SMALL_MODELS[family],
        model_kwargs={"dynamic_img_size": True} if "dynamic_img_size" in config.model_kwargs else {},
        pretrained=False,
        img_size=(SMALL_SIDE, SMALL_SIDE),
        per_class=None if config.pretrain else max(2, round(SMALL_IMAGES / classes)),
        fraction=min(1.0, SMALL_IMAGES / OFFICIAL[config.data].train) if config.pretrain else 1.0,
        val_fraction=0.1,
        batch_size=64,
        epochs=epochs,
        warmup_epochs=None if warmup is None else 0.4 * warmup,
        amp=False,
    )


def _unusual(config: RunConfig) -> dict[str, Any]:
    usual = RunConfig().to_dict()
    return {key: value for key, value in config.to_dict().items() if value != usual.get(key)}
