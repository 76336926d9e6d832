"""Any timm model that implements ``forward_intermediates`` becomes a source of `Features`, without per-model code.

`LayerBackbone` does the same for any other module by the name of the layer whose output is the grid.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.attention import AttentionMap
from vitlet.capture import EXPLICIT_TOKENS, Tap, listening
from vitlet.errors import VitletError, first_line
from vitlet.features import Features, Grid, Needs, Shapes
from vitlet.layer_grid import GridPlace, Layout, require_layer, shape_of
from vitlet.survey import Survey, survey
from vitlet.views import PlainView, View, ViewMaker

SAME_SIZE = " Pass the img_size and in_chans that the model was made with."
OTHER_SIZE = (
    " This view has another size than the images: make a model that takes any, with model_kwargs dynamic_img_size=true"
    " for timm's ViT, DeiT and EVA, strict_img_size=false for its Swin; most convolutional networks do."
)


class Backbone(nn.Module):
    """A network and the size of the images it is given.

    Args:
        model: the network; its own ``state_dict`` never gains a key.
        img_size: side, or ``(height, width)``, of the images.
        in_chans: channels of the images.
    """

    def __init__(self, model: nn.Module, *, img_size: int | tuple[int, int], in_chans: int) -> None:
        super().__init__()
        self.model = model
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.in_chans = in_chans

    @abstractmethod
    def forward(self, view: View, needs: Needs = Needs()) -> Features:
        """One forward pass; raises `VitletError` if something that is needed cannot be had."""

    def shapes(self, needs: Needs = Needs(), view: ViewMaker = PlainView(), *, least: int = 2) -> Shapes:
        """Sizes of all grids, from one pass over an empty image; also refuses grids no spatial task can use.

        Args:
            needs: what is asked for.
            view: what the network sees.
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
        return Shapes(last, normed, tuple(grid.shape for grid in features.every))

    @contextmanager
    def _explained(self, height: int, width: int) -> Iterator[None]:
        """Inside, the network's own complaint about images of this size becomes a sentence."""
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
        """The network's name in sentences."""
        config = getattr(self.model, "pretrained_cfg", None) or {}
        return str(config.get("architecture") or type(self.model).__name__)


