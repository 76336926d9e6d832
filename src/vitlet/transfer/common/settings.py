"""Settings of a run that puts a trained backbone under a head; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vitlet.config import RunConfig, setting
from vitlet.errors import VitletError

UNUSED = frozenset(
    {
        *("data_dir", "download", "class_list", "partial", "classes", "folds", "fold", "group_by", "fraction"),
        *("per_class", "skip_unreadable", "model", "pretrain", "positions", "init", "freeze", "img_size", "in_chans"),
        *("num_classes", "lr_base", "lr_base_size", "lr_base_scale", "aug", "crop", "scale", "aa", "color_jitter"),
        *("reprob", "smoothing", "mixup", "cutmix", "balance", "class_weights", "crop_pct", "balance_tasks"),
        *("compile", "fsdp", "cache", "cache_dir"),
    }
)
"""Settings of a classifier that mean nothing here."""


@dataclass(frozen=True)
class TransferConfig(RunConfig):
    """The fields of `RunConfig` that mean something here, and these."""

    UNUSED: ClassVar[frozenset[str]] = UNUSED

    backbone: str = setting(
        "resnet50", "run, folder or file of weights to start from, or name of a network with random weights"
    )
    epochs: int = setting(12, "passes over the training images")
    batch_size: int = setting(16, "images per step, of all processes together", "-b")
    lr: float = setting(1e-4, "peak learning rate of AdamW")
    min_lr: float = setting(0.0, "learning rate at the end of the cosine or of the line")
    clip_grad: float | None = setting(None, "largest norm of the gradient; none to leave it")
    hflip: float | None = setting(0.5, "probability of a horizontal flip")
    sched: Literal["step", "linear", "cosine"] = setting("step", "of the learning rate after its warm-up")
    decay_milestones: str = setting("8,11", "of sched step: epochs after which the learning rate falls")
    decay_rate: float = setting(0.1, "of sched step: the factor by which it falls")

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers("decay_milestones", self.decay_milestones)
        if self.decay_rate <= 0:
            raise VitletError(f"decay_rate is {self.decay_rate:g}; it needs to be more than 0.")

    @property
    def network(self) -> str:
        """What the backbone is called in the name of a run's folder."""
        return Path(self.backbone).name


def numbers(name: str, text: str) -> tuple[float, ...]:
    """Numbers above 0 separated by commas."""
    try:
        found = tuple(float(word) for word in text.split(","))
        if all(0 < number < float("inf") for number in found):
            return found
    except ValueError:
        pass
    raise VitletError(f"{name} is {text!r}; it needs to be numbers above 0 separated by commas, such as 8,11.")
