"""The token grid in the output of a layer of any module: found by running it once, read in any layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitlet.errors import VitletError, nearest
from vitlet.tokens.features import Grid
from vitlet.tokens.views import View

GridLayout = Literal["auto", "NCHW", "NHWC", "NLC"]

MOST_EXTRA = 8
"""Class and register tokens that a sequence may have where its first layers do not tell."""
FEWEST_CHANNELS = 4
"""A tensor of fewer channels, such as a pooled sequence seen from the side, is no token grid."""
RESAMPLING = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample)
"""What these give has the size that was asked for, not that of the model's tokens."""
CORNERS = ((0, 0), (-1, -1), (0, -1), (-1, 0))
"""Pixels that are lit, each in an image of its own."""
PROBES = 1 + len(CORNERS) + 2
"""An empty image, those with a light in a corner, and twice the same noise."""
SAMPLED = 64
"""Tokens that are looked at to see whether they stay where they are."""


@dataclass(frozen=True)
class GridPlace:
    """Layer, layout and size of a module's token grid.

    Attributes:
        layer: name, as in ``model.named_modules()``.
        layout: layout of its output; ``auto`` reads it from the shape and refuses what is ambiguous.
        prefix, suffix: class and register tokens in front of, and behind, the others in a sequence.
        rows, height: rows of tokens that images of this height had in evaluation; 0 where that is not known.
    """

    layer: str
    layout: GridLayout = "auto"
    prefix: int = 0
    suffix: int = 0
    rows: int = 0
    height: int = 0

    def read(self, output: Any, height: int, width: int) -> Tensor | None:
        """The layer's output as ``(B, C, H, W)``; a grid has the aspect of the image it came from."""
        tensor = first_tensor(output)
        if tensor is None:
            return None
        if tensor.ndim == 3 and self.layout in ("auto", "NLC"):
            tokens = tensor.shape[1] - self.prefix - self.suffix
            rows = grid_rows(tokens, height, width)
            if rows and self._whole(rows, height):
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

    def grid(self, output: Any, view: View) -> Grid:
        """The layer's output as a grid over the images of a view."""
        tokens = self.read(output, *view.images.shape[2:])
        if tokens is None:
            raise self.refusal(shape_of(output), *view.images.shape[2:])
        return Grid(tokens, view.coords(*tokens.shape[2:]).to(tokens.device))

    def _whole(self, rows: int, height: int) -> bool:
        """Whether so many rows are all those of an image; at other sizes than the known one they may be rounded."""
        if not self.rows:
            return True
        slack = 0 if height == self.height else 1 + height / self.height
        return abs(rows - height * self.rows / self.height) <= slack

    def refusal(self, found: str, height: int, width: int) -> VitletError:
        """The error for an output in which `read` finds no grid."""
        what = f"the output of layer {self.layer!r} is {found}, which cannot be read as a grid over"
        advice = "Name another layer, or pass its layout ('NCHW', 'NHWC', 'NLC') and prefix_tokens."
        if self.rows:
            advice = (
                f"In evaluation it had {self.rows} rows of tokens on images {self.height} pixels high. Where the model"
                " drops tokens in training, as with timm's patch_drop_rate, turn that off: the remaining ones have no"
                " known position."
            )
        return VitletError(f"{what} {height}x{width} images with {self.prefix} prefix tokens. {advice}")


def first_tensor(output: Any) -> Tensor | None:
    """A layer's output, or the first part of it."""
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def grid_rows(tokens: int, height: int, width: int) -> int:
    """Rows of a grid of this many tokens on an image of this size; 0 if they do not form a grid of its aspect."""
    rows = max(1, round((tokens * height / width) ** 0.5)) if tokens > 0 else 0
    return rows if rows and tokens % rows == 0 and rows * width == tokens // rows * height else 0


def require_layer(model: nn.Module, layer: str, name: str) -> nn.Module:
    """The layer of that name; `VitletError` with the nearest name if there is none."""
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


class _GridLayer(NamedTuple):
    """A layer whose output can be read as a grid.

    Attributes:
        place: where.
        tokens: how many.
        projection: whether it is a linear layer to another width, as to keys and values, or to classes.
        body: whether it is a block or a norm: it learns, and gives the shape that it takes.
        trouble: why its tokens have no places, in words.
    """

    place: GridPlace
    tokens: int
    projection: bool
    body: bool
    trouble: str


