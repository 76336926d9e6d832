"""Batches of images with targets; every random choice is a function of (seed, epoch, image)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vitlet.data.loading import EpochOrder, training_loader
from vitlet.data.randomness import keyed_uniforms
from vitlet.errors import VitletError
from vitlet.training.distributed import World
from vitlet.training.loaders import Batches, PlainErrors
from vitlet.transfer.common.settings import TransferConfig


class Samples(Protocol):
    """Images with targets by index."""

    def __len__(self) -> int: ...

    def augmented(self, index: int, keys: Sequence[float]) -> tuple[Tensor, Any]:
        """A training image, normalised, and its target; ``keys`` in [0, 1) decide everything random."""
        ...


class TrainingSamples(torch.utils.data.Dataset[Any]):
    """Batches asked for as [(epoch, index), ...].

    Args:
        samples: the images.
        keys: random numbers that each image needs.
        seed: of the run.
        collate: from images and targets to a batch.
    """

    def __init__(
        self, samples: Samples, keys: int, seed: int, collate: Callable[[list[Tensor], list[Any]], tuple[Tensor, Any]]
    ) -> None:
        self.samples, self.keys, self.seed, self.collate = samples, keys, seed, collate

    def __getitems__(self, items: Sequence[tuple[int, int]]) -> tuple[Tensor, Any]:
        """PyTorch's loader hands whole batches to this method."""
        epochs, indices = zip(*items, strict=True)
        keys = keyed_uniforms(self.keys, self.seed, epochs, indices).tolist()
        found = [self.samples.augmented(index, each) for index, each in zip(indices, keys, strict=True)]
        images, targets = zip(*found, strict=True)
        return self.collate(list(images), list(targets))


def training_batches(config: TransferConfig, samples: TrainingSamples, world: World, device: torch.device) -> Batches:
    """What is to be told the epoch and the step to start at, and the batches of this process."""
    parts, own = world.size * config.grad_accum_steps, config.grad_accum_steps
    if config.batch_size % parts:
        raise VitletError(
            f"batch_size is {config.batch_size}, which {world.size} processes x {own} parts (grad_accum_steps) do not"
            " divide; make it a multiple."
        )
    order = EpochOrder(
        range(len(samples.samples)),
        batch_size=config.batch_size,
        seed=config.seed,
        parts=parts,
        mine=range(world.rank * own, (world.rank + 1) * own),
    )
    return order, PlainErrors(training_loader(samples, order, workers=config.workers or 0, device=str(device)))


def shared_out(count: int, world: World, between: Callable[[], None]) -> Iterator[int]:
    """The indices of this process's images, with ``between`` called equally often in all processes."""
    for first in range(0, count, world.size):
        between()
        if first + world.rank < count:
            yield first + world.rank
