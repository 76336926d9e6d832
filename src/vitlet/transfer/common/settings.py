"""Settings that detection and segmentation share; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlet.config import BaseConfig
from vitlet.config.setting import AUG, MODEL, NONNEGATIVE, OPTIM, POSITIVE, SHARE
from vitlet.errors import VitletError


@dataclass(frozen=True)
class TransferConfig(BaseConfig):
    """Settings of detection and segmentation beyond those of every run."""

    backbone: str = MODEL("resnet50", "run, folder or file of trained weights, or name of a model with random weights")
    epochs: int = BaseConfig.redefault("epochs", 12)
    batch_size: int = BaseConfig.redefault("batch_size", 16)
    lr: float = BaseConfig.redefault("lr", 1e-4)
    min_lr: float = OPTIM(0.0, "learning rate at the end of a cosine or linear schedule", NONNEGATIVE)
    clip_grad: float | None = BaseConfig.redefault("clip_grad", None)
    hflip: float | None = AUG(0.5, "probability of a horizontal flip", SHARE)
    sched: Literal["step", "linear", "cosine"] = OPTIM("step", "learning-rate schedule after the warm-up")
    decay_milestones: str = OPTIM("8,11", "epochs after which sched step reduces the learning rate")
    decay_rate: float = OPTIM(0.1, "factor by which sched step reduces the learning rate", POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers("decay_milestones", self.decay_milestones)

    @property
    def network(self) -> str:
        """The name of the backbone, or of the folder or file that it comes from."""
        return Path(self.backbone).name


def numbers(name: str, text: str) -> tuple[float, ...]:
    """Numbers above 0 separated by commas."""
    try:
        found = tuple(float(word) for word in text.split(","))
        if all(0 < number < float("inf") for number in found):
            return found
    except ValueError:
        pass
    raise VitletError(f"{name} must be numbers greater than 0 separated by commas, such as 8,11, got {text!r}.")
