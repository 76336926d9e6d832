"""Pre-training: images without labels, the tasks alone; their loss as the score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from torch import Tensor, nn

from vitlet.config import RunConfig, TaskConfig
from vitlet.data.images import Dataset
from vitlet.data.sources import load_unlabelled
from vitlet.models.initialise import position_names
from vitlet.tasks.declared import load_task
from vitlet.training.distributed import World
from vitlet.training.evaluate import evaluate_tasks
from vitlet.training.image_job import ImageJob
from vitlet.training.inputs import data_request


class PretrainJob(ImageJob):
    """A network that learns from the tasks alone, by default from RelViT's two."""

    labelled = False
    tests = False

    @classmethod
    def load_data(cls, config: RunConfig) -> Dataset:
        return load_unlabelled(data_request(config))

    @classmethod
    def num_classes(cls, config: RunConfig, classes: int) -> int:
        return 0

    @classmethod
    def criterion(cls, config: RunConfig, dataset: Dataset, num_classes: int) -> nn.Module:
        """Never called: there are no labels."""
        return nn.CrossEntropyLoss(label_smoothing=config.smoothing or 0.0)

    @classmethod
    def with_tasks(cls, config: RunConfig) -> RunConfig:
        if config.tasks:
            return config
        return replace(config, tasks={"sprel": TaskConfig(1.0), "position": TaskConfig(1.0)})

    @classmethod
    def settle_positions(cls, config: RunConfig, model: nn.Module) -> tuple[RunConfig, list[str]]:
        """The positional embedding goes off where it would give the answers of a task away."""
        given_away = bool(position_names(model)) and any(
            load_task(name).asks_for_places and task.view != "shuffle" for name, task in config.tasks.items()
        )
        if config.positions == "auto":
            config = replace(config, positions="off" if given_away else "on")
        if config.positions == "off" or not given_away:
            return config, []
        return config, [
            "the positional embedding is on and the patches are not shuffled: it gives the answers away, so the network"
            " may learn nothing from the images. Use --positions off, or a shuffled view."
        ]

    @classmethod
    def labels(cls, labels: Tensor) -> None:
        return None

    def inputs(self, batch: Any) -> tuple[Tensor, None]:
        return batch[0].to(self.device, non_blocking=True), None

    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        """The losses and metrics of the tasks."""
        return evaluate_tasks(
            self.objective,
            self.validation_loader(world),
            weights=self.objective.weights(epoch),
            device=self.device,
            autocast=self.autocast,
            world=world,
            between=between,
        )

    def test(self, world: World) -> NoReturn:
        """Frozen features are measured by `vitlet probe`."""
        raise AssertionError("a pre-training is not tested")
