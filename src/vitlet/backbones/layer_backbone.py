"""Any module becomes a source of `Features`, by the name of the layer whose output is the token grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from vitlet.backbones.base import Backbone
from vitlet.backbones.find_grid import GridLayout, GridPlace, require_layer
from vitlet.errors import VitletError
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.views import PlainView, View, ViewMaker


class LayerBackbone(Backbone):
    """Features of any module: the grid is the output of one named layer, the logits are the module's output.

    Args:
        model: any module that maps images to class scores.
        layer: name of the layer, as in ``model.named_modules()``.
        img_size: size of the images.
        in_chans: channels of the images.
        layout: layout of the layer's output; ``auto`` infers it from the shape, and refuses ambiguous ones.
        prefix_tokens: number of class and register tokens in front of a token sequence.

    Example:
        >>> backbone = vitlet.LayerBackbone(torchvision.models.resnet18(num_classes=10), layer="layer4", img_size=64)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layer: str,
        img_size: int | tuple[int, int],
        in_chans: int = 3,
        layout: GridLayout = "auto",
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
        """See `Backbone`; also records the number of token rows, to detect missing tokens."""
        shapes = super().shapes(needs, view, least=least)
        if not self.place.rows:
            height = int(view(self._empty()).images.shape[2])
            self.place = replace(self.place, rows=shapes.last.height, height=height)
        return shapes

    def forward(self, view: View, needs: Needs = Needs()) -> Features:
        if needs.attention:
            raise VitletError(
                "LayerBackbone has no attention maps, but a task needs them. Use a timm"
                " model with vitlet.TimmBackbone; `vitlet models --attention` lists models that have them."
            )
        if needs != Needs():
            raise VitletError(
                "LayerBackbone has one grid, but a task needs several, or one before and after a"
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
        logits = getattr(logits, "logits", logits)  # Hugging Face models answer with a record
        return Features(images=view.images, last=self.place.grid(output, view), logits=logits, hidden=view.hidden)
