"""RandAugment on whole batches: the fifteen operations of timm's ``rand-m9-mstd0.5-inc1``, vectorised.

Every choice is a function of the numbers passed in, so a sample's augmentation does not depend on its batch. Images are
float ``(B, C, H, W)`` in 0..255 and whole-valued; so are the results.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from vitlet.errors import VitletError

FILL = 128.0
"""Grey that fills what a turned or moved image leaves open."""

KEYS_PER_LAYER = 5  # operation, whether, sign, two for the magnitude


@dataclass(frozen=True)
class RandAugment:
    """``layers`` random operations an image, each applied with ``probability``.

    Args:
        magnitude: mean strength, of 10.
        spread: standard deviation of the strength.
        layers: operations per image.
        probability: that an operation is applied.
    """

    magnitude: float = 9.0
    spread: float = 0.5
    layers: int = 2
    probability: float = 0.5

    @staticmethod
    def parse(text: str) -> RandAugment | None:
        """By timm's name, such as ``rand-m9-mstd0.5-inc1`` (None for ``off``); operations are the increasing ones."""
        if text == "off":
            return None
        found = re.findall(r"-(mstd|inc|m|n|p)(\d+(?:\.\d+)?)", text)
        settings = {name: float(value) for name, value in found}
        if text != "rand" + "".join(f"-{name}{value}" for name, value in found) or settings.get("inc", 1) != 1:
            raise VitletError(f"aa must be 'off' or such as rand-m9-mstd0.5-inc1 (m, mstd, n, p), got {text!r}.")
        return RandAugment(
            magnitude=settings.get("m", 9.0),
            spread=settings.get("mstd", 0.0),
            layers=int(settings.get("n", 2)),
            probability=settings.get("p", 0.5),
        )

    @property
    def keys(self) -> int:
        """Random numbers needed per image."""
        return self.layers * KEYS_PER_LAYER

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """Augment ``images`` by ``keys`` ``(B, self.keys)``, numbers in [0, 1)."""
        for draw in keys.split(KEYS_PER_LAYER, dim=1):
            chosen = (draw[:, 0] * len(OPERATIONS)).long()
            chosen = torch.where(draw[:, 1] < self.probability, chosen, -1)
            sign = torch.where(draw[:, 2] < 0.5, -1.0, 1.0)
            normal = torch.sqrt(-2 * torch.log1p(-draw[:, 3])) * torch.cos(2 * math.pi * draw[:, 4])
            level = (self.magnitude + self.spread * normal).clamp(0, 10) / 10
            images = _apply(images, chosen, sign, level)
        return images


def _apply(images: Tensor, chosen: Tensor, sign: Tensor, level: Tensor) -> Tensor:
    """Each image by its own operation; images of one operation are done together."""
    images = images.clone()
    factor = (1 + sign * level * 0.9).clamp(min=0.1)
    for number, operation in enumerate(POINTWISE.values()):
        rows = (chosen == number).nonzero()[:, 0]
        if len(rows):
            images[rows] = operation(images[rows], factor[rows, None, None, None], level[rows, None, None, None])
    rows = (chosen >= len(POINTWISE)).nonzero()[:, 0]
    if len(rows):
        images[rows] = _move(images[rows], chosen[rows] - len(POINTWISE), sign[rows] * level[rows])
    return images


def luminance(images: Tensor) -> Tensor:
    """Luminance ``(B, 1, H, W)`` as Pillow weighs it; an image of another number of channels is averaged."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = images.new_tensor([0.299, 0.587, 0.114])[:, None, None]
    return (images * weights).sum(1, keepdim=True)


def blend_rounded(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """``other`` at factor 0, the image at 1, beyond it above; whole-valued."""
    return (other + (images - other) * factor).clamp(0, 255).round()


def _auto_contrast(images: Tensor) -> Tensor:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    stretched = ((images - low) * (255 / (high - low).clamp(min=1))).floor()
    return torch.where(high > low, stretched, images)


def _posterize(images: Tensor, level: Tensor) -> Tensor:
    bits = (4 - (level * 4).floor()).clamp(min=1)  # zero bits would be a black image (and crash Pillow 13)
    unit = torch.exp2(8 - bits)
    return (images / unit).floor() * unit


def _smooth(images: Tensor) -> Tensor:
    """Pillow's smoothing filter; the border keeps its pixels."""
    channels = images.shape[1]
    kernel = images.new_tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]).div(13).expand(channels, 1, 3, 3)
    smooth = images.clone()
    if min(images.shape[2:]) > 2:
        smooth[:, :, 1:-1, 1:-1] = F.conv2d(images, kernel, groups=channels).round()
    return smooth


def _move(images: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """Rotate (to 30 degrees), shear (0.3) and translate (0.45 of the side), bilinear, in one resampling."""
    batch, _, height, width = images.shape
    amount = strength * torch.tensor([math.radians(30), 0.3, 0.3, 0.45, 0.45])[kind]
    angle = torch.where(kind == 0, -amount, 0.0)  # positive turns counter-clockwise, as in Pillow
    theta = torch.zeros(batch, 2, 3)
    aspect = height / width
    theta[:, 0, 0], theta[:, 1, 1] = torch.cos(angle), torch.cos(angle)
    theta[:, 0, 1] = torch.sin(angle) * aspect + torch.where(kind == 1, amount, 0.0) * aspect
    theta[:, 1, 0] = -torch.sin(angle) / aspect + torch.where(kind == 2, amount, 0.0) / aspect
    theta[:, 0, 2] = torch.where(kind == 3, 2 * amount, 0.0)
    theta[:, 1, 2] = torch.where(kind == 4, 2 * amount, 0.0)
    places = F.affine_grid(theta, [batch, 1, height, width], align_corners=False)
    moved = F.grid_sample(images - FILL, places, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (moved + FILL).round().clamp(0, 255)


Operation = Callable[[Tensor, Tensor, Tensor], Tensor]
POINTWISE: dict[str, Operation] = {
    "auto_contrast": lambda images, factor, level: _auto_contrast(images),
    "equalize": lambda images, factor, level: V.equalize(images.byte()).float(),
    "invert": lambda images, factor, level: 255 - images,
    "posterize": lambda images, factor, level: _posterize(images, level),
    "solarize": lambda images, factor, level: torch.where(images < 256 - (level * 256).floor(), images, 255 - images),
    "solarize_add": lambda images, factor, level: torch.where(
        images < 128, (images + (level * 110).floor()).clamp(max=255), images
    ),
    "color": lambda images, factor, level: blend_rounded(images, luminance(images), factor),
    "contrast": lambda images, factor, level: blend_rounded(
        images, luminance(images).mean((2, 3), keepdim=True).round(), factor
    ),
    "brightness": lambda images, factor, level: blend_rounded(images, torch.zeros(()), factor),
    "sharpness": lambda images, factor, level: blend_rounded(images, _smooth(images), factor),
}
"""By name: of the images, the factor of a blend, and the level in 0..1."""

MOVES = ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"]
OPERATIONS = [*POINTWISE, *MOVES]
"""Names in the order in which they are drawn."""
