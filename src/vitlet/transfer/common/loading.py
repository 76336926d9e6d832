"""Batches of images with targets; every random choice is a function of (seed, epoch, image)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitlet.data.randomness import keyed_uniforms
from vitlet.training.distributed import World


class TrainingSamples(torch.utils.data.Dataset[Any], ABC):
    """Training images with targets; batches are indexed by [(epoch, index), ...].

    Args:
        images: one record per image.
        seed: random seed of the run.
    """

    KEYS: ClassVar[int]
    """Random numbers that each image needs."""

    def __init__(self, images: Sequence[Any], seed: int) -> None:
        self.images, self.seed = images, seed

    def __len__(self) -> int:
        return len(self.images)

    @abstractmethod
    def augmented(self, index: int, keys: Sequence[float]) -> tuple[Tensor, Any]:
        """A training image, normalised, and its target; ``keys`` in [0, 1) decide everything random."""

    @abstractmethod
    def collate(self, images: list[Tensor], targets: list[Any]) -> tuple[Tensor, Any]:
        """A batch."""

    def __getitems__(self, items: Sequence[tuple[int, int]]) -> tuple[Tensor, Any]:
        """PyTorch's loader hands whole batches to this method."""
        epochs, indices = zip(*items, strict=True)
        keys = keyed_uniforms(self.KEYS, self.seed, epochs, indices).tolist()
        found = [self.augmented(index, each) for index, each in zip(indices, keys, strict=True)]
        images, targets = zip(*found, strict=True)
        return self.collate(list(images), list(targets))


def shared_out(count: int, world: World, between: Callable[[], None]) -> Iterator[int]:
    """The indices of this process's images, with ``between`` called equally often in all processes."""
    for first in range(0, count, world.size):
        between()
        if first + world.rank < count:
            yield first + world.rank
