"""A view of images with random patches hidden."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tokens.views import Hidden, View


@dataclass(frozen=True)
class MaskedView(View):
    """Images some of whose patches are blank.

    Attributes:
        pixels: the images before, ``(B, channels, height, width)``.
        cells: ``(B, rows, columns)`` of patches, true where one is hidden.
        earlier: the view whose patches these are; the plain one if None.
    """

    pixels: Tensor
    cells: Tensor
    earlier: View | None = None

    @property
    def hidden(self) -> Hidden:
        return Hidden(self.pixels, self.cells)

    def coords(self, height: int, width: int) -> Tensor:
        """Coordinates of the earlier view, unchanged."""
        if self.earlier is None:
            return super().coords(height, width)
        return self.earlier.coords(height, width)[: len(self.images)]

    def after(self, earlier: View) -> View:
        return replace(self, earlier=earlier)


@dataclass(frozen=True)
class Masked:
    """View that masks random patches of each image: their pixels become 0, the mean colour.

    The shape of the images is unchanged, so that any model can take them.

    Args:
        patch: side of a patch in pixels (default: that of a token of the model's last grid).
        ratio: fraction of the patches that are masked; at least one is, and at least one is not.
        share: fraction of the batch that is used, its first images, to save time.

    Example:
        >>> term = vitlet.Term(vitlet.Reconstruction(), 1.0, vitlet.Masked(ratio=0.75))
    """

    patch: int | None = None
    ratio: float = 0.75
    share: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.ratio < 1 and 0 < self.share <= 1):
            raise VitletError(
                f"a masked view has ratio {self.ratio:g} and share {self.share:g}; needed are a ratio between 0 and 1,"
                " and a share of the batch above 0 and up to 1."
            )

    def __call__(self, images: Tensor) -> View:
        height, width = images.shape[2:]
        patch = self.patch or 0
        if not patch or height % patch or width % patch or height * width < 2 * patch**2:
            raise VitletError(
                f"images of {height}x{width} pixels cannot be masked by patches of {patch or 'unknown'} pixels. Use a"
                " patch that divides both sides and leaves at least two patches."
            )
        pixels = images[: math.ceil(self.share * len(images))]
        rows, columns = height // patch, width // patch
        count = min(max(1, round(self.ratio * rows * columns)), rows * columns - 1)
        # The ranks of random numbers: exactly `count` of them are the lowest, anywhere in the image.
        ranks = torch.rand(len(pixels), rows * columns, device=images.device).argsort(1)
        cells = (ranks < count).view(-1, rows, columns)
        blank = cells[:, None].repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        return MaskedView(pixels.masked_fill(blank, 0.0), pixels, cells)

    def fitted(self, pixels: tuple[int, int], cells: tuple[int, int]) -> Masked:
        """The view with patches of the size of a token, for this grid and image size."""
        if self.patch is not None:
            return self
        patch = pixels[0] // cells[0]
        if (cells[0] * patch, cells[1] * patch) != tuple(pixels):
            raise VitletError(
                f"the model has {cells[0]}x{cells[1]} tokens on images of {pixels[0]}x{pixels[1]} pixels, which are"
                " not square patches that can be masked. Use another image size, or give the view a patch."
            )
        return replace(self, patch=patch)
