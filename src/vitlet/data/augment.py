"""Augmentation of training images: crop, flip, RandAugment, colour jitter, random erasing.

Everything after the crop works on whole batches. Every choice is a function of numbers keyed by (seed, epoch, image).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.data.preprocess import Preprocess
from vitlet.data.randaugment import RandAugment, luminance
from vitlet.data.randomness import mix_seed

Crop = Literal["resized", "padded", "none"]

BATCHED_CROP_SIDE = 128
"""Up to this many pixels a side, images of one size are cropped together; above, one by one and antialiased."""

CROP_KEYS = 4  # area, aspect, top, left
ERASE_KEYS = 6  # whether, area, aspect, top, left, seed of the noise


@dataclass(frozen=True)
class Augmentation:
    """The parts of an augmentation.

    Attributes:
        crop: resized: a random part, scaled to size; padded: the image moved by up to ``padding`` pixels; none.
        scale: scale of a resized crop, the smallest share of the area.
        padding: padding of a padded crop, in pixels.
        hflip: probability of a horizontal flip.
        rand: RandAugment, or None.
        color_jitter: strength of random brightness, contrast and saturation.
        grayscale_prob: probability of blending an image with its grey version, by a random share.
        reprob: probability of erasing a rectangle by noise.
    """

    crop: Crop = "resized"
    scale: float = 0.35
    padding: int = 4
    hflip: float = 0.5
    rand: RandAugment | None = None
    color_jitter: float = 0.0
    grayscale_prob: float = 0.0
    reprob: float = 0.0


class Augmenter:
    """A recipe for images of one target size.

    Args:
        recipe: what to do.
        preprocess: the size, and how pixels are normalised.
    """

    def __init__(self, recipe: Augmentation, preprocess: Preprocess) -> None:
        self.recipe, self.preprocess = recipe, preprocess
        parts = [CROP_KEYS, 1, recipe.rand.keys if recipe.rand else 0, 3 if recipe.color_jitter else 0]
        self.parts = [*parts, ERASE_KEYS if recipe.reprob else 0, 2 if recipe.grayscale_prob else 0]

    @property
    def keys(self) -> int:
        """Random numbers needed per image."""
        return sum(self.parts)

    def __call__(self, images: list[Tensor] | Tensor, keys: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """uint8 images -> a normalised float batch ``(B, C, *size)``.

        Args:
            images: one tensor ``(B, C, height, width)`` where all have one size, else a list of ``(C, height, width)``.
            keys: ``(B, self.keys)`` numbers in [0, 1).
            size: of these images, of a resized crop (default: that of ``preprocess``).
        """
        crop, flip, rand, jitter, erase, grey = keys.split(self.parts, dim=1)
        pixels = self._crop(images, crop, flip[:, 0] < self.recipe.hflip, size or self.preprocess.size)
        if self.recipe.rand:
            pixels = self.recipe.rand(pixels.float().round(), rand)
        if self.recipe.color_jitter or self.recipe.grayscale_prob:
            factors = 1 + self.recipe.color_jitter * (2 * jitter - 1) if jitter.shape[1] else torch.ones(len(keys), 3)
            if grey.shape[1]:
                colour = 1 - (grey[:, 0] < self.recipe.grayscale_prob) * grey[:, 1]
                factors = factors * torch.stack([torch.ones_like(colour), torch.ones_like(colour), colour], dim=1)
            pixels = jittered(pixels.float(), factors)
        batch = self.preprocess.normalize(pixels)
        if self.recipe.reprob:
            _erase(batch, erase, self.recipe.reprob)
        return batch

    def _crop(self, images: list[Tensor] | Tensor, keys: Tensor, flips: Tensor, size: tuple[int, int]) -> Tensor:
        """Values in 0..255, ``(B, C, *size)``."""
        if self.recipe.crop != "resized":
            stacked = images if isinstance(images, Tensor) else torch.stack(images)
            padding = self.recipe.padding if self.recipe.crop == "padded" else 0
            return shifted(stacked, padding, keys[:, 2:4], flips)
        boxes = self.boxes(keys)
        if isinstance(images, Tensor) and max(self.preprocess.size) <= BATCHED_CROP_SIDE:
            return cropped_together(images, boxes, flips, size)
        choices = zip(images, boxes, flips.tolist(), strict=True)
        return torch.stack([self._resized(image, box, flip, size) for image, box, flip in choices])

    def boxes(self, keys: Tensor) -> Tensor:
        """Top, left, height and width of random crops as shares of the image: ``(B, 4)``."""
        area = self.recipe.scale + (1 - self.recipe.scale) * keys[:, 0]
        aspect = torch.exp((2 * keys[:, 1] - 1) * math.log(4 / 3))
        height, width = (area / aspect).sqrt().clamp(max=1), (area * aspect).sqrt().clamp(max=1)
        return torch.stack([(1 - height) * keys[:, 2], (1 - width) * keys[:, 3], height, width], dim=1)

    def _resized(self, image: Tensor, box: Tensor, flip: bool, size: tuple[int, int]) -> Tensor:
        """One image of any size: bicubic, antialiased."""
        height, width = image.shape[1:]
        top, left, rows, columns = (box * torch.tensor([height, width, height, width])).round().int().tolist()
        place = (min(top, height - 1), min(left, width - 1), max(1, rows), max(1, columns))
        bicubic = InterpolationMode.BICUBIC
        cropped: Tensor = V.resized_crop(image, *place, list(size), interpolation=bicubic, antialias=True)
        return cropped.flip(-1) if flip else cropped


def cropped_together(images: Tensor, boxes: Tensor, flips: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop, scale and flip a batch in one bilinear call: float ``(B, C, *size)``."""
    middle = 2 * boxes[:, :2] + boxes[:, 2:] - 1  # of the crop, in grid_sample's -1..1
    theta = torch.zeros(len(images), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = boxes[:, 3] * (1 - 2.0 * flips), boxes[:, 2]
    theta[:, 0, 2], theta[:, 1, 2] = middle[:, 1], middle[:, 0]
    places = F.affine_grid(theta, [len(images), 1, *size], align_corners=False)
    return F.grid_sample(images.float(), places, mode="bilinear", padding_mode="border", align_corners=False)


def shifted(images: Tensor, padding: int, keys: Tensor, flips: Tensor) -> Tensor:
    """Each image moved by up to ``padding`` pixels over black, and flipped where asked: uint8 ``(B, C, H, W)``."""
    batch, _, height, width = images.shape
    moves = (keys * (2 * padding + 1)).long()  # B, 2: rows, columns
    rows = moves[:, :1] + torch.arange(height)  # B, H: places in the padded image
    columns = moves[:, 1:] + torch.arange(width)
    columns = torch.where(flips[:, None], columns.flip(1), columns)
    padded = F.pad(images, (padding,) * 4) if padding else images
    image = torch.arange(batch)[:, None, None]
    return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def jittered(pixels: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast and saturation by ``factors`` ``(B, 3)``, in one pass and without clipping between them.

    Brightness blends with black, contrast with the mean luminance, saturation with the luminance of each pixel; all
    are linear, so that together they are one number for the pixel, one for its luminance, and one for the image.
    """
    brightness, contrast, saturation = (factor[:, None, None, None] for factor in factors.unbind(1))
    grey = luminance(pixels)
    scale, mean = brightness * contrast, brightness * grey.mean((2, 3), keepdim=True)
    return pixels * (saturation * scale) + (grey * ((1 - saturation) * scale) + (1 - contrast) * mean)


def _erase(batch: Tensor, keys: Tensor, probability: float) -> None:
    """Fill a random rectangle of some images with noise, in place: 2 to 33 % of the area, aspect 0.3 to 3.3."""
    channels, height, width = batch.shape[1:]
    for index in (keys[:, 0] < probability).nonzero()[:, 0].tolist():
        _, area, aspect, top, left, noise = keys[index].tolist()
        area = (0.02 + (1 / 3 - 0.02) * area) * height * width
        aspect = math.exp((2 * aspect - 1) * math.log(10 / 3))
        rows = min(height - 1, max(1, round(math.sqrt(area * aspect))))
        columns = min(width - 1, max(1, round(math.sqrt(area / aspect))))
        row, column = int(top * (height - rows + 1)), int(left * (width - columns + 1))
        generator = torch.Generator().manual_seed(mix_seed(int(noise * 2**24)))
        patch = torch.randn(channels, rows, columns, generator=generator)
        batch[index, :, row : row + rows, column : column + columns] = patch
