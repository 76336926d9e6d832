"""The token grid in the output of a layer of any module: found by running it once, read in any layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from vitlet.errors import VitletError, nearest

Layout = Literal["auto", "NCHW", "NHWC", "NLC"]

MOST_EXTRA = 8
"""Class and register tokens that a sequence may have where its first layers do not tell."""
FEWEST_CHANNELS = 4
"""A tensor of fewer channels, such as a pooled sequence seen from the side, is no token grid."""
RESAMPLING = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample)
"""What these give has the size that was asked for, not that of the network's tokens."""


@dataclass(frozen=True)
class GridPlace:
    """Where a module's token grid is.

    Attributes:
        layer: name, as in ``model.named_modules()``.
        layout: of its output; ``auto`` reads it from the shape and refuses what is ambiguous.
        prefix, suffix: class and register tokens in front of, and behind, the others in a sequence.
    """

    layer: str
    layout: Layout = "auto"
    prefix: int = 0
    suffix: int = 0

    def read(self, output: Any, height: int, width: int) -> Tensor | None:
        """The layer's output as ``(B, C, H, W)``; a grid has the aspect of the image it came from."""
        tensor = first_tensor(output)
        if tensor is None:
            return None
        if tensor.ndim == 3 and self.layout in ("auto", "NLC"):
            tokens = tensor.shape[1] - self.prefix - self.suffix
            rows = grid_rows(tokens, height, width)
            if rows:
                patches = tensor[:, self.prefix : self.prefix + tokens]
                return patches.transpose(1, 2).reshape(len(tensor), -1, rows, tokens // rows)
        if tensor.ndim == 4 and self.layout != "NLC":
            first = tensor.shape[2] * width == tensor.shape[3] * height
            second = tensor.shape[1] * width == tensor.shape[2] * height
            if self.layout == "NCHW" or (self.layout == "auto" and first and not second):
                return tensor
            if self.layout == "NHWC" or (self.layout == "auto" and second and not first):
                return tensor.permute(0, 3, 1, 2)
        return None

    def refusal(self, found: str, height: int, width: int) -> VitletError:
        """What to say where `read` finds no grid in an output, given in words."""
        return VitletError(
            f"the output of layer {self.layer!r} is {found}, which cannot be read as a grid over"
            f" {height}x{width} images with {self.prefix} prefix tokens."
            " Name another layer, or say its layout ('NCHW', 'NHWC', 'NLC') and prefix_tokens."
        )


def first_tensor(output: Any) -> Tensor | None:
    """A layer's output, or the first part of it."""
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def grid_rows(tokens: int, height: int, width: int) -> int:
    """Rows of so many tokens over an image of this size; 0 if they are no grid of its aspect."""
    rows = max(1, round((tokens * height / width) ** 0.5)) if tokens > 0 else 0
    return rows if rows and tokens % rows == 0 and rows * width == tokens // rows * height else 0


def require_layer(model: nn.Module, layer: str, name: str) -> nn.Module:
    """The layer of that name, or a sentence with the nearest one."""
    layers: dict[str, nn.Module] = dict(model.named_modules())
    if layer not in layers or not layer:
        raise VitletError(
            f"{name} has no layer {layer!r}.{nearest(layer, layers)}"
            " List them with: [name for name, _ in model.named_modules()]."
        )
    return layers[layer]


def shape_of(output: Any) -> str:
    """An output in words."""
    return f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


class _Walk:
    """What every layer gives for three images: an empty one, and one with a light in its first and last pixel."""

    def __init__(self, height: int, width: int, given: GridPlace) -> None:
        self.size, self.given = (height, width), given
        self.placed: dict[int, tuple[int, int]] = {}  # by length: first token with a place, and their number
        self.seen: dict[str, str] = {}  # the last output of each layer in words
        self.grids: list[tuple[GridPlace, int]] = []  # that can be read, with their number of tokens

    def note(self, name: str) -> Any:
        """A hook for the layer of that name."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            self.seen[name] = shape_of(output if tensor is None else tensor)
            if tensor is None or tensor.ndim < 3 or len(tensor) != 3 or not tensor.is_floating_point():
                return
            if tensor.ndim == 3 and tensor.shape[1] not in self.placed:
                self._locate(tensor)
            place = self.place(name, tensor)
            grid = place.read(tensor, *self.size) if place is not None else None
            if place is None or grid is None or grid.shape[1] < FEWEST_CHANNELS or min(grid.shape[2:]) < 2:
                return
            if not isinstance(module, RESAMPLING):
                self.grids.append((place, grid.shape[2] * grid.shape[3]))

        return hook

    def _locate(self, sequence: Tensor) -> None:
        """Which token is the image's first, which its last, while tokens have not been mixed."""
        ends = []
        for lit in (1, 2):
            change = (sequence[lit] - sequence[0]).abs().sum(-1)
            if not 0 < int(change.count_nonzero()) <= max(1, len(change) // 2):
                return
            ends.append(int(change.argmax()))
        count = ends[1] - ends[0] + 1
        if count > 1 and grid_rows(count, *self.size):
            self.placed[sequence.shape[1]] = (ends[0], count)

    def place(self, name: str, tensor: Tensor) -> GridPlace | None:
        """How to read this output: as it was said, else as the first layers showed, else by the fewest extra tokens."""
        place = replace(self.given, layer=name)
        if tensor.ndim != 3 or self.given.prefix >= 0:
            return replace(place, prefix=max(0, self.given.prefix))
        length = int(tensor.shape[1])
        if length in self.placed:
            start, count = self.placed[length]
            return replace(place, prefix=start, suffix=length - start - count)
        for extra in range(MOST_EXTRA + 1):
            rows = grid_rows(length - extra, *self.size)
            if rows and self.size[0] % rows == 0:
                return replace(place, prefix=extra)
        return None


def find_grid(
    model: nn.Module,
    images: Tensor,
    *,
    name: str,
    layer: str | None = None,
    layout: Layout = "auto",
    prefix: int | None = None,
) -> GridPlace:
    """Where a module's token grid is: in this layer, or in the last layer that has one.

    A module whose answer is itself a map, as in segmentation, is read at the coarsest grid, the bottom of its U.

    Args:
        model: in evaluation mode.
        images: one empty image ``(1, channels, height, width)``; it is run three times over.
        name: of the model, for sentences.
        layer: by name, or None: to be found.
        layout, prefix: where they are known.
    """
    height, width = images.shape[2:]
    if layer is not None:
        require_layer(model, layer, name)
    lit = images.repeat(3, 1, 1, 1)
    lit[1, :, 0, 0] = lit[2, :, -1, -1] = 1
    walk = _Walk(height, width, GridPlace("", layout, -1 if prefix is None else prefix))
    handles = [module.register_forward_hook(walk.note(path)) for path, module in model.named_modules() if path]
    try:
        answer = model(lit)
    finally:
        for handle in handles:
            handle.remove()
    if layer is not None:
        return _named(walk, layer, name)
    if not walk.grids:
        raise VitletError(
            f"{name} has no layer whose output can be read as a token grid over {height}x{width} images. Name one with"
            " layer=..., and say its layout ('NCHW', 'NHWC', 'NLC') and prefix_tokens."
        )
    dense = any(min(part.shape[2:]) > 1 for part in _tensors(answer))
    fewest = min(tokens for _, tokens in walk.grids)
    return [place for place, tokens in walk.grids if tokens == fewest or not dense][-1]


def _named(walk: _Walk, layer: str, name: str) -> GridPlace:
    for place, _ in reversed(walk.grids):
        if place.layer == layer:
            return place
    if layer not in walk.seen:
        raise VitletError(f"the layer {layer!r} did not run in the forward pass of {name}.")
    raise replace(walk.given, layer=layer, prefix=max(0, walk.given.prefix)).refusal(walk.seen[layer], *walk.size)


def _tensors(answer: Any) -> Iterator[Tensor]:
    """The maps among a model's answers, whatever record they come in."""
    parts = (
        answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, (tuple, list)) else [answer]
    )
    for part in parts:
        if isinstance(part, Tensor) and part.ndim == 4:
            yield part
