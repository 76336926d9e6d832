"""A detector or segmenter as something that the loop can train."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitlet.data.randomness import mix_seed
from vitlet.errors import VitletError
from vitlet.objective import Term
from vitlet.objective.schedules import Schedule, WarmupCosine, WarmupLinear, WarmupSteps
from vitlet.training.build import find_device
from vitlet.training.distributed import World
from vitlet.training.evaluate import nothing
from vitlet.training.job import Measured
from vitlet.training.terms import make_terms
from vitlet.transfer.common.backbone import Opened
from vitlet.transfer.common.loading import TrainingSamples
from vitlet.transfer.common.objective import TransferObjective
from vitlet.transfer.common.settings import TransferConfig, numbers

Config = TypeVar("Config", bound=TransferConfig)
Evaluate = Callable[[World, Callable[[], None]], Measured]
Item = TypeVar("Item")


@dataclass
class TransferJob:
    """Implements `vitlet.training.job.Job`.

    Attributes:
        model: the network that is exported; it shares its parts with the objective.
        samples: the training images.
        evaluations: by split.
    """

    config: TransferConfig
    objective: TransferObjective
    model: nn.Module
    device: torch.device
    description: str
    notes: tuple[str, ...]
    classes: Sequence[str]
    data_note: str
    samples: TrainingSamples
    evaluations: Mapping[str, Evaluate]

    @property
    def images(self) -> int:
        """Number of training images."""
        return len(self.samples.samples)

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Not known."""
        return {}

    @property
    def validates(self) -> bool:
        """Whether there are validation images."""
        return "val" in self.evaluations

    @property
    def tests(self) -> bool:
        """Whether there are test images."""
        return "test" in self.evaluations

    def inputs(self, batch: tuple[Tensor, Any]) -> tuple[Any, Any]:
        """A batch on the device."""
        images, targets = batch
        return moved(images, self.device), moved(targets, self.device)

    def example(self) -> tuple[Any, Any]:
        """The first two training images, or the first one twice."""
        return self.inputs(self.samples.__getitems__([(0, 0), (0, min(1, self.images - 1))]))

    def learning_rate(self) -> Schedule:
        """Warm-up, then steps, a line or a cosine."""
        config = self.config
        warmup, end = config.warmup_epochs or 0.0, min(config.min_lr, config.lr)
        if config.sched == "step":
            return WarmupSteps(config.lr, numbers("", config.decay_milestones), config.decay_rate, warmup)
        if config.sched == "linear":
            return WarmupLinear(config.lr, config.epochs, warmup, end)
        return WarmupCosine(config.lr, config.epochs, warmup, end=end)

    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        """The numbers of the validation images."""
        return self.evaluations["val"](world, between).to_dict()

    def test(self, world: World) -> Measured:
        """The numbers of the test images."""
        return self.evaluations["test"](world, nothing)


def moved(value: Any, device: torch.device) -> Any:
    """Tensors in lists and dicts on another device; other values as they are."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    return [moved(each, device) for each in value] if isinstance(value, list) else value


def resolved(config: Config) -> tuple[Config, torch.device]:
    """Every setting that was left open, filled in; and the device."""
    device = find_device(config.device)
    workers = config.workers
    if workers is None:
        workers = 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
    warmup = config.epochs / 20 if config.warmup_epochs is None else config.warmup_epochs
    return replace(config, device=device.type, workers=workers, warmup_epochs=warmup), device


def terms_on(opened: Opened, config: TransferConfig, canvas: tuple[int, int]) -> list[Term]:
    """The tasks of a run on grids of one size: that of the canvas."""
    if config.tasks:
        opened.backbone.img_size = canvas
    return make_terms(config, opened.backbone)


def hold_out(items: Sequence[Item], fraction: float, seed: int) -> tuple[list[Item], list[Item]]:
    """Items to train on, and a random share of them to validate on."""
    count = round(len(items) * fraction)
    if fraction > 0 and not 0 < count < len(items):
        raise VitletError(
            f"{len(items)} training images leave nothing to hold out {fraction:g} of. Add validation images, or use"
            " --val-fraction 0."
        )
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(mix_seed(seed))).tolist()
    held = set(order[:count])
    return [item for place, item in enumerate(items) if place not in held], [items[place] for place in sorted(held)]
