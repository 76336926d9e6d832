"""Images with masks, as a segmenter takes them: rescaled, cropped, flipped and recoloured for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.data.decode import read_image
from vitlet.transfer.common.loading import TrainingSamples
from vitlet.transfer.common.pyramid import pad_to, scaled_size
from vitlet.transfer.segmentation.masks import IGNORED, MaskedSplit
from vitlet.transfer.segmentation.settings import SegmentConfig


@dataclass(frozen=True)
class Cropping:
    """How training changes an image.

    Attributes:
        size: of the crops.
        base: shorter side at scale 1.
        scales: smallest and largest factor.
        hflip: probability of a flip.
        photometric: whether colours change.
        normalize: from pixels to what the backbone expects.
    """

    size: tuple[int, int]
    base: int
    scales: tuple[float, float]
    hflip: float
    photometric: bool
    normalize: Callable[[Tensor], Tensor]

    @classmethod
    def from_config(cls, config: SegmentConfig, normalize: Callable[[Tensor], Tensor]) -> Self:
        """As the settings say."""
        scales = (config.rescale_min, config.rescale_max)
        return cls(config.crop_size, config.base, scales, config.hflip or 0.0, config.photometric, normalize)

    def __call__(self, pixels: Tensor, mask: Tensor, keys: Sequence[float]) -> tuple[Tensor, Tensor]:
        """uint8 ``(3, h, w)`` and classes ``(h, w)`` -> a crop of both; ``keys`` in [0, 1) decide everything random."""
        factor = self.scales[0] + (self.scales[1] - self.scales[0]) * keys[0]
        size = scaled_size(pixels.shape[1], pixels.shape[2], self.base * factor)
        pixels = V.resize(pixels, list(size), antialias=True)
        mask = V.resize(mask[None], list(size), InterpolationMode.NEAREST)[0]
        top, left = (int(key * (max(0, size[side] - self.size[side]) + 1)) for side, key in enumerate(keys[1:3]))
        pixels = pixels[:, top : top + self.size[0], left : left + self.size[1]]
        mask = mask[top : top + self.size[0], left : left + self.size[1]]
        if keys[3] < self.hflip:
            pixels, mask = pixels.flip(-1), mask.flip(-1)
        if self.photometric:
            pixels = recoloured(pixels, keys[4:])
        image = self.normalize(pixels)
        return pad_to(image, self.size), pad_to(mask, self.size, IGNORED)


def recoloured(pixels: Tensor, keys: Sequence[float]) -> Tensor:
    """Brightness, contrast, saturation and hue, each changed half of the time; contrast first or last."""

    def between(low: float, high: float, key: float) -> float:
        return low + (high - low) * key

    changes: list[Callable[[Tensor], Tensor]] = [
        lambda image: V.adjust_contrast(image, between(0.5, 1.5, keys[3])),
        lambda image: V.adjust_saturation(image, between(0.5, 1.5, keys[5])),
        lambda image: V.adjust_hue(image, between(-0.1, 0.1, keys[7])),
    ]
    chosen = [change for change, key in zip(changes, (keys[2], keys[4], keys[6]), strict=True) if key < 0.5]
    if keys[8] < 0.5 and keys[2] < 0.5:
        chosen = [*chosen[1:], chosen[0]]
    if keys[0] < 0.5:
        pixels = (pixels.float() + between(-32.0, 32.0, keys[1])).clamp(0, 255).to(torch.uint8)
    for change in chosen:
        pixels = change(pixels)
    return pixels


class SegmentationSamples(TrainingSamples):
    """Crops with the classes of their pixels."""

    KEYS = 13

    def __init__(self, split: MaskedSplit, seed: int, cropping: Cropping) -> None:
        super().__init__(split.images, seed)
        self.split, self.cropping = split, cropping

    def augmented(self, index: int, keys: Sequence[float]) -> tuple[Tensor, Tensor]:
        """A crop and its classes."""
        return self.cropping(read_image(self.images[index].image, 3), self.split.read(index), keys)

    def collate(self, images: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
        """A batch: crops have one size."""
        return torch.stack(images), torch.stack(targets)
