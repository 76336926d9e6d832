"""Images with objects, as a detector takes them: resized, flipped, normalised, padded to one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.data.decode import read_image
from vitlet.transfer.common.loading import TrainingSamples
from vitlet.transfer.common.pyramid import pad_to, padded_size, scaled_size
from vitlet.transfer.detection.coco import CocoImage
from vitlet.transfer.detection.masks import decode
from vitlet.transfer.detection.settings import STEP


@dataclass(frozen=True)
class Resizing:
    """Image resizing for detection.

    Attributes:
        sides: shorter sides that training draws from; evaluation uses the last.
        long: longer side at most.
        divisor: sides of a batch are multiples of it.
        canvas: the one size of all batches, where there is one.
        normalize: from pixels to what the backbone expects.
    """

    sides: tuple[int, ...]
    long: int
    divisor: int
    canvas: tuple[int, int] | None
    normalize: Callable[[Tensor], Tensor]

    def image(self, pixels: Tensor, short: int) -> Tensor:
        """uint8 ``(3, height, width)`` resized and normalised."""
        size = list(scaled_size(pixels.shape[1], pixels.shape[2], short, self.long))
        return self.normalize(V.resize(pixels, size, antialias=True))

    def batch(self, images: Sequence[Tensor]) -> Tensor:
        """Images padded to one size."""
        height, width = (max(image.shape[side] for image in images) for side in (1, 2))
        size = self.canvas or padded_size(height, width, self.divisor)
        return torch.stack([pad_to(image, size) for image in images])


def make_sides(smallest: int, largest: int) -> tuple[int, ...]:
    """The shorter sides of multi-scale training: every 32 pixels, and always the largest."""
    return (*range(smallest, largest, STEP), largest)


class DetectionSamples(TrainingSamples):
    """Images with boxes, and with masks or not."""

    KEYS = 2

    def __init__(
        self, images: Sequence[CocoImage], seed: int, resizing: Resizing, *, masks: bool, hflip: float
    ) -> None:
        super().__init__(images, seed)
        self.resizing, self.masks, self.hflip = resizing, masks, hflip

    def collate(self, images: list[Tensor], targets: list[Any]) -> tuple[Tensor, list[Any]]:
        """Images padded to one size; targets as they are."""
        return self.resizing.batch(images), targets

    def augmented(self, index: int, keys: Sequence[float]) -> tuple[Tensor, dict[str, Any]]:
        """A resized and maybe flipped image with ``boxes``, ``labels``, ``masks`` and ``size``."""
        image = self.images[index]
        sides = self.resizing.sides
        pixels = self.resizing.image(read_image(image.path, 3), sides[int(keys[0] * len(sides))])
        size = pixels.shape[1:]
        things = image.trained
        boxes = corners([thing.box for thing in things], (image.height, image.width))
        boxes = boxes * torch.tensor([size[1] / image.width, size[0] / image.height]).repeat(2)
        target: dict[str, Any] = {"labels": torch.tensor([thing.label + 1 for thing in things], dtype=torch.long)}
        if self.masks:
            whole = [decode(thing.segmentation)[None] for thing in things]
            masks = [V.resize(mask, list(size), InterpolationMode.NEAREST) for mask in whole]
            target["masks"] = torch.cat(masks) if masks else torch.zeros(0, *size, dtype=torch.uint8)
        if keys[1] < self.hflip:
            pixels = pixels.flip(-1)
            boxes = torch.stack([size[1] - boxes[:, 2], boxes[:, 1], size[1] - boxes[:, 0], boxes[:, 3]], dim=1)
            if self.masks:
                target["masks"] = target["masks"].flip(-1)
        return pixels, {**target, "boxes": boxes, "size": (int(size[0]), int(size[1]))}


def corners(boxes: Sequence[tuple[float, float, float, float]], size: tuple[int, int]) -> Tensor:
    """Left, top, width and height as left, top, right and bottom, cut at the image's border."""
    found = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    found = torch.cat([found[:, :2], found[:, :2] + found[:, 2:]], dim=1)
    limits = torch.tensor([size[1], size[0]], dtype=torch.float32).repeat(2)
    return found.clamp(min=0).minimum(limits)
