"""What the network looks at: images, and where each place of them came from.

A view is a choice of a term, not of a task: it moves pixels and coordinates together, and the task never knows.
Terms with equal views share one forward pass; the classifier and most tasks share the plain view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vitlet.geometry import grid_coords


@dataclass(frozen=True)
class View:
    """Images ``(B, channels, height, width)`` as the network sees them."""

    images: Tensor

    def coords(self, height: int, width: int) -> Tensor:
        """Coordinates of a ``height x width`` grid of tokens over this view: ``(1, N, 2)``."""
        return grid_coords(height, width, device=self.images.device)[None]


class ViewMaker(Protocol):
    """Makes a view of a batch; equal makers share one forward pass, so a maker is a frozen dataclass."""

    def __call__(self, images: Tensor) -> View: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class PlainView:
    """The images as they are."""

    def __call__(self, images: Tensor) -> View:
        return View(images)
