"""Settings of a run that puts a trained backbone under a head; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlet.config import BaseConfig
from vitlet.config.setting import AUG, MODEL, NONNEGATIVE, OPTIM, POSITIVE, SHARE
from vitlet.errors import VitletError


@dataclass(frozen=True)
class TransferConfig(BaseConfig):
    """What detection and segmentation share beyond the settings of every run."""

    backbone: str = MODEL(
        "resnet50", "run, folder or file of weights to start from, or name of a network with random weights"
    )
    epochs: int = BaseConfig.redefault("epochs", 12)
    batch_size: int = BaseConfig.redefault("batch_size", 16)
    lr: float = BaseConfig.redefault("lr", 1e-4)
    min_lr: float = OPTIM(0.0, "learning rate at the end of the cosine or of the line", NONNEGATIVE)
    clip_grad: float | None = BaseConfig.redefault("clip_grad", None)
    hflip: float | None = AUG(0.5, "probability of a horizontal flip", SHARE)
    sched: Literal["step", "linear", "cosine"] = OPTIM("step", "of the learning rate after its warm-up")
    decay_milestones: str = OPTIM("8,11", "of sched step: epochs after which the learning rate falls")
    decay_rate: float = OPTIM(0.1, "of sched step: the factor by which it falls", POSITIVE)

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
    raise VitletError(f"{name} is {text!r}; it needs to be numbers above 0 separated by commas, such as 8,11.")
