"""The training batches of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vitlet.config import RunConfig
from vitlet.data.augment import Augmenter
from vitlet.data.images import Dataset
from vitlet.data.loading import EpochOrder, TrainingSet, training_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.shards import ShardBatches, ShardStream
from vitlet.errors import VitletError
from vitlet.training.distributed import World
from vitlet.training.inputs import make_augmentation


def training_batches(
    config: RunConfig, dataset: Dataset, preprocess: Preprocess, device: torch.device, world: World
) -> tuple[EpochOrder | ShardBatches, Any]:
    """The order of the batches, which takes the epoch and the first step, and the batches themselves."""
    images = dataset.train
    parts, own = world.size * config.grad_accum_steps, config.grad_accum_steps
    if config.batch_size % parts:
        raise VitletError(
            f"batch_size ({config.batch_size}) must be divisible by processes x grad_accum_steps ({world.size} x"
            f" {own})."
        )
    mine = range(world.rank * own, (world.rank + 1) * own)
    augment = Augmenter(make_augmentation(config), preprocess)
    workers = config.workers or 0
    if isinstance(images, ShardStream):
        if config.img_size_start is not None or config.epoch_repeats != 1:
            raise VitletError("img_size_start and epoch_repeats do not work with shards. Leave them out.")
        stream = ShardBatches(
            images,
            augment,
            classes=len(dataset.classes),
            channels=config.in_chans,
            batch_size=config.batch_size,
            seed=config.seed,
            parts=parts,
            mine=mine,
        )
        return stream, PlainErrors(stream.loader(workers=workers, device=str(device)))
    order = EpochOrder(
        images.labels,
        batch_size=config.batch_size,
        seed=config.seed,
        balanced=config.balance == "sampler",
        parts=parts,
        mine=mine,
        repeats=config.epoch_repeats,
    )
    training = TrainingSet(images, augment, channels=config.in_chans, seed=config.seed)
    return order, PlainErrors(training_loader(training, order, workers=workers, device=str(device)))


class PlainErrors:
    """Batches whose errors read the same whether a loading process or this one met them."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.loader
        except VitletError as problem:
            last = str(problem).strip().splitlines()[-1]
            error = VitletError(last.removeprefix(f"{VitletError.__module__}.VitletError: "))
            error.everywhere = False
            raise error from problem
