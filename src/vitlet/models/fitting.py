"""One weight fitted to a model of another size: positions, tables of relative positions, patches, channels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from timm.layers.patch_embed import resample_patch_embed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from torch import Tensor, nn

POSITIONS = (
    *("pos_embed", "absolute_pos_embed", "pos_embed_window", "position_embedding_table"),
    *("patch_pos", "pixel_pos"),  # TNT
    *("pos_embed_0", "pos_embed_1"),  # CrossViT
    *("pos_embed1", "pos_embed2", "pos_embed3"),  # Visformer
)
"""What networks call their absolute positional embedding: the one thing about them that no contract covers."""

RELATIVE = "relative_position_bias_table"
OFFSETS = "attention_biases"
"""Of TinyViT and LeViT: a bias for each absolute offset, rows first, of a square window."""


def resampled(name: str, tensor: Tensor, model: nn.Module, aspect: float = 1.0) -> Tensor | None:
    """Positions, relative or not, or patches, at the size that the model needs; None if that cannot be.

    Args:
        name: name of the weight.
        tensor: as it was learned.
        model: the model it is for.
        aspect: rows per column of the grid that it was learned on.
    """
    own = model.state_dict()[name]
    if tensor.ndim != own.ndim:
        return None
    last = name.rpartition(".")[2]
    if last in POSITIONS:
        return _positions(tensor, own, model, aspect)
    if last == RELATIVE:
        return _table(name, tensor, own, model)
    if last == OFFSETS:
        return _smaller_window(tensor, own)
    if name == "patch_embed.proj.weight" and tensor.ndim == 4 and tensor.shape[0] == own.shape[0]:
        patches: Tensor = resample_patch_embed(tensor.float(), list(own.shape[2:]))
        return patches
    return None


def adapted(name: str, tensor: Tensor, model: nn.Module) -> Tensor | None:
    """The first convolution for another number of channels; None if it is another weight.

    As timm does from three: a grey image gives what it would give in all channels; more channels repeat the known ones,
    scaled so that equal channels give what they gave.
    """
    config: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    first = config.get("first_conv") or ()
    names = (first,) if isinstance(first, str) else tuple(first)
    own = model.state_dict()[name]
    known, wanted = (shape[1] if len(shape) == 4 else 0 for shape in (tensor.shape, own.shape))
    same = tensor.shape[:1] + tensor.shape[2:] == own.shape[:1] + own.shape[2:]
    if name.removesuffix(".weight") not in names or not same or wanted != getattr(model, "in_chans", wanted):
        return None
    if wanted == 1:
        return tensor.float().sum(1, keepdim=True)
    return tensor.float().repeat(1, -(-wanted // known), 1, 1)[:, :wanted] * (known / wanted)


def _positions(tensor: Tensor, own: Tensor, model: nn.Module, aspect: float) -> Tensor | None:
    """Interpolated from the grid that they were learned on; class tokens keep theirs."""
    network: Any = model
    size = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    if size is None or tensor.ndim != 3 or tensor.shape[2] != own.shape[2]:
        return None
    prefix = own.shape[1] - size[0] * size[1]
    count = tensor.shape[1] - prefix
    rows = round(math.sqrt(max(count, 0) * aspect))
    if prefix < 0 or rows < 1 or count % rows:
        return None
    grid: Tensor = resample_abs_pos_embed(
        tensor.float(), new_size=list(size), old_size=[rows, count // rows], num_prefix_tokens=prefix
    )
    return grid


def _smaller_window(tensor: Tensor, own: Tensor) -> Tensor | None:
    """The biases ``(heads, offsets)`` of the offsets that a smaller window has: the same numbers, not interpolated."""
    before, after = (math.isqrt(each.shape[-1]) for each in (tensor, own))
    squares = before**2 == tensor.shape[-1] and after**2 == own.shape[-1]
    if tensor.ndim != 2 or tensor.shape[0] != own.shape[0] or not squares or after > before:
        return None
    return tensor.view(-1, before, before)[:, :after, :after].flatten(1)


def _table(name: str, tensor: Tensor, own: Tensor, model: nn.Module) -> Tensor | None:
    """Fit a table of relative positions to a window of another size."""
    heads = 0 if own.ndim == 3 else 1
    if tensor.shape[heads] != own.shape[heads]:
        return None
    side = round((own.shape[0] ** 0.5 + 1) / 2)
    window = getattr(model.get_submodule(name.rpartition(".")[0]), "window_size", (side, side))
    if own.ndim == 3:
        window = tuple((length + 1) // 2 for length in own.shape[1:])
    elif tensor.shape[0] - (own.shape[0] - math.prod(2 * length - 1 for length in window)) not in _SQUARES:
        return None  # timm takes windows for square
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of timm's own tensors being non-contiguous
        table: Tensor = resize_rel_pos_bias_table(
            tensor.float(), new_window_size=tuple(window), new_bias_shape=tuple(own.shape)
        )
    return table


_SQUARES = frozenset(side * side for side in range(1, 256, 2))
