"""Batches from sets of images."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from vitlet.data.augment import Augmenter
from vitlet.data.images import Arrays, ImageSet
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import keyed_uniforms, mix_seed
from vitlet.errors import VitletError
from vitlet.processes import end_with

WORKER_SECONDS = 300
"""How long a loading process may take for one batch."""


class SizedBatch(list[tuple[int, int]]):
    """The (epoch, index) pairs of a batch whose images are to have another size than usual."""

    def __init__(self, items: Iterable[tuple[int, int]], size: tuple[int, int]) -> None:
        super().__init__(items)
        self.size = size

    def __reduce__(self) -> tuple[Any, ...]:  # it travels to loading processes
        return SizedBatch, (list(self), self.size)


class TrainingSet(torch.utils.data.Dataset[Any]):
    """Augmented batches; a batch is indexed by [(epoch, index), ...] and depends on nothing else."""

    def __init__(self, images: ImageSet, augment: Augmenter, *, channels: int, seed: int) -> None:
        self.images, self.augment, self.channels, self.seed = images, augment, channels, seed

    def __getitems__(self, items: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """PyTorch's loader hands whole batches to this method."""
        epochs, indices = zip(*items, strict=True)
        keys = keyed_uniforms(self.augment.keys, self.seed, epochs, indices)
        labels = torch.tensor([self.images.labels[index] for index in indices])
        size = items.size if isinstance(items, SizedBatch) else None
        return self.augment(_batch(self.images, indices, self.channels), keys, size), labels


