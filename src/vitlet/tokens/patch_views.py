"""Views that move things: shuffled patches, and mega-patches cut at random lines.

Both are of RelViT, "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision Transformer"
(BMVC 2022). Letters: B batch, C channels, N patches, P pixels along a patch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tokens.views import View


def to_patches(images: Tensor, patch: int) -> Tensor:
    """Images cut into square patches, row by row: ``(B, N, C, P, P)``."""
    height, width = images.shape[2:]
    if height % patch or width % patch:
        raise VitletError(
            f"images of {height}x{width} pixels cannot be cut into patches of {patch}x{patch}."
            " Use an image size that is a multiple of the patch."
        )
    cut: Tensor = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # B, C, rows, P, columns, P
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def from_patches(patches: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `to_patches`, for images of ``height x width`` pixels."""
    batch, _, channels, patch, _ = patches.shape
    grid: Tensor = patches.unflatten(1, (height // patch, width // patch))
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)


@dataclass(frozen=True)
class ShuffledView(View):
    """View of images with permuted patches.

    Attributes:
        order: ``(B, N)``, the patch of the earlier view that now lies at each place.
        patches: rows and columns of patches.
        earlier: the view whose patches these are; the plain one if None.
    """

    order: Tensor
    patches: tuple[int, int]
    earlier: View | None = None

    def coords(self, height: int, width: int) -> Tensor:
        """Original coordinates of each token; a grid finer than the patches keeps the offset within them."""
        rows, columns = self.patches
        if height % rows or width % columns:
            raise VitletError(
                f"the patches of this view were shuffled on a grid of {rows}x{columns}, but the model has a grid of"
                f" {height}x{width} tokens, which mixes unrelated patches."
                " Shuffle patches as large as the model's coarsest token."
            )
        down, right = height // rows, width // columns
        device = self.order.device
        row = (self.order // columns).view(-1, rows, 1, columns, 1) * down
        column = (self.order % columns).view(-1, rows, 1, columns, 1) * right
        row = row + torch.arange(down, device=device).view(-1, 1, 1)
        column = column + torch.arange(right, device=device)
        index = (row * width + column).flatten(1)  # B, N
        places = (self.earlier or View(self.images)).coords(height, width)
        return places.expand(len(index), -1, -1).gather(1, index[..., None].expand(-1, -1, 2))

    def after(self, earlier: View) -> View:
        return replace(self, earlier=earlier)


@dataclass(frozen=True)
class ShuffledPatches:
    """View that permutes the patches of each image at random.

    Args:
        patch: side of a patch in pixels.

    Example:
        >>> term = vitlet.Term(vitlet.Position(), 1.0, vitlet.ShuffledPatches(4))
    """

    patch: int

    def __call__(self, images: Tensor) -> View:
        height, width = images.shape[2:]
        patches = to_patches(images, self.patch)
        order = torch.rand(patches.shape[:2], device=images.device).argsort(1)  # B, N
        index = order.view(*order.shape, 1, 1, 1).expand_as(patches)
        moved = from_patches(patches.gather(1, index), height, width)
        return ShuffledView(moved, order, (height // self.patch, width // self.patch))


@dataclass(frozen=True)
class MegaView(View):
    """Images made of irregular cells, each shrunk to one patch.

    Attributes:
        rows, columns: ``(B, side + 1)``, the lines between the cells as shares of the original image; None where a
            token's place is its index.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None

    def coords(self, height: int, width: int) -> Tensor:
        """Centres of the tokens' cells, in cells of the grid laid evenly over the original image."""
        if self.rows is None or self.columns is None:
            return super().coords(height, width)
        rows, columns = _centres(self.rows, height), _centres(self.columns, width)
        grid = torch.stack([rows[:, :, None].expand(-1, -1, width), columns[:, None].expand(-1, height, -1)], dim=-1)
        return grid.flatten(1, 2)

    def after(self, earlier: View) -> View:
        if type(earlier) is not View:
            raise VitletError(
                "mega-patches join neighbours: found a chain of views that moves patches before it cuts mega-patches."
                " Put MegaPatches first."
            )
        return self


@dataclass(frozen=True)
class MegaPatches:
    """View that merges patches into ``side x side`` irregular mega-patches, each resized to one patch (RelViT).

    The cuts run between patches and are drawn for each image. The model sees ``side * patch`` pixels per side, and must
    take images of that size.

    Args:
        patch: side of a patch in pixels.
        side: mega-patches along each axis; fewer than patches.
        coords: token coordinates; index: index of the mega-patch; image: its centre in the original image.
        even: mega-patches of equal size, as in evaluation.

    Example:
        >>> term = vitlet.Term(vitlet.SpatialRelations(), 1.0, vitlet.MegaPatches(patch=4, side=5))
    """

    patch: int
    side: int = 5
    coords: Literal["index", "image"] = "index"
    even: bool = False

    def __call__(self, images: Tensor) -> View:
        rows, columns = (self._cuts(len(images), size, images.device) for size in images.shape[2:])
        with torch.autocast(images.device.type, enabled=False):  # pixels keep their precision
            down = area_weights(rows, self.patch, images.shape[2])[:, None]
            right = area_weights(columns, self.patch, images.shape[3])[:, None]
            shrunk = (down @ images.float() @ right.transpose(2, 3)).to(images.dtype)
        if self.coords == "index" or self.even:
            return MegaView(shrunk)
        return MegaView(shrunk, rows / images.shape[2], columns / images.shape[3])

    def _cuts(self, batch: int, size: int, device: torch.device) -> Tensor:
        """Lines between cells in pixels, with both borders: ``(B, side + 1)``, or ``(1, side + 1)`` if even."""
        patches = size // self.patch
        if size % self.patch or not 2 <= self.side < patches:
            raise VitletError(
                f"{self.side} mega-patches cannot be cut from a side of {size} pixels, {size / self.patch:g} patches of"
                f" {self.patch}: needed at least 2, and fewer than there are whole patches. Use a smaller mega_side,"
                " larger images or a smaller patch."
            )
        if self.even:
            return torch.linspace(0, size, self.side + 1, device=device)[None]
        inner = torch.rand(batch, patches - 1, device=device).argsort(1)[:, : self.side - 1].sort(1).values + 1
        lines = torch.cat([inner.new_zeros(batch, 1), inner, inner.new_full((batch, 1), patches)], dim=1)
        return lines.float() * self.patch

    def settled(self) -> MegaPatches:
        """Even cuts."""
        return replace(self, even=True)


def area_weights(lines: Tensor, patch: int, size: int) -> Tensor:
    """How much of each of ``size`` pixels goes into each output pixel, every cell becoming ``patch`` of them.

    Args:
        lines: ``(B, side + 1)``, the cells' borders in pixels.

    Returns:
        ``(B, side * patch, size)``; a row holds the shares of its interval and sums to 1.
    """
    steps = torch.arange(patch + 1, device=lines.device) / patch
    edges = lines[:, :-1, None] + lines.diff(dim=1)[..., None] * steps  # B, side, patch + 1
    starts, ends = edges[..., :-1].flatten(1)[..., None], edges[..., 1:].flatten(1)[..., None]
    pixels = torch.arange(size, device=lines.device)
    overlap = torch.minimum(ends, pixels + 1) - torch.maximum(starts, pixels)
    return overlap.clamp(min=0) / (ends - starts)


def _centres(lines: Tensor, size: int) -> Tensor:
    """Centres of ``size`` tokens laid over the cells between these lines: ``(B, size)``, in token cells."""
    side = lines.shape[1] - 1
    place = (torch.arange(size, device=lines.device) + 0.5) * side / size  # in cells
    cell = place.long()
    share = lines[:, cell] + (place - cell) * (lines[:, cell + 1] - lines[:, cell])
    return share * size - 0.5
