"""Finds the layers of a model that have an attention map over the token grid, by running it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitlet.backbones.tap_attention import AttentionTap, Caught, SdpaCall, is_attention, untapped
from vitlet.backbones.windows import NOT_OVER_PLACES, find_windows
from vitlet.errors import VitletError
from vitlet.tokens.attention import AttentionMap, AttentionShape, uniform_distance
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.views import View

MOST_PREFIX = 16
"""Class and register tokens that a sequence may have in front, where the model does not say."""

MASKED = 1e-20
"""Weights below this belong to pairs that a mask keeps apart."""


@dataclass(frozen=True)
class Layer:
    """A layer whose attention is a map over the token grid.

    Attributes:
        path: path of the module that makes the call, and `call`, which of its attention calls it is.
        shape: shape of the map.
        cells, visible: as in `AttentionMap`.
    """

    path: str
    call: int
    shape: AttentionShape
    cells: Tensor | None = None
    visible: Tensor | None = None

    def tap(self, model: nn.Module, explicit_tokens: int) -> AttentionTap:
        """A tap on this layer."""
        return AttentionTap(model.get_submodule(self.path), self.call, explicit_tokens)

    def read(self, caught: Caught, view: View) -> AttentionMap:
        """The attention maps of the last forward pass, with token coordinates."""
        coords = view.coords(self.shape.height, self.shape.width)  # 1 or B, cells, 2
        cells = None if self.cells is None else self.cells.to(coords.device)
        visible = None if self.visible is None else self.visible.to(coords.device)
        coords = coords[:, None] if cells is None else coords[:, cells]
        maps = caught.maps
        if maps is not None and maps.ndim == 3:
            maps = maps[:, None]  # one head
        return AttentionMap(self.shape, coords, cells, visible, maps, caught.attended)


@dataclass(frozen=True)
class Survey:
    """Attention layers of a model at one image size: maps over the grid, and a description of the others."""

    layers: tuple[Layer, ...]
    others: tuple[str, ...]

    def read(self, taps: Mapping[int, AttentionTap], view: View) -> dict[int, AttentionMap]:
        """The maps that taps caught, by index of the layer."""
        return {index: self.layers[index].read(tap.take(), view) for index, tap in taps.items()}

    def resolve(self, asked: Sequence[int] | str, model: str) -> tuple[int, ...]:
        """Indices (from 0) of the requested layers, in order."""
        count = len(self.layers)
        if not count:
            found = "; ".join(self.others) or "no attention at all"
            raise VitletError(
                f"{model} has no attention map over its token grid (found: {found}). Tasks on token grids, such as"
                " drloc, work with it; for tasks on attention take a ViT, a Swin or another of"
                " `vitlet models --attention`."
            )
        if asked == "all":
            return tuple(range(count))
        for index in asked:
            if not -count <= int(index) < count:
                number = int(index) + 1 if int(index) >= 0 else int(index)
                raise VitletError(
                    f"there is no attention layer {number} in {model}: it has {count} with a map over the token grid."
                    f" Use 1 to {count}, or -1 for the last."
                )
        return tuple(sorted({int(index) % count for index in asked}))


@dataclass
class _Call:
    """One attention call seen by a survey: the modules it happened in, outermost first, and the map."""

    stack: list[tuple[str, nn.Module, tuple[int, ...]]]
    number: int
    shape: tuple[int, ...]
    weights: Callable[[], Tensor]

    @property
    def path(self) -> str:
        return self.stack[-1][0] if self.stack else ""

    @property
    def reason(self) -> str:
        """Reason why the weights are not a map over token positions."""
        kinds = [type(module).__name__ for _, module, _ in self.stack]
        return next((NOT_OVER_PLACES[kind] for kind in reversed(kinds) if kind in NOT_OVER_PLACES), "")

    def describe(self) -> str:
        """The call in words: class of the module that has a name of its own, and the shape of its weights."""
        owners = [type(module).__name__ for _, module, _ in self.stack if type(module).__module__[:8] != "torch.nn"]
        shape = "x".join(map(str, self.shape[1:]))
        return f"{(owners or ['a softmax'])[-1]} {self.reason or f'with weights of {shape} an image or window'}"


class _SurveyMode(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.stack: list[tuple[str, nn.Module, tuple[int, ...]]] = []
        self.calls: list[_Call] = []
        self.runs: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if is_attention(func, args, kwargs):
            if func is F.scaled_dot_product_attention:
                call = SdpaCall(*args, **kwargs)
                shape: tuple[int, ...] = (*call.query.shape[:-1], call.key.shape[-2])
                weights: Callable[[], Tensor] = lambda: call.openly()[1]  # noqa: E731
            else:
                shape, weights = tuple(out.shape), lambda: out
            seen = _Call(list(self.stack), 0, shape, weights)
            seen.number = sum(earlier.path == seen.path for earlier in self.calls)
            self.calls.append(seen)
        return out

    def enter(self, name: str) -> Callable[..., None]:
        """A hook that notes that a module starts."""

        def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            first = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
            self.stack.append((name, module, () if first is None else tuple(first.shape)))
            self.runs[name] = self.runs.get(name, 0) + 1

        return note

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """A hook that notes that it is done."""
        self.stack.pop()


def survey(model: Any, images: Tensor, grids: set[tuple[int, int]] | None = None) -> Survey:
    """Run a model on these images (several, so that their number shows) and sort its attention calls.

    Args:
        model: any module if its ``grids`` (rows and columns) are known, else a timm model, which is asked for them.
        images: ``(B, channels, height, width)``.
        grids: the token grids that maps may be over.
    """
    mode = _SurveyMode()
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(mode.enter(name)))
        handles.append(module.register_forward_hook(mode.leave, always_call=True))
    try:
        with torch.no_grad(), untapped(), mode:  # a tap of anybody would hide the call that it catches
            if grids is None:
                _, maps = model.forward_intermediates(images, norm=False, output_fmt="NCHW")
                grids = {(int(grid.shape[2]), int(grid.shape[3])) for grid in maps}
            else:
                model(images)
    finally:
        for handle in handles:
            handle.remove()
    layers: list[Layer] = []
    others: list[str] = []
    for call in mode.calls:
        layer = None
        if mode.runs.get(call.path) == 1:
            layer = _layer(call, len(images), grids, getattr(model, "num_prefix_tokens", None))
        if layer is None:
            others.append(call.describe())
        else:
            layers.append(layer)
    return Survey(tuple(layers), tuple(dict.fromkeys(others)))


def _layer(call: _Call, batch: int, grids: set[tuple[int, int]], prefix: int | None) -> Layer | None:
    """The attention layer of this call; None if its weights are not a map over the grid or over windows of it."""
    if call.reason or len(call.shape) not in (3, 4) or call.shape[-1] != call.shape[-2]:
        return None
    heads = call.shape[1] if len(call.shape) == 4 else 1
    tokens = call.shape[-1]
    cut = find_windows(call.stack)
    if cut is not None:
        windows, (height, width) = cut
        cells = windows.cells(height, width)
        if call.shape[0] != batch * len(cells) or tokens != cells.shape[1]:
            return None
        if not torch.equal(cells[0], torch.arange(height * width, device="cpu")):
            return _windowed(call, heads, height, width, cells)
    if cut is None and call.shape[0] != batch:
        return None
    fitting = sorted((tokens - rows * columns, rows, columns) for rows, columns in grids)
    for extra, height, width in fitting:
        if extra == 0 or (0 < extra <= MOST_PREFIX and prefix in (None, extra)):
            even = (height - 1 / height + width - 1 / width) / 3  # mean distance of two random cells
            shape = AttentionShape(heads, height, width, extra, 1, tokens - extra, even)
            return Layer(call.path, call.number, shape)
    return None


def _windowed(call: _Call, heads: int, height: int, width: int, cells: Tensor) -> Layer:
    placed = cells >= 0
    seen = placed[:, :, None] & placed[:, None]  # G, N, N
    weights = call.weights().detach()
    if weights.device.type != "meta":
        weights = weights.cpu().unflatten(0, (-1, len(cells)))[0]  # of the first image
        seen = seen & ((weights.amax(1) if weights.ndim == 4 else weights) > MASKED)
    visible = None if seen.all() else seen
    cells = cells.clamp(min=0)
    coords = grid_coords(height, width, device=torch.device("cpu"))[cells]
    even = uniform_distance(coords, visible)
    shape = AttentionShape(heads, height, width, 0, len(cells), cells.shape[1], even)
    return Layer(call.path, call.number, shape, cells, visible)