class EvaluationSet(torch.utils.data.Dataset[Any]):
    """Images preprocessed for evaluation; ``images`` already have the input size."""

    def __init__(self, images: ImageSet, preprocess: Preprocess, *, channels: int) -> None:
        self.images, self.preprocess, self.channels = images, preprocess, channels

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch."""
        pixels = _batch(self.images, indices, self.channels)
        assert isinstance(pixels, Tensor)
        return self.preprocess.normalize(pixels), torch.tensor([self.images.labels[index] for index in indices])


def _batch(images: ImageSet, indices: Sequence[int], channels: int) -> Tensor | list[Tensor]:
    """One tensor where all images have one size, else a list."""
    if isinstance(images, Arrays) and images.images.shape[1] == channels:
        return images.images[torch.tensor(indices)]
    found = [images.image(index, channels) for index in indices]
    return torch.stack(found) if images.one_size else found


class EpochOrder(Sampler[list[tuple[int, int]]]):
    """Batches of (epoch, index) in an order that is a function of (seed, epoch); set ``epoch`` before iterating.

    A step's images are taken in ``parts`` equal parts; this process gets those that are ``mine``, one after another.
    So what a part holds does not depend on how many processes share the parts.

    Args:
        labels: labels of the images.
        batch_size: images of a step, or as many as ``parts`` divide where there are fewer; a last, smaller step is
            left out.
        seed: random seed of the order.
        balanced: draw, with replacement, every class equally often.
        parts: gradient-accumulation micro-batches of a step, over all processes.
        mine: the parts that are iterated over.
        repeats: passes over the images per epoch; may be a fraction, then an epoch begins where the one before ended.

    Attributes:
        epoch: to iterate over.
        start: step of that epoch to start at.
        size_at: the size of a step's images, by the (fractional) epoch; None for the usual one.
    """

    def __init__(
        self,
        labels: Sequence[int],
        *,
        batch_size: int,
        seed: int,
        balanced: bool = False,
        parts: int = 1,
        mine: range = range(1),
        repeats: float = 1.0,
    ) -> None:
        self.count, self.seed, self.epoch, self.start = len(labels), seed, 0, 0
        self.parts, self.mine, self.repeats = parts, mine, repeats
        self.size_at: Callable[[float], tuple[int, int]] | None = None
        self.batch_size = min(batch_size, self.count) // parts * parts
        if not self.batch_size:
            raise VitletError(
                f"{self.count} training images and a batch size of {batch_size} are too few for {parts} micro-batches"
                " (processes x grad_accum_steps): use fewer."
            )
        self.members: list[Tensor] = []
        if balanced:
            classes = torch.tensor(labels)
            counts = classes.unique(return_counts=True)[1].tolist()
            self.members = list(classes.argsort(stable=True).split(counts))  # the images of each class, in order

    def __len__(self) -> int:
        return self.steps * len(self.mine)

    @property
    def pass_steps(self) -> int:
        """Steps of one pass over the images."""
        return self.count // self.batch_size

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return max(1, round(self.repeats * self.pass_steps))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        known, order = -1, [0]
        for step in range(self.start, self.steps):
            number, within = self._pass(step)
            if number != known:
                known, order = number, self.order(number)
            for part in self.mine:
                batch = [(number, index) for index in order[self._places(within, part)]]
                yield SizedBatch(batch, self.size_at(self.epoch + step / self.steps)) if self.size_at else batch

    def images(self, step: int, part: int) -> list[int]:
        """The images of a part of a step of this epoch."""
        number, within = self._pass(step)
        return self.order(number)[self._places(within, part)]

    def _pass(self, step: int) -> tuple[int, int]:
        """The pass over the images that a step of this epoch belongs to, and its place in it."""
        return divmod(self.epoch * self.steps + step, self.pass_steps)

    def _places(self, step: int, part: int) -> slice:
        size = self.batch_size // self.parts
        first = step * self.batch_size + part * size
        return slice(first, first + size)

    def order(self, number: int | None = None) -> list[int]:
        """The images of a pass, by its number, in order (default: the pass that this epoch begins in)."""
        number = self._pass(0)[0] if number is None else number
        generator = torch.Generator().manual_seed(mix_seed(self.seed, number))
        if not self.members:
            return torch.randperm(self.count, generator=generator).tolist()
        drawn = torch.randint(len(self.members), (self.count,), generator=generator).tolist()
        shares = torch.rand(self.count, generator=generator)
        return [
            int(self.members[label][int(share * len(self.members[label]))])
            for label, share in zip(drawn, shares.tolist(), strict=True)
        ]


def training_loader(
    dataset: torch.utils.data.Dataset[Any], order: EpochOrder, *, workers: int, device: str
) -> DataLoader[Any]:
    """Batches of augmented images in the order given."""
    return DataLoader(dataset, batch_sampler=order, collate_fn=_as_is, **loader_options(workers, device))


def evaluation_loader(
    dataset: EvaluationSet, *, batch_size: int, workers: int, device: str, share: slice = slice(None)
) -> DataLoader[Any]:
    """All images once, in their order; of these batches a share, such as every second one."""
    count = len(dataset)
    batches = [list(range(first, min(first + batch_size, count))) for first in range(0, count, batch_size)]
    return DataLoader(dataset, batch_sampler=batches[share], collate_fn=_as_is, **loader_options(workers, device))


def _as_is(batch: Any) -> Any:
    return batch


def loader_options(workers: int, device: str) -> dict[str, Any]:
    """Options of PyTorch's data loader, with a timeout for workers."""
    options: dict[str, Any] = {"num_workers": workers, "pin_memory": device.startswith("cuda")}
    if not workers:
        return options
    return options | {"persistent_workers": True, "timeout": WORKER_SECONDS, "worker_init_fn": begin_worker}


def begin_worker(worker: int) -> None:
    """Initialize a loading process: it ends silently with the process that it loads for."""
    parent = multiprocessing.parent_process()  # it may be gone by now; a fork server stands in for it
    direct = multiprocessing.get_start_method() != "forkserver"
    end_with(parent.pid if parent and parent.pid and direct else os.getppid())
    usual = sys.excepthook

    def hook(kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        if not issubclass(kind, (ConnectionError, EOFError)):
            usual(kind, problem, trace)

    sys.excepthook = hook
