"""From sets of images to batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from vitlet.data.augment import Augment
from vitlet.data.images import Arrays, ImageSet
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import keyed_uniforms, mix_seed


class TrainingSet(torch.utils.data.Dataset[Any]):
    """Augmented batches; a batch is asked for as [(epoch, index), ...] and depends on nothing else."""

    def __init__(self, images: ImageSet, augment: Augment, *, channels: int, seed: int) -> None:
        self.images, self.augment, self.channels, self.seed = images, augment, channels, seed

    def __getitems__(self, items: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """PyTorch's loader hands whole batches to this method."""
        epochs, indices = zip(*items, strict=True)
        keys = keyed_uniforms(self.augment.keys, self.seed, epochs, indices)
        labels = torch.tensor([self.images.labels[index] for index in indices])
        return self.augment(_batch(self.images, indices, self.channels), keys), labels


class EvaluationSet(torch.utils.data.Dataset[Any]):
    """Images as evaluation sees them; ``images`` hold pixels of the right size already."""

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

    Args:
        labels: of the images.
        batch_size: at most the number of images; a last, smaller batch is left out.
        seed: of the order.
        balanced: draw, with replacement, every class equally often.
    """

    def __init__(self, labels: Sequence[int], *, batch_size: int, seed: int, balanced: bool = False) -> None:
        self.count, self.seed, self.epoch = len(labels), seed, 0
        self.batch_size = min(batch_size, self.count)
        self.members: list[Tensor] = []
        if balanced:
            by_class: dict[int, list[int]] = defaultdict(list)
            for index, label in enumerate(labels):
                by_class[label].append(index)
            self.members = [torch.tensor(found) for _, found in sorted(by_class.items())]

    def __len__(self) -> int:
        return self.count // self.batch_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order = self.order()
        for batch in range(len(self)):
            yield [(self.epoch, index) for index in order[batch * self.batch_size : (batch + 1) * self.batch_size]]

    def order(self) -> list[int]:
        """The images of this epoch, in order."""
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch))
        if not self.members:
            return torch.randperm(self.count, generator=generator).tolist()
        drawn = torch.randint(len(self.members), (self.count,), generator=generator).tolist()
        shares = torch.rand(self.count, generator=generator)
        return [
            int(self.members[label][int(share * len(self.members[label]))])
            for label, share in zip(drawn, shares.tolist(), strict=True)
        ]


def training_loader(dataset: TrainingSet, order: EpochOrder, *, workers: int, device: str) -> DataLoader[Any]:
    """Batches of augmented images in the order given."""
    return DataLoader(dataset, batch_sampler=order, collate_fn=_as_is, **_loader_options(workers, device))


def evaluation_loader(dataset: EvaluationSet, *, batch_size: int, workers: int, device: str) -> DataLoader[Any]:
    """All images once, in their order."""
    return DataLoader(dataset, batch_size=batch_size, collate_fn=_as_is, **_loader_options(workers, device))


def _as_is(batch: Any) -> Any:
    return batch


def _loader_options(workers: int, device: str) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": device.startswith("cuda")}
