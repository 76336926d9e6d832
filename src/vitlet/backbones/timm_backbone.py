"""Any timm model that implements ``forward_intermediates`` becomes a source of `Features`, without per-model code."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.backbones.base import Backbone, model_img_size
from vitlet.backbones.find_attention import Survey, survey
from vitlet.backbones.find_grid import shape_of
from vitlet.backbones.levels import as_grid, heard, level_maps
from vitlet.backbones.tap_attention import EXPLICIT_TOKENS, AttentionTap, listening
from vitlet.errors import VitletError, first_line
from vitlet.tokens.features import Features, Grid, Needs, Shapes
from vitlet.tokens.views import PlainView, View, ViewMaker


class TimmBackbone(Backbone):
    """Features of a timm model: one ``forward_intermediates`` call, then ``forward_head`` for the logits.

    Args:
        model: a timm model, or one with timm's interface.
        img_size: size of the images (default: from the model's configuration).
        in_chans: channels of the images (default: the model's).
        explicit_tokens: number of tokens up to which attention maps are computed explicitly; beyond, they are streamed
            in blocks of rows to save memory.

    Example:
        >>> backbone = vitlet.TimmBackbone(timm.create_model("resnet18", num_classes=10), img_size=64)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        img_size: int | tuple[int, int] | None = None,
        in_chans: int | None = None,
        explicit_tokens: int = EXPLICIT_TOKENS,
    ) -> None:
        if not (hasattr(model, "forward_intermediates") and hasattr(model, "forward_head")):
            raise VitletError(
                f"{type(model).__name__} has no forward_intermediates, so its token grid cannot be read."
                " Use a model that `vitlet models` lists, or vitlet.LayerBackbone(model, layer=NAME) with the name"
                " of the layer whose output is the grid."
            )
        size: Any = img_size or model_img_size(model)
        super().__init__(model, img_size=size, in_chans=in_chans or int(getattr(model, "in_chans", 3)))
        self.explicit_tokens = explicit_tokens
        self._channels = 0  # of the last grid, once it was seen
        self._surveys: dict[tuple[int, int], Survey] = {}
        self._taps: dict[tuple[str, int], AttentionTap] = {}

    def shapes(self, needs: Needs = Needs(), view: ViewMaker = PlainView(), *, least: int = 2) -> Shapes:
        """Shapes of the features, as in `Backbone`: names all attention layers, prepares the requested ones."""
        shapes = super().shapes(replace(needs, attention=()), view, least=least)
        self._channels = shapes.last.channels
        if not needs.attention:
            return shapes
        found = self._survey(view(self._empty()).images)
        asked = found.resolve(needs.attention, self.describe())
        if needs.attention != "all":
            self._tapped(found, asked)
        return replace(shapes, attention=tuple(layer.shape for layer in found.layers))

    def forward(self, view: View, needs: Needs = Needs()) -> Features:
        model: Any = self.model
        indices = None if needs.every_grid else 1  # None: all of them; 1: the last one
        found = self._survey(view.images) if needs.attention else None
        taps = self._tapped(found, found.resolve(needs.attention, self.describe())) if found is not None else {}
        levels = needs.levels if needs.every_grid else "shown"
        with listening(taps.values()) if taps else nullcontext(), heard(model, levels) as outputs:
            final, maps = model.forward_intermediates(view.images, indices=indices, norm=False, output_fmt="NCHW")
        attention = found.read(taps, view) if found is not None else {}
        if self._channels and maps[-1].shape[1] != self._channels:  # timm reads any number of tokens as the whole grid
            raise VitletError(
                f"{self.describe()} gives tokens of {maps[-1].shape[1]} channels, which in evaluation had"
                f" {self._channels}: tokens are missing. Where the model drops them in training, as with timm's"
                " patch_drop_rate, turn that off: the remaining ones have no known position."
            )
        shown = level_maps(model, levels, outputs, maps)
        grids = tuple(Grid(tokens, view.coords(*tokens.shape[2:])) for tokens in shown)
        normed = Grid(self._final_grid(final, maps[-1]), grids[-1].coords) if needs.after_norm else None
        return Features(
            images=view.images,
            last=Grid(maps[-1], grids[-1].coords),
            logits=self._logits(final),
            after_norm=normed,
            every=grids if needs.every_grid else (),
            attention=attention,
            hidden=view.hidden,
        )

    def _survey(self, images: Tensor) -> Survey:
        """Attention layers of the model at the size of these images; found once."""
        size = (int(images.shape[2]), int(images.shape[3]))
        if size not in self._surveys:
            with self._quiet():
                self._surveys[size] = survey(self.model, torch.zeros_like(images[:1]).repeat(2, 1, 1, 1))
        return self._surveys[size]

    def _tapped(self, found: Survey, asked: Sequence[int]) -> dict[int, AttentionTap]:
        """Hooks on the requested layers, by index; a hook stays once it is set."""
        layers = {index: found.layers[index] for index in asked}
        for layer in layers.values():
            if (layer.path, layer.call) not in self._taps:
                self._taps[layer.path, layer.call] = layer.tap(self.model, self.explicit_tokens)
        return {index: self._taps[layer.path, layer.call] for index, layer in layers.items()}

    def remove(self) -> None:
        """Take the taps on attention off the model again."""
        for place in reversed(list(self._taps)):
            self._taps.pop(place).remove()

    def _logits(self, final: Any) -> Tensor:
        model: Any = self.model
        try:
            return model.forward_head(final)  # type: ignore[no-any-return]
        except NotImplementedError as problem:  # timm's way to say that a model is an encoder and nothing more
            raise VitletError(
                f"{self.describe()} has no classifier ({first_line(problem)}). Use a model that `vitlet models` lists."
            ) from None

    def _final_grid(self, final: Any, last: Tensor) -> Tensor:
        """``final`` has no common layout: read it as the grid that ``last`` is, prefix tokens stripped."""
        height, width = last.shape[2:]
        grid = as_grid(final, last)
        if grid is not None:
            return grid
        raise VitletError(
            f"{self.describe()} hands its head {shape_of(final)}, which is not its {height}x{width} token grid:"
            " tokens after the final norm are not available. Use tap 'before_norm'."
        )
