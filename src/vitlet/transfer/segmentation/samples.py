"""Images with masks, as a segmenter takes them: rescaled, cropped, flipped and recoloured for training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.data.decode import read_image
from vitlet.transfer.common.loading import TrainingSamples
from vitlet.transfer.common.pyramid import pad_to, scaled_size
from vitlet.transfer.segmentation.masks import IGNORED, MaskedSplit
from vitlet.transfer.segmentation.settings import SegmentConfig


class SegmentationSamples(TrainingSamples):
    """Crops with the classes of their pixels.

    Args:
        split: images with masks.
        config: the sizes, scales and probabilities.
        normalize: from pixels to what the backbone expects.
    """

    KEYS = 13

    def __init__(self, split: MaskedSplit, config: SegmentConfig, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__(split.images, config.seed)
        self.split, self.config, self.normalize = split, config, normalize

    def augmented(self, index: int, keys: Sequence[float]) -> tuple[Tensor, Tensor]:
        """A crop ``(3, h, w)`` and its classes ``(h, w)``; ``keys`` in [0, 1) decide everything random."""
        config, (height, width) = self.config, self.config.crop_size
        pixels, mask = read_image(self.images[index].image, 3), self.split.read(index)
        factor = config.rescale_min + (config.rescale_max - config.rescale_min) * keys[0]
        size = scaled_size(pixels.shape[1], pixels.shape[2], config.base * factor)
        pixels = V.resize(pixels, list(size), antialias=True)
        mask = V.resize(mask[None], list(size), InterpolationMode.NEAREST)[0]
        top, left = (int(keys[1 + side] * (max(0, size[side] - config.crop_size[side]) + 1)) for side in (0, 1))
        pixels, mask = (each[..., top : top + height, left : left + width] for each in (pixels, mask))
        if keys[3] < (config.hflip or 0.0):
            pixels, mask = pixels.flip(-1), mask.flip(-1)
        if config.photometric:
            pixels = recoloured(pixels, keys[4:])
        return pad_to(self.normalize(pixels), config.crop_size), pad_to(mask, config.crop_size, IGNORED)

    def collate(self, images: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, Tensor]:
        """A batch: crops have one size."""
        return torch.stack(images), torch.stack(targets)


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
