"""Augmentation of each patch by itself, on pixels before normalization.

Of RelViT, "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision Transformer" (BMVC 2022):
neighbouring patches then cannot be told by their shared colours or by the line that runs across their border.
All patches of a batch are one tensor ``(M, C, P, P)``; nothing loops over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlet.tokens.patch_views import from_patches, to_patches
from vitlet.tokens.views import PlainView, View

LUMA = (0.2989, 0.587, 0.114)
"""Shares of red, green and blue in grey, as torchvision has them."""


@dataclass(frozen=True)
class PatchAugment:
    """View that augments every patch independently: random crop, colour jitter, grey; identity in evaluation.

    Brightness, contrast, saturation and hue change in this order. On images with one channel only brightness and
    contrast do.

    Args:
        patch: side of a patch in pixels.
        mean: channel means that the images were normalised with.
        std: channel standard deviations that the images were normalised with.
        crop: a patch is cropped to its side divided by this, and resized back.
        jitter: brightness, contrast and saturation change by a factor of up to 1 plus or minus these, hue by up to
            the last, as a share of its circle.
        jitter_chance: probability of the jitter.
        grey_chance: probability of a grey patch.

    Example:
        >>> view = vitlet.PatchAugment(4, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    """

    patch: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 1.15
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_chance: float = 0.8
    grey_chance: float = 0.2

    def __call__(self, images: Tensor) -> View:
        height, width = images.shape[2:]
        with torch.autocast(images.device.type, enabled=False):  # pixels keep their precision
            mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std))
            patches = to_patches(images.float(), self.patch)
            pixels = (patches.flatten(0, 1) * std + mean).clamp(0, 1)  # M, C, P, P
            pixels = random_crops(pixels, round(self.patch / self.crop))
            changed = (self._recolour(pixels) - mean) / std
        return View(from_patches(changed.view_as(patches), height, width).to(images.dtype))

    def _recolour(self, pixels: Tensor) -> Tensor:
        chosen = _chance(pixels, self.jitter_chance)
        brightness, contrast, saturation, hue = (_spread(pixels, most) * chosen for most in self.jitter)
        pixels = (pixels * (1 + brightness)).clamp(0, 1)
        pixels = blend_patches(pixels, grey_patches(pixels).mean((1, 2, 3), keepdim=True), 1 + contrast)
        if pixels.shape[1] != 3:
            return pixels
        pixels = blend_patches(pixels, grey_patches(pixels), 1 + saturation)
        pixels = turn_hue(pixels, hue)
        return torch.where(_chance(pixels, self.grey_chance), grey_patches(pixels), pixels)

    def settled(self) -> PlainView:
        """Nothing to augment in evaluation."""
        return PlainView()


def random_crops(pixels: Tensor, size: int) -> Tensor:
    """A random ``size x size`` window of every patch, resized to the patch (bilinear)."""
    patch = pixels.shape[-1]
    enlarge = F.interpolate(torch.eye(size, device=pixels.device)[None], patch, mode="linear")[0].T  # patch, size
    windows = [F.pad(enlarge, (start, patch - size - start)) for start in range(patch - size + 1)]
    starts = torch.randint(len(windows), (2, len(pixels)), device=pixels.device)
    down, right = torch.stack(windows)[starts].unbind()  # M, patch, patch
    return down[:, None] @ pixels @ right.transpose(1, 2)[:, None]


def grey_patches(pixels: Tensor) -> Tensor:
    """Greyscale version of each patch, one channel."""
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    return (pixels * pixels.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)


def blend_patches(pixels: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Blend patches with ``other``; a share above 1 extrapolates away from it."""
    return (other + share * (pixels - other)).clamp(0, 1)


def turn_hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Hue moved along its circle by a share of it; brightness and saturation stay."""
    red, green, blue = pixels.unbind(1)
    value, least = pixels.amax(1), pixels.amin(1)
    chroma = value - least
    part = torch.where(chroma > 0, chroma, 1)
    hue = torch.where(value == green, (blue - red) / part + 2, (red - green) / part + 4)
    hue = torch.where(value == red, (green - blue) / part, hue)  # in sixths of the circle
    shifted = hue[:, None] + 6 * turn + torch.tensor([5.0, 3.0, 1.0], device=pixels.device).view(3, 1, 1)
    angle = shifted % 6
    return value[:, None] - chroma[:, None] * torch.minimum(angle, 4 - angle).clamp(0, 1)


def _spread(pixels: Tensor, most: float) -> Tensor:
    """A number between plus and minus ``most`` for every patch."""
    return (2 * torch.rand(len(pixels), 1, 1, 1, device=pixels.device) - 1) * most


def _chance(pixels: Tensor, probability: float) -> Tensor:
    return torch.rand(len(pixels), 1, 1, 1, device=pixels.device) < probability
