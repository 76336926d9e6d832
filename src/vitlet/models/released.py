"""Weights under the names of the code they were released with, renamed to those of the model here."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

_EFFICIENTNET = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_EXPANDING = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
    "_se_reduce": "se.conv_reduce",
    "_se_expand": "se.conv_expand",
}
_SEPARABLE = _EXPANDING | {"_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
"""Of blocks that do not expand: they have one convolution less."""


_TINY_VIT = (
    *((rf"^layers\.{stage}\.downsample\.", f"stages.{stage + 1}.downsample.") for stage in range(3)),
    (r"^layers\.", "stages."),
    (r"^patch_embed\.seq\.0\.", "patch_embed.conv1."),
    (r"^patch_embed\.seq\.2\.", "patch_embed.conv2."),
    (r"\.c\.weight$", ".conv.weight"),
    (r"^norm_head\.", "head.norm."),
)
"""Of TinyViT as its authors wrote it; timm counts a downsampling to the stage after it."""


def under_own_names(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights as this model calls them: renamed, and perhaps reshaped, by whichever known way fits it best.

    Ways are the model's own ``checkpoint_filter_fn``, where its module has one, and names of other code. They are
    written for released files and may harm others, so that one is taken only if it leaves fewer names without a
    counterpart, or as many and fewer shapes that differ.
    """
    own = model.state_dict()
    best = dict(weights)
    for rename in (_from_efficientnet_pytorch, _from_sam_tiny_vit, _by_filter):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of timm's own tensors being non-contiguous
                renamed = rename(weights, model)
        except Exception:  # written for files of one kind, these fail on others in many ways
            continue
        if _misfits(renamed, own) < _misfits(best, own):
            best = renamed
    return best


def _misfits(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[int, int]:
    """Names that only one side has, and shapes that differ."""
    shared = weights.keys() & own.keys()
    return len(weights.keys() ^ own.keys()), sum(weights[name].shape != own[name].shape for name in shared)


def _by_filter(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Convert released weights by the model's own checkpoint filter, timm's or vitlet's."""
    filter_fn: Any = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    filtered = weights if filter_fn is None else filter_fn(dict(weights), model)
    return {name: tensor for name, tensor in filtered.items() if isinstance(tensor, Tensor)}


def _from_sam_tiny_vit(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """From the image encoder of MobileSAM, and of those made after it, to timm's TinyViT; all other parts are left out.

    Its classifier was never trained, so that it is left out too, and so is the neck, which timm's model has not. A
    network of fewer stages gets the first ones.
    """
    network: Any = model
    beyond = tuple(f"stages.{stage}." for stage in range(len(network.stages), 4))
    renamed = {}
    for name, tensor in weights.items():
        own = name.removeprefix("image_encoder.")
        if own == name or own.startswith(("neck.", "head.")) or own.endswith("attention_bias_idxs"):
            continue
        for pattern, replacement in _TINY_VIT:
            own = re.sub(pattern, replacement, own)
        if not own.startswith((*beyond, "head.norm.") if beyond else ()):
            renamed[own] = tensor
    if not renamed:
        raise ValueError("no image encoder")
    return renamed


def _from_efficientnet_pytorch(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """From the names of the package efficientnet_pytorch, and those made after it, to timm's EfficientNet."""
    network: Any = model
    places = [f"blocks.{stage}.{block}" for stage, blocks in enumerate(network.blocks) for block in range(len(blocks))]
    renamed = {}
    for name, tensor in weights.items():
        block = re.match(r"_blocks\.(\d+)\.(\w+)\.(.+)", name)
        if block is None:
            first, _, rest = name.partition(".")
            renamed[f"{_EFFICIENTNET[first]}.{rest}"] = tensor
            continue
        expands = f"_blocks.{block[1]}._expand_conv.weight" in weights
        part = (_EXPANDING if expands else _SEPARABLE)[block[2]]
        renamed[f"{places[int(block[1])]}.{part}.{block[3]}"] = tensor
    return renamed
