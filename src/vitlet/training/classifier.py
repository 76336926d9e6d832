"""Training a classifier: images and labels, mixed; accuracy as the score."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torchvision.transforms import v2

from vitlet.config import RunConfig
from vitlet.data.images import Dataset
from vitlet.data.sources import load_dataset
from vitlet.errors import VitletError
from vitlet.objective import Outcome
from vitlet.training.distributed import World
from vitlet.training.evaluate import Scores, evaluate, nothing
from vitlet.training.image_job import ImageJob
from vitlet.training.inputs import class_weights, data_request


class ClassifierJob(ImageJob):
    """A classifier, with any tasks beside the labels."""

    labelled = True

    @classmethod
    def load_data(cls, config: RunConfig) -> Dataset:
        return load_dataset(data_request(config))

    @classmethod
    def num_classes(cls, config: RunConfig, classes: int) -> int:
        if config.num_classes is not None and config.num_classes < classes:
            raise VitletError(
                f"the data has {classes} classes, but num_classes is {config.num_classes}: labels would lie beyond the"
                " classifier. Leave --num-classes out."
            )
        return config.num_classes or classes

    @classmethod
    def criterion(cls, config: RunConfig, dataset: Dataset, num_classes: int) -> nn.Module:
        weights = class_weights(config, dataset, num_classes)
        return nn.CrossEntropyLoss(weights, label_smoothing=config.smoothing or 0.0)

    @classmethod
    def labels(cls, labels: Tensor) -> Tensor:
        return labels

    @property
    def tests(self) -> bool:
        return self.dataset.test is not None

    @cached_property
    def mix(self) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        """Mixup and cutmix of a batch."""
        return make_mix(self.config)

    def inputs(self, batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = batch
        return self.mix(images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True))

    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        return self._evaluate(self.validation_loader(world), world, between).to_dict()

    def test(self, world: World) -> Scores:
        assert self.dataset.test is not None
        return self._evaluate(self.evaluation_loader(self.dataset.test, world), world, nothing)

    def classify(self, images: Tensor) -> Tensor:
        """Class scores, as the exported network gives them; a sharded one can only be called as a whole."""
        if not self.config.fsdp:
            logits: Tensor = self.model(images)
            return logits
        outcome: Outcome = self.objective(images, None, {})
        assert outcome.logits is not None
        return outcome.logits

    def _evaluate(self, loader: Any, world: World, between: Callable[[], None]) -> Scores:
        return evaluate(
            self.classify,
            loader,
            classes=len(self.classes),
            device=self.device,
            autocast=self.autocast,
            world=world,
            between=between,
        )


def make_mix(config: RunConfig) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
    """Mixup and cutmix, one of them per batch at equal odds where both are on."""
    mixes: list[Any] = []
    if config.mixup:
        mixes.append(v2.MixUp(alpha=config.mixup, num_classes=config.num_classes))
    if config.cutmix:
        mixes.append(v2.CutMix(alpha=config.cutmix, num_classes=config.num_classes))
    if not mixes:
        return lambda images, labels: (images, labels)
    choice: Callable[[Tensor, Any], tuple[Tensor, Any]] = v2.RandomChoice(mixes)
    return choice
