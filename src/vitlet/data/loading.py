"""From images to batches, every random choice a function of (seed, epoch, image)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.data.sources import ImageSet


class Preprocess:
    """The one way an image enters the network in evaluation and prediction: resize, centre crop, normalise."""

    def __init__(self, size: tuple[int, int], *, crop_pct: float, mean: Sequence[float], std: Sequence[float]) -> None:
        self.size, self.crop_pct, self.mean, self.std = size, crop_pct, list(mean), list(std)

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 ``(C, height, width)`` of any size -> float ``(C, *size)``."""
        height, width = self.size
        factor = max(height / image.shape[1], width / image.shape[2]) / self.crop_pct
        scaled = [max(height, round(image.shape[1] * factor)), max(width, round(image.shape[2] * factor))]
        image = V.resize(image, scaled, interpolation=InterpolationMode.BICUBIC, antialias=True)
        image = V.center_crop(image, [height, width])
        return self.normalize(image)

    def normalize(self, image: Tensor) -> Tensor:
        """Bytes, or floats in 0..1, to the mean and spread that the network expects."""
        normalized: Tensor = V.normalize(V.to_dtype(image, torch.float32, scale=True), self.mean, self.std)
        return normalized


class Augment:
    """A random crop (area and aspect), scaled to the network's size, and a random flip, then normalised.

    What happens to an image is a function of ``keys``, numbers in [0, 1) that are a function of (seed, epoch, index).
    """

    KEYS = 5
    ASPECT = math.log(4 / 3)

    def __init__(self, preprocess: Preprocess, *, hflip: float, scale: float) -> None:
        self.preprocess, self.hflip, self.scale = preprocess, hflip, scale

    def boxes(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Top, left, height and width of each crop as shares of the image ``(B, 4)``, and whether to flip ``(B,)``."""
        area = self.scale + (1 - self.scale) * keys[:, 0]
        aspect = torch.exp((2 * keys[:, 1] - 1) * self.ASPECT * (self.scale < 1))
        height, width = (area / aspect).sqrt().clamp(max=1), (area * aspect).sqrt().clamp(max=1)
        top, left = (1 - height) * keys[:, 2], (1 - width) * keys[:, 3]
        return torch.stack([top, left, height, width], dim=1), keys[:, 4] < self.hflip

    def batch(self, images: Tensor, keys: Tensor) -> Tensor:
        """Augment images of one size together: uint8 ``(B, C, height, width)`` -> float ``(B, C, *size)``."""
        boxes, flips = self.boxes(keys)
        middle = 2 * boxes[:, :2] + boxes[:, 2:] - 1  # of the crop, in grid_sample's -1..1
        theta = torch.zeros(len(images), 2, 3)
        theta[:, 0, 0], theta[:, 1, 1] = boxes[:, 3] * (1 - 2.0 * flips), boxes[:, 2]
        theta[:, 0, 2], theta[:, 1, 2] = middle[:, 1], middle[:, 0]
        places = F.affine_grid(theta, [len(images), 1, *self.preprocess.size], align_corners=False)
        pixels = F.grid_sample(images.float(), places, mode="bicubic", padding_mode="reflection", align_corners=False)
        return self.preprocess.normalize(pixels.clamp(0, 255) / 255)

    def single(self, image: Tensor, keys: Tensor) -> Tensor:
        """Augment one image, antialiased: uint8 ``(C, height, width)`` -> float ``(C, *size)``."""
        boxes, flips = self.boxes(keys[None])
        height, width = image.shape[1:]
        top, left, rows, columns = (boxes[0] * torch.tensor([height, width, height, width])).round().int().tolist()
        image = V.resized_crop(
            image,
            min(top, height - 1),
            min(left, width - 1),
            max(1, rows),
            max(1, columns),
            list(self.preprocess.size),
            interpolation=InterpolationMode.BICUBIC,
            antialias=True,
        )
        return self.preprocess.normalize(V.horizontal_flip(image) if flips[0] else image)


class TrainingSet(torch.utils.data.Dataset[Any]):
    """Augmented batches; a batch is asked for as [(epoch, index), ...] and depends on nothing else."""

    def __init__(self, images: ImageSet, augment: Augment, *, channels: int, seed: int) -> None:
        self.images, self.augment, self.channels, self.seed = images, augment, channels, seed

    def __getitems__(self, items: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """PyTorch's loader hands whole batches to this method."""
        keys = torch.stack([keyed_uniforms(Augment.KEYS, self.seed, epoch, index) for epoch, index in items])
        images = [self.images.image(index, self.channels) for _, index in items]
        labels = torch.tensor([self.images.labels[index] for _, index in items])
        if self.images.one_size:
            return self.augment.batch(torch.stack(images), keys), labels
        return torch.stack([self.augment.single(image, key) for image, key in zip(images, keys, strict=True)]), labels


class EvaluationSet(torch.utils.data.Dataset[Any]):
    """Images as evaluation sees them."""

    def __init__(self, images: ImageSet, preprocess: Preprocess, *, channels: int) -> None:
        self.images, self.preprocess, self.channels = images, preprocess, channels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.preprocess(self.images.image(index, self.channels)), self.images.labels[index]


class EpochOrder(Sampler[list[tuple[int, int]]]):
    """Batches of (epoch, index) in an order that is a function of (seed, epoch); set ``epoch`` before iterating."""

    def __init__(self, count: int, *, batch_size: int, seed: int) -> None:
        self.count, self.batch_size, self.seed, self.epoch = count, min(batch_size, count), seed, 0

    def __len__(self) -> int:
        return self.count // self.batch_size  # the last, smaller batch is left out

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch))
        order = torch.randperm(self.count, generator=generator).tolist()
        for batch in range(len(self)):
            yield [(self.epoch, index) for index in order[batch * self.batch_size : (batch + 1) * self.batch_size]]


def training_loader(dataset: TrainingSet, order: EpochOrder, *, workers: int, device: str) -> DataLoader[Any]:
    """Batches of augmented images in the order given."""
    return DataLoader(dataset, batch_sampler=order, collate_fn=_as_is, **_loader_options(workers, device))


def evaluation_loader(dataset: EvaluationSet, *, batch_size: int, workers: int, device: str) -> DataLoader[Any]:
    """All images once, in their order."""
    return DataLoader(dataset, batch_size=batch_size, **_loader_options(workers, device))


def _as_is(batch: Any) -> Any:
    return batch


def _loader_options(workers: int, device: str) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": device.startswith("cuda")}


def mix_seed(*parts: int) -> int:
    """One seed from several numbers, well spread: neighbours get unrelated streams."""
    mixed = 0x9E3779B97F4A7C15
    for part in parts:  # a step of splitmix64 for each part
        mixed = (mixed ^ (part + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63


def keyed_uniforms(count: int, *parts: int) -> Tensor:
    """Numbers in [0, 1) that are a function of ``parts`` alone."""
    return torch.tensor([mix_seed(*parts, draw) / 2**63 for draw in range(count)])