class _Walk:
    """Outputs of all layers on the probe images."""

    def __init__(self, height: int, width: int, given: GridPlace) -> None:
        self.size, self.given = (height, width), given
        self.placed: dict[int, tuple[int, int]] = {}  # by length: first token with a place, and their number
        self.in_order: dict[int, bool] = {}  # by length: whether tokens were last seen row by row
        self.seen: dict[str, str] = {}  # the last output of each layer in words
        self.grids: list[_GridLayer] = []

    def note(self, name: str) -> Any:
        """A hook for the layer of that name."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = first_tensor(output)
            self.seen[name] = shape_of(output if tensor is None else tensor)
            if tensor is None or tensor.ndim < 3 or len(tensor) != PROBES or not tensor.is_floating_point():
                return
            if tensor.ndim == 3 and tensor.shape[1] not in self.placed:
                self._locate(tensor)
            place = self.place(name, tensor)
            grid = place.read(tensor, *self.size) if place is not None else None
            if place is None or grid is None or grid.shape[1] < FEWEST_CHANNELS or min(grid.shape[2:]) < 2:
                return
            if isinstance(module, RESAMPLING):
                return
            rows, columns = grid.shape[2:]
            given = first_tensor(inputs)
            alike = given is not None and given.shape == tensor.shape
            learns = next(module.parameters(), None) is not None
            trouble = self._trouble(tensor, grid) if tensor.ndim == 3 else ""
            place = replace(place, rows=rows, height=self.size[0])
            projection = isinstance(module, nn.Linear) and not alike
            self.grids.append(_GridLayer(place, rows * columns, projection, alike and learns, trouble))

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

    def _trouble(self, sequence: Tensor, grid: Tensor) -> str:
        """Why the tokens of a sequence, read as a grid, are not where they seem to be; nothing where they are."""
        if _wanders(*grid[-2:].flatten(2).transpose(1, 2)):
            return "change positions between runs, even in evaluation, as with random masking"
        length = int(sequence.shape[1])
        changed = (sequence[1:-2] - sequence[:1]).abs().sum(2).count_nonzero(1).tolist()  # tokens, by light
        corners = [grid[:, :, row, column] for row, column in CORNERS]
        noticed = [not torch.equal(corner[lit], corner[0]) for lit, corner in enumerate(corners, start=1)]
        if any(some and not own for some, own in zip(changed, noticed, strict=True)):
            self.in_order[length] = False
        elif all(noticed) and max(changed) <= length // 2:  # while tokens are not mixed: afterwards all notice all
            self.in_order[length] = True
        if self.in_order.get(length, True):
            return ""
        return "are not in the order of the image, row by row: a change in one corner shows up at another token"

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
    layout: GridLayout = "auto",
    prefix: int | None = None,
) -> GridPlace:
    """Find a module's token grid: in the named layer, or in the last layer that has one.

    A module whose answer is itself a map, as in segmentation, is read at the coarsest grid, the bottom of its U. A
    linear layer to another width, behind the last block or norm, is passed over.

    Args:
        model: in evaluation mode.
        images: one empty image ``(1, channels, height, width)``; it is run seven times over.
        name: name of the model, for messages.
        layer: by name, or None: to be found.
        layout, prefix: where they are known.
    """
    height, width = images.shape[2:]
    if layer is not None:
        require_layer(model, layer, name)
    probes = images.repeat(PROBES, 1, 1, 1)
    for image, (row, column) in enumerate(CORNERS, start=1):
        probes[image, :, row, column] = 1
    probes[-2:] = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(0), device="cpu").to(probes)
    walk = _Walk(height, width, GridPlace("", layout, -1 if prefix is None else prefix))
    handles = [module.register_forward_hook(walk.note(path)) for path, module in model.named_modules() if path]
    try:
        answer = model(probes)
    finally:
        for handle in handles:
            handle.remove()
    found = _chosen(walk, answer) if layer is None else _named(walk, layer, name)
    if found is None:
        raise VitletError(
            f"{name} has no layer whose output can be read as a token grid over {height}x{width} images. Name one with"
            " layer=..., and pass its layout ('NCHW', 'NHWC', 'NLC') and prefix_tokens."
        )
    if found.trouble:
        raise VitletError(
            f"the tokens of layer {found.place.layer!r} of {name} {found.trouble}. Tasks need to know where each token"
            " is: name a layer whose tokens are in order, or use a model that preserves the order."
        )
    return found.place


def _chosen(walk: _Walk, answer: Any) -> _GridLayer | None:
    """The last grid, or the last of the coarsest ones if the model's output is a map."""
    dense = any(min(part.shape[2:]) > 1 for part in _tensors(answer))
    fewest = min((found.tokens for found in walk.grids), default=0)
    fitting = [found for found in walk.grids if found.tokens == fewest or not dense]
    if not fitting or not fitting[-1].projection:
        return fitting[-1] if fitting else None
    bodies = [found for found in fitting if found.body and found.tokens == fitting[-1].tokens]
    return (bodies or fitting)[-1]


def _named(walk: _Walk, layer: str, name: str) -> _GridLayer:
    for found in reversed(walk.grids):
        if found.place.layer == layer:
            return found
    if layer not in walk.seen:
        raise VitletError(f"the layer {layer!r} did not run in the forward pass of {name}.")
    raise replace(walk.given, layer=layer, prefix=max(0, walk.given.prefix)).refusal(walk.seen[layer], *walk.size)


def _wanders(first: Tensor, again: Tensor) -> bool:
    """Whether most tokens ``(N, C)`` of an image that is seen again are like another one more than like themselves."""
    first, again = first.float(), again.float()
    if torch.allclose(first, again, rtol=0, atol=0.01 * float(first.abs().max())):
        return False
    some = torch.arange(0, len(first), max(1, len(first) // SAMPLED), device=first.device)
    distances = torch.cdist(first[some], again)
    at_home = distances.gather(1, some[:, None])[:, 0] <= distances.amin(1)
    return int(at_home.sum()) < len(some) / 2


def _tensors(answer: Any) -> Iterator[Tensor]:
    """Tensors among a model's outputs, in any nested structure."""
    parts = (
        answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, (tuple, list)) else [answer]
    )
    for part in parts:
        if isinstance(part, Tensor) and part.ndim == 4:
            yield part
