"""Views: transformed images with the original coordinates of their tokens.

A view is a choice of a term, not of a task: it moves pixels and coordinates together, and the task never knows.
Terms with equal views share one forward pass; the classifier and most tasks share the plain view. A maker draws from
torch's global generator, which the training loop seeds at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from vitlet.tokens.geometry import grid_coords


class Hidden(NamedTuple):
    """Masked patches of a view, and the original pixels.

    Attributes:
        pixels: the images with nothing hidden, ``(B, channels, height, width)``.
        cells: ``(B, rows, columns)`` of equal patches, true where one is hidden.
    """

    pixels: Tensor
    cells: Tensor


@dataclass(frozen=True)
class View:
    """Images ``(B, channels, height, width)`` as the model sees them."""

    images: Tensor

    @property
    def hidden(self) -> Hidden | None:
        """Masked patches; None if nothing is masked."""
        return None

    def coords(self, height: int, width: int) -> Tensor:
        """Coordinates of a ``height x width`` grid of tokens over this view: ``(B, N, 2)``, or ``(1, N, 2)``."""
        return grid_coords(height, width, device=self.images.device)[None]

    def after(self, earlier: View) -> View:
        """Compose with an earlier view; here nothing moved, so the coordinates are the earlier view's."""
        return replace(earlier, images=self.images)


class ViewMaker(Protocol):
    """Makes a view of a batch; equal makers share one forward pass, so a maker is a frozen dataclass.

    A maker may have a method ``settled``: what to look at in evaluation, where nothing is left to chance; and one
    ``fitted``: the same maker for a model whose size of images and of the last grid is known.
    """

    def __call__(self, images: Tensor) -> View: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class PlainView:
    """The images as they are."""

    def __call__(self, images: Tensor) -> View:
        return View(images)


@dataclass(frozen=True)
class Chain:
    """Views applied one after another.

    Example:
        >>> view = vitlet.Chain((vitlet.ShuffledPatches(8), vitlet.Rotated()))
    """

    makers: tuple[ViewMaker, ...]

    def __call__(self, images: Tensor) -> View:
        view = View(images)
        for maker in self.makers:
            view = maker(view.images).after(view)
        return view

    def settled(self) -> ViewMaker:
        """The chain for evaluation, without the views that are the identity there."""
        quiet = [settled(maker) for maker in self.makers]
        left = tuple(maker for maker in quiet if maker != PlainView())
        return left[0] if len(left) == 1 else Chain(left) if left else PlainView()

    def fitted(self, pixels: tuple[int, int], cells: tuple[int, int]) -> Chain:
        """The chain with each view fitted to the token grid."""
        return Chain(tuple(fitted(maker, pixels, cells) for maker in self.makers))


def settled(maker: ViewMaker) -> ViewMaker:
    """View for evaluation: the deterministic form of a view maker if it has one, otherwise the maker itself."""
    quiet = getattr(maker, "settled", None)
    return quiet() if quiet is not None else maker


def fitted(maker: ViewMaker, pixels: tuple[int, int], cells: tuple[int, int]) -> ViewMaker:
    """The maker for a model with this many cells in its last grid, on images of this many pixels."""
    fit = getattr(maker, "fitted", None)
    return fit(pixels, cells) if fit is not None else maker
