"""A view of every image turned by a random number of quarters, pixels and coordinates together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.views import View


@dataclass(frozen=True)
class RotatedView(View):
    """Images turned counter-clockwise by quarters.

    Attributes:
        turns: ``(B,)``, 0 to 3.
        earlier: the view that was turned, if its places are not those of a plain grid.
    """

    turns: Tensor
    earlier: View | None = None

    def coords(self, height: int, width: int) -> Tensor:
        """Coordinates of each token before the rotation: ``(B, N, 2)``."""
        if height != width:
            raise VitletError(
                f"a quarter turn needs a square token grid, found {height}x{width}. Use square images with this view."
            )
        device = self.images.device
        index = torch.arange(height * width, device=device).view(height, width)
        turned = torch.stack([index.rot90(turn) for turn in range(4)]).flatten(1)[self.turns]  # B, N
        if self.earlier is None:
            return grid_coords(height, width, device=device)[turned]
        places = self.earlier.coords(height, width).expand(len(turned), -1, -1)
        return places.gather(1, turned[..., None].expand(-1, -1, 2))

    def after(self, earlier: View) -> View:
        return replace(self, earlier=earlier)


@dataclass(frozen=True)
class Rotated:
    """View that rotates each image by 0, 90, 180 or 270 degrees at random.

    Example:
        >>> term = vitlet.Term(vitlet.Rotation(), 1.0, vitlet.Rotated())
    """

    def __call__(self, images: Tensor) -> View:
        height, width = images.shape[2:]
        if height != width:
            raise VitletError(f"a quarter turn needs square images, found {height}x{width} pixels.")
        turns = torch.randint(4, (len(images),), device=images.device)
        turned = torch.stack([images.rot90(turn, (2, 3)) for turn in range(4)])  # 4, B, C, height, width
        return RotatedView(turned[turns, torch.arange(len(images), device=images.device)], turns)
