"""Base class of the jobs that train detectors and segmentation models."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from vitlet.data.contents import content_print
from vitlet.data.loading import EpochOrder, training_loader
from vitlet.data.randomness import mix_seed
from vitlet.errors import VitletError
from vitlet.objective.schedules import Schedule, WarmupCosine, WarmupLinear, WarmupSteps
from vitlet.training.build import default_workers, find_device
from vitlet.training.distributed import World
from vitlet.training.evaluate import nothing
from vitlet.training.job import Batches, Job, Measured
from vitlet.training.loaders import PlainErrors
from vitlet.training.optim import make_autocast
from vitlet.training.terms import make_terms
from vitlet.transfer.common.backbone import Opened, open_backbone
from vitlet.transfer.common.objective import TransferObjective
from vitlet.transfer.common.predictor import DensePredictor
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.common.settings import TransferConfig, numbers

TransferSettings = TypeVar("TransferSettings", bound=TransferConfig)


class TransferJob(Job):
    """The training of a dense head on a backbone.

    Finds the data, builds the model, resolves the settings; nothing is written yet.

    Attributes:
        splits: the data, by ``train``, ``val`` and ``test``.
        predictor: what is trained; its model shares its parts with the objective.
        samples: the training images.
    """

    PREDICTOR: ClassVar[type[DensePredictor]]

    config: Any
    splits: dict[str, Any]

    def __init__(self, config: TransferConfig) -> None:
        self.config, self.device = resolved(config)
        self.splits = self.open_data()
        torch.manual_seed(mix_seed(config.seed))
        opened = open_backbone(self.config, self.canvas())
        levels = Levels(opened)
        about = self.describe(opened, levels)
        self.description = json.dumps(about, indent=2, ensure_ascii=False)
        self.predictor = self.PREDICTOR(self.config, opened.backbone, levels, about)
        self.model, self.classes = self.predictor.model, self.predictor.classes
        if self.config.tasks:
            opened.backbone.img_size = self.canvas()  # tasks need grids of one size
        terms = make_terms(self.config, opened.backbone)
        self.objective = TransferObjective(opened.backbone, self.model.head, terms).to(self.device)
        self.samples = self.predictor.samples(self.splits["train"])
        self.images, self.validates, self.tests = len(self.samples), "val" in self.splits, "test" in self.splits
        names = {"validation": "val", "test": "test"}
        self.held_out = {name: len(self.splits[key].images) for name, key in names.items() if key in self.splits}
        self.notes = self.notes_on(opened)
        self.data_note = "; ".join(f"{name}: {split.note()}" for name, split in self.splits.items())
        self.autocast: Callable[[], AbstractContextManager[Any]] = make_autocast(self.config, self.device)

    @classmethod
    def build(cls, config: Any) -> Self:
        return cls(config)

    @cached_property
    def contents(self) -> dict[str, str]:
        """Fingerprint of the content of images, masks and annotations by split."""
        files = {name: split.files() for name, split in self.splits.items()}
        return {name: content_print([(f"{p.parent.name}/{p.name}", p) for p in each]) for name, each in files.items()}

    @abstractmethod
    def open_data(self) -> dict[str, Any]:
        """The splits of the data, checked; a training split is among them."""

    @abstractmethod
    def canvas(self) -> tuple[int, int]:
        """The image size for backbones that take one alone, and for tasks."""

    def describe(self, opened: Opened, levels: Levels, **sizes: Any) -> dict[str, Any]:
        """Values that the predictor needs beside weights and settings."""
        mean, std = opened.statistics()
        return {
            "job": self.config.JOB,
            "architecture": opened.architecture,
            "model_args": dict(opened.arguments),
            "fixed": opened.fixed,
            **sizes,
            "divisor": levels.divisor,
            "mean": mean,
            "std": std,
        }

    def notes_on(self, opened: Opened) -> tuple[str, ...]:
        """Sentences worth printing."""
        return (opened.note,) if opened.note else ()

    def batches(self, world: World) -> tuple[Batches, Any]:
        """The order of the batches, which takes the epoch and the first step, and the batches of this process."""
        config, own = self.config, self.config.grad_accum_steps
        parts = world.size * own
        if config.batch_size % parts:
            raise VitletError(
                f"batch_size ({config.batch_size}) must be divisible by processes x grad_accum_steps"
                f" ({world.size} x {own})."
            )
        mine = range(world.rank * own, (world.rank + 1) * own)
        images = range(len(self.samples))
        order = EpochOrder(images, batch_size=config.batch_size, seed=config.seed, parts=parts, mine=mine)
        loader = training_loader(self.samples, order, workers=config.workers or 0, device=str(self.device))
        return order, PlainErrors(loader)

    def inputs(self, batch: tuple[Tensor, Any], epoch: float = 0.0) -> tuple[Any, Any]:
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
        with self.autocast():
            return self.predictor.measure(self.splits["val"], world, between).to_dict()

    def validation_batches(self, world: World) -> int:
        """Images, as each goes through the model by itself."""
        return -(-len(self.splits["val"].images) // world.size)

    def test(self, world: World) -> Measured:
        """The numbers of the test images."""
        with self.autocast():
            return self.predictor.measure(self.splits["test"], world, nothing)


def moved(value: Any, device: torch.device) -> Any:
    """Tensors in lists and dicts on another device; other values as they are."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    return [moved(each, device) for each in value] if isinstance(value, list) else value


def resolved(config: TransferSettings) -> tuple[TransferSettings, torch.device]:
    """Every setting that was left open, filled in; and the device."""
    device = find_device(config.device)
    workers = default_workers(device) if config.workers is None else config.workers
    warmup = config.epochs / 20 if config.warmup_epochs is None else config.warmup_epochs
    return replace(config, device=device.type, workers=workers, warmup_epochs=warmup), device
