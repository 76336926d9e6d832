"""The base of all backbones: a model, the size of its images, and the sizes of its token grids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitlet.errors import VitletError, first_line
from vitlet.tokens.features import Features, GridShape, Needs, Shapes
from vitlet.tokens.views import PlainView, View, ViewMaker

SAME_SIZE = " Pass the img_size and in_chans that the model was created with."
OTHER_SIZE = (
    " This view has another size than the images: create a model that takes any size, with model_kwargs"
    " dynamic_img_size=true"
    " for timm's ViT, DeiT and EVA, strict_img_size=false for its Swin; most convolutional networks do."
)


class Backbone(nn.Module):
    """A model and the size of the images it is given.

    Args:
        model: the model; its own ``state_dict`` never gains a key.
        img_size: side, or ``(height, width)``, of the images.
        in_chans: channels of the images.
    """

    def __init__(self, model: nn.Module, *, img_size: int | tuple[int, int], in_chans: int) -> None:
        super().__init__()
        self.model = model
        sides = (img_size, img_size) if isinstance(img_size, int) else img_size
        if not isinstance(sides, (tuple, list)) or len(sides) != 2 or not all(_is_side(side) for side in sides):
            raise VitletError(
                f"img_size is {img_size!r}; it must be a side in pixels, or (height, width), such as img_size=224 or"
                " img_size=(64, 96)."
            )
        self.img_size = (int(sides[0]), int(sides[1]))
        self.in_chans = in_chans

    @abstractmethod
    def forward(self, view: View, needs: Needs = Needs()) -> Features:
        """One forward pass; raises `VitletError` if a needed feature is not available."""

    def shapes(self, needs: Needs = Needs(), view: ViewMaker = PlainView(), *, least: int = 2) -> Shapes:
        """Sizes of all grids, from one pass over an empty image; also refuses grids no spatial task can use.

        Args:
            needs: what is asked for.
            view: what the model sees.
            least: the fewest tokens along a side; 1 where no task looks at them.
        """
        seen = view(self._empty())
        height, width = seen.images.shape[2:]
        with self._explained(height, width), self._quiet():
            features = self(seen, needs)
        last = features.last.shape
        if min(last.height, last.width) < least:
            raise VitletError(
                f"{self.describe()} ends in a grid of {last.height}x{last.width} tokens at"
                f" {height}x{width} pixels; spatial tasks need at least 2x2."
                " Use larger images, or a model with a smaller patch or stride."
            )
        normed = features.after_norm.shape if features.after_norm else None
        images = GridShape(*seen.images.shape[1:])
        every = tuple(grid.shape for grid in features.every)
        return Shapes(last, normed, every, images=images, hides=seen.hidden is not None)

    @contextmanager
    def _explained(self, height: int, width: int) -> Iterator[None]:
        """Context that turns a model's exception about this image size into an error message."""
        try:
            yield
        except VitletError:
            raise
        except Exception as problem:  # any type, any model
            raise VitletError(
                f"{self.describe()} cannot take {self.in_chans}-channel images of {height}x{width} pixels:"
                f" {first_line(problem)}." + (OTHER_SIZE if (height, width) != self.img_size else SAME_SIZE)
            ) from problem

    def _empty(self) -> Tensor:
        """A black image."""
        parameter = next(self.model.parameters(), torch.empty(0))
        return torch.zeros(1, self.in_chans, *self.img_size, device=parameter.device, dtype=parameter.dtype)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Evaluation mode without gradients; afterwards every module is in the mode that it was in."""
        training = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, mode in training.items():
                module.training = mode

    def describe(self) -> str:
        """The model's name in sentences."""
        config = getattr(self.model, "pretrained_cfg", None) or {}
        return str(config.get("architecture") or type(self.model).__name__)


def _is_side(value: object) -> bool:
    return isinstance(value, int) and value > 0


def model_img_size(model: nn.Module) -> tuple[int, int]:
    """The image size a timm model was made for: of its patch embedding, its own, else of its configuration."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or getattr(model, "img_size", None)
    if size is None:
        config = getattr(model, "pretrained_cfg", None) or {}
        size = (config.get("input_size") or (3, 224, 224))[1:]
    return int(size[0]), int(size[1])
