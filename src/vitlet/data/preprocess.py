"""The one way an image enters the model in evaluation, prediction and export: resize, centre crop, normalise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.errors import VitletError

LONGEST = 32
"""Sides that would be scaled to more than so many times the input are cut first: a thread of pixels fills no memory."""

MAX_SIDE = 8192
"""Pixels a side of what a model may take: a stranger's file fills no memory."""


class Preprocess:
    """Size, crop and normalisation of a model's input.

    Args:
        size: height and width.
        crop_pct: share of the side that the centre crop keeps.
        mean: per channel, of values in 0..1.
        std: per channel.
    """

    def __init__(self, size: tuple[int, int], *, crop_pct: float, mean: Sequence[float], std: Sequence[float]) -> None:
        if max(size) > MAX_SIDE:
            raise VitletError(f"the input of a model has at most {MAX_SIDE} pixels a side, found {size}.")
        self.size, self.crop_pct, self.mean, self.std = size, crop_pct, list(mean), list(std)
        self._scale = 1 / (255 * torch.tensor(self.std))[:, None, None]
        self._shift = (torch.tensor(self.mean) / torch.tensor(self.std))[:, None, None]

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 ``(C, height, width)`` of any size -> float ``(C, *size)``."""
        return self.normalize(self.pixels(image))

    def pixels(self, image: Tensor) -> Tensor:
        """The resized and cropped image, still uint8: ``(C, *size)``."""
        height, width = self.size
        factor = max(height / image.shape[1], width / image.shape[2]) / self.crop_pct
        longest = [round(LONGEST * side / factor) for side in self.size]
        if image.shape[1] > longest[0] or image.shape[2] > longest[1]:
            image = V.center_crop(image, [min(pair) for pair in zip(image.shape[1:], longest, strict=True)])
        scaled = [max(height, round(image.shape[1] * factor)), max(width, round(image.shape[2] * factor))]
        if scaled != list(image.shape[1:]):
            image = V.resize(image, scaled, interpolation=InterpolationMode.BICUBIC, antialias=True)
        cropped: Tensor = V.center_crop(image, [height, width])
        return cropped

    def normalize(self, pixels: Tensor) -> Tensor:
        """Values in 0..255, one image or a batch, to the mean and spread that the model expects."""
        out = torch.empty(pixels.shape)  # written in place: large temporaries cost more than the arithmetic
        return torch.mul(pixels, self._scale, out=out).sub_(self._shift)