class TimmBackbone(Backbone):
    """Features of a timm model: one ``forward_intermediates`` call, then ``forward_head`` for the logits.

    Args:
        model: a timm model, or one that obeys timm's contract.
        img_size: size of the images; by default the size the model's configuration names.
        in_chans: channels of the images; by default the model's own.
        explicit_tokens: of attention: up to this many tokens a map is computed openly, beyond never written down.
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
        self._taps: dict[tuple[str, int], Tap] = {}

    def shapes(self, needs: Needs = Needs(), view: ViewMaker = PlainView(), *, least: int = 2) -> Shapes:
        """As in `Backbone`; of attention it names all layers there are, and gets ready for those asked for."""
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
        attention: dict[int, AttentionMap] = {}
        if needs.attention:
            found = self._survey(view.images)
            asked = found.resolve(needs.attention, self.describe())
            taps = self._tapped(found, asked)
            with listening(taps):
                final, maps = model.forward_intermediates(view.images, indices=indices, norm=False, output_fmt="NCHW")
            attention = {
                index: found.layers[index].read(tap.take(), view) for index, tap in zip(asked, taps, strict=True)
            }
        else:
            final, maps = model.forward_intermediates(view.images, indices=indices, norm=False, output_fmt="NCHW")
        if self._channels and maps[-1].shape[1] != self._channels:  # timm reads any number of tokens as the whole grid
            raise VitletError(
                f"{self.describe()} gives tokens of {maps[-1].shape[1]} channels, which in evaluation had"
                f" {self._channels}: tokens are missing. Where the model drops them in training, as with timm's"
                " patch_drop_rate, turn that off: those left have no places."
            )
        grids = tuple(Grid(tokens, view.coords(*tokens.shape[2:])) for tokens in maps)
        normed = Grid(self._final_grid(final, maps[-1]), grids[-1].coords) if needs.after_norm else None
        return Features(
            images=view.images,
            last=grids[-1],
            logits=self._logits(final),
            after_norm=normed,
            every=grids if needs.every_grid else (),
            attention=attention,
        )

    def _survey(self, images: Tensor) -> Survey:
        """What attention there is at the size of these images; found once."""
        size = (int(images.shape[2]), int(images.shape[3]))
        if size not in self._surveys:
            with self._quiet():
                self._surveys[size] = survey(self.model, torch.zeros_like(images[:1]).repeat(2, 1, 1, 1))
        return self._surveys[size]

    def _tapped(self, found: Survey, asked: Sequence[int]) -> list[Tap]:
        """Taps on the layers asked for; one that was set once stays."""
        taps = []
        for layer in (found.layers[index] for index in asked):
            place = (layer.path, layer.call)
            if place not in self._taps:
                self._taps[place] = Tap(self.model.get_submodule(layer.path), layer.call, self.explicit_tokens)
            taps.append(self._taps[place])
        return taps

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
        batch, _, height, width = last.shape
        tokens = height * width
        if isinstance(final, Tensor):
            if final.ndim == 3 and final.shape[1] >= tokens:
                patches = final[:, final.shape[1] - tokens :]
                return patches.transpose(1, 2).reshape(batch, -1, height, width)
            if final.ndim == 4 and final.shape[2:] == (height, width):
                return final
            if final.ndim == 4 and final.shape[1:3] == (height, width):
                return final.permute(0, 3, 1, 2)
        raise VitletError(
            f"{self.describe()} hands its head {shape_of(final)}, which is not its {height}x{width} token grid:"
            " tokens after the final norm cannot be had. Use tap 'before_norm'."
        )


class LayerBackbone(Backbone):
    """Features of any module: the grid is the output of one named layer, the logits are the module's output.

    Args:
        model: any module that maps images to class scores.
        layer: name of the layer, as in ``model.named_modules()``.
        img_size: size of the images.
        in_chans: channels of the images.
        layout: of the layer's output; ``auto`` reads it from the shape and refuses what is ambiguous.
        prefix_tokens: class and register tokens in front of a token sequence.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layer: str,
        img_size: int | tuple[int, int],
        in_chans: int = 3,
        layout: Layout = "auto",
        prefix_tokens: int = 0,
    ) -> None:
        super().__init__(model, img_size=img_size, in_chans=in_chans)
        module = require_layer(model, layer, self.describe())
        self.layer, self.place = layer, GridPlace(layer, layout, prefix_tokens)
        self._running, self._output = False, None
        self._hook = module.register_forward_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._running:
            self._output = output

    def remove(self) -> None:
        """Take the hook off the model again."""
        self._hook.remove()

    def shapes(self, needs: Needs = Needs(), view: ViewMaker = PlainView(), *, least: int = 2) -> Shapes:
        """As in `Backbone`; remembers the rows of tokens, to know when some are missing."""
        shapes = super().shapes(needs, view, least=least)
        if not self.place.rows:
            height = int(view(self._empty()).images.shape[2])
            self.place = replace(self.place, rows=shapes.last.height, height=height)
        return shapes

    def forward(self, view: View, needs: Needs = Needs()) -> Features:
        if needs.attention:
            raise VitletError(
                "a model known by one layer shows no attention: found a task that needs attention maps. Use a timm"
                " model with vitlet.TimmBackbone; `vitlet models --attention` lists those that have them."
            )
        if needs != Needs():
            raise VitletError(
                "a model known by one layer has one grid: found a task that needs several, or one before and after a"
                " norm. Name the layer that is wanted and leave the task's tap and variant at one grid."
            )
        self._running = True
        try:
            logits = self.model(view.images)
        finally:
            self._running = False
            output, self._output = self._output, None
        if output is None:
            raise VitletError(f"the layer {self.layer!r} did not run in the forward pass of {self.describe()}.")
        tokens = self.place.read(output, *view.images.shape[2:])
        if tokens is None:
            raise self.place.refusal(shape_of(output), *view.images.shape[2:])
        logits = getattr(logits, "logits", logits)  # Hugging Face models answer with a record
        return Features(images=view.images, last=Grid(tokens, view.coords(*tokens.shape[2:])), logits=logits)


def model_img_size(model: nn.Module) -> tuple[int, int]:
    """The image size a timm model was made for: of its patch embedding, its own, else of its configuration."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or getattr(model, "img_size", None)
    if size is None:
        config = getattr(model, "pretrained_cfg", None) or {}
        size = (config.get("input_size") or (3, 224, 224))[1:]
    return int(size[0]), int(size[1])
