"""Networks for small images and few of them, with a last grid of at least 4 x 4 tokens.

Each is a plain construction: ``NAME_for_32px`` and so on, 1 to 8 million parameters, for images of 32, 64 and 96
pixels; ``NAME_SIZE_for_32px`` and so on in five sizes, for 32 to 224 pixels. All have ten classes unless told
otherwise, and take any other image size by ``img_size``. ``vitlet models --small`` lists them
with their grids and speeds.
"""

from __future__ import annotations

from typing import Any

from timm.models.resnet import BasicBlock, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitlet.models.attention_resnet import AttentionResNet
from vitlet.models.cct import CompactTransformer
from vitlet.models.conv_stem_vit import ConvStemViT, Hybrid
from vitlet.models.cvt import CvT
from vitlet.models.registered import register, timm_cfg
from vitlet.models.small_resnet import SmallResNet
from vitlet.models.t2t import T2TViT


class SmallStemResNet(ResNet):
    """timm's ResNet-18 at half its width, with one 3x3 convolution as its stem and no pool after it.

    Args:
        stem_stride: stride of that convolution.
    """

    def __init__(self, stem_stride: int = 1, in_chans: int = 3, **more: Any) -> None:
        sizes: dict[str, Any] = {"block": BasicBlock, "layers": (2, 2, 2, 2), "channels": (32, 64, 128, 256)}
        super().__init__(in_chans=in_chans, **{**sizes, **more})
        stages: list[dict[str, Any]] = self.feature_info
        convolution = nn.Conv2d(in_chans, stages[0]["num_chs"], 3, stride=stem_stride, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        self.add_module("conv1", convolution)
        self.add_module("maxpool", nn.Identity())
        stages[0]["reduction"] = stem_stride
        for stage in stages[1:]:
            stage["reduction"] = stage["reduction"] * stem_stride // 4  # timm's stem divides by four


_HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
_PATCHES = {"fixed_input_size": True, "first_conv": "patch_embed.proj"}
_VIT = {"embed_dim": 192, "depth": 9, "num_heads": 12, "mlp_ratio": 2.0}
_SWIN = {"embed_dim": 96, "depths": (2, 4, 2), "num_heads": (3, 6, 12), "mlp_ratio": 2.0}
_CVT = {"embed_dims": (48, 96, 192), "depths": (1, 2, 6), "num_heads": (1, 2, 4), "mlp_ratio": 3.0}
_T2T = {"embed_dim": 192, "depth": 9, "num_heads": 6, "mlp_ratio": 2.0, "token_dim": 32}
_CONSTRUCTIONS: dict[str, tuple[type[nn.Module], dict[str, Any], dict[str, Any]]] = {
    "vit": (VisionTransformer, _PATCHES, _VIT),
    "swin": (SwinTransformer, {**_PATCHES, "classifier": "head.fc"}, {**_SWIN, "drop_path_rate": 0.0}),  # timm's drops
    # Keys of every token: on 4 x 4 tokens a stride of 2 would leave four.
    "cvt": (CvT, {"first_conv": "stages.0.patch_embed.proj"}, {**_CVT, "kv_stride": 1}),
    "t2t": (T2TViT, {"fixed_input_size": True}, _T2T),
    "cct": (CompactTransformer, {"fixed_input_size": True, "first_conv": "patch_embed.convs.0"}, {}),
    "resnet": (SmallStemResNet, {"first_conv": "conv1", "classifier": "fc"}, {}),
}
"""The class, what timm is told of it, and its sizes."""


def _small(name: str, side: int, use: str, **own: Any) -> None:
    """Register a construction for images of this side."""
    kind, cfg, sizes = _CONSTRUCTIONS[name]
    cfg = timm_cfg(side, **{"num_classes": 10, "crop_pct": 1.0, **_HALF, **cfg})
    maps = 4 if name == "resnet" else 3
    register(__name__, f"{name}_for_{side}px", kind, {**sizes, **own}, cfg, use, maps=maps)


def _cvt_stem(stride: int) -> dict[str, Any]:
    return {"kernels": (2 * stride - 1, 3, 3), "strides": (stride, 2, 2), "paddings": (stride - 1, 1, 1)}


_SPLITS = ((3, 2, 1), (3, 2, 1))
_WINDOWS = "Attention within windows of 4 x 4, in three stages: one of the families of the publication on DRLoc."
_OVERLAP = "Patches that overlap, in front of a plain ViT: for detail that borders of patches would cut apart."
_LEARNED = "Two convolutions before a ViT and a learned pool: made by its authors for training on few images."

_small("vit", 32, "The plain ViT of the small-data literature: the one to compare tasks on.", patch_size=4)
_small("vit", 64, "The same with patches of 8, for Tiny-ImageNet and its like.", patch_size=8)
_small("vit", 96, "The same with patches of 8, for STL-10 and its like: 144 tokens.", patch_size=8)
_small("swin", 32, _WINDOWS, patch_size=2, window_size=4)
_small("swin", 64, "The same with patches of 4.", patch_size=4, window_size=4)
_small("swin", 96, "The same with windows of 6 x 6.", patch_size=4, window_size=6)
_small(
    "cvt", 32, "Convolutions in every layer and no positions: for images whose sizes vary.", **_cvt_stem(2), img_size=32
)
_small("cvt", 64, "The same with a stem of stride 4.", **_cvt_stem(4), img_size=64)
_small("cvt", 96, "The same, ending in 6 x 6 tokens.", **_cvt_stem(4), img_size=96)
_small("t2t", 32, _OVERLAP, splits=((3, 1, 1), *_SPLITS))
_small("t2t", 64, "The same with a first split of stride 2.", splits=((5, 2, 2), *_SPLITS))
_small("t2t", 96, "The same, on 12 x 12 tokens.", splits=((5, 2, 2), *_SPLITS))
_small("cct", 32, _LEARNED, tokenizer_layers=2)
_small("cct", 64, "The same with three convolutions.", tokenizer_layers=3)
_small("cct", 96, "The same with three convolutions, on 12 x 12 tokens.", tokenizer_layers=3)
_small("resnet", 32, "A convolutional network of about the same size, as a baseline for transformers.", stem_stride=1)
_small("resnet", 64, "The same with a stem of stride 2.", stem_stride=2)
_small("resnet", 96, "The same, ending in 6 x 6 tokens.", stem_stride=2)


def _vit(dim: int, depth: int) -> dict[str, Any]:
    return {"embed_dim": dim, "depth": depth, "num_heads": dim // 64}


_RESNETS: dict[str, dict[str, Any]] = {
    "xs": {"channels": (24, 48, 80, 160)},
    "s": {"channels": (32, 64, 128, 256)},
    "m": {"channels": (64, 128, 256, 512)},
    "l": {"channels": (64, 128, 256, 512), "layers": (2, 2, 2, 2)},
    "xl": {"channels": (96, 192, 384, 768), "layers": (2, 2, 2, 2)},
}

_BOTNETS: dict[str, dict[str, Any]] = {  # attention has fewer weights than a convolution: wider, about as many again
    "xs": {"channels": (24, 48, 80, 192)},
    "s": {"channels": (32, 64, 128, 320)},
    "m": {"channels": (64, 128, 256, 640)},
    "l": {"channels": (64, 128, 256, 640), "layers": (2, 2, 2, 2)},
    "xl": {"channels": (96, 192, 384, 896), "layers": (2, 2, 2, 2)},
}


def _hybrid(channels: tuple[int, ...], depth: int) -> dict[str, Any]:
    """Attention on the map of the last stage; its blocks begin near the identity, so that convolutions learn first."""
    return {"channels": channels, "merge": False, **_vit(channels[-1], depth), "init_values": 0.1}


_HYBRIDS: dict[str, dict[str, Any]] = {
    "xs": _hybrid((24, 48, 80, 128), 1),
    "s": _hybrid((32, 64, 128, 256), 1),
    "m": _hybrid((64, 128, 256, 384), 2),
    "l": _hybrid((64, 128, 256, 512), 3),
    "xl": _hybrid((96, 192, 384, 768), 3),
}
_CONV_STEMS = {"xs": _vit(128, 3), "s": _vit(192, 4), "m": _vit(320, 6), "l": _vit(384, 9), "xl": _vit(512, 12)}
_STEM_STRIDES = {32: 1, 64: 2, 96: 2, 128: 4, 224: 4}
"""Image side -> stride of the stem: ResNets and hybrids end in a grid of 4 x 4 to 7 x 7."""

_CONV_STRIDES = {32: (1, 2, 2), 64: (2, 2, 2), 96: (2, 2, 2), 128: (2, 2, 2, 2), 224: (2, 2, 2, 2)}


def _sized(
    name: str,
    kind: type[nn.Module],
    cfg: dict[str, Any],
    sizes: dict[str, dict[str, Any]],
    stems: dict[str, Any],
    use: str,
) -> None:
    """Register a construction in all sizes, for images of all sides."""
    for size, options in sizes.items():
        for side in _STEM_STRIDES:
            stem = {option: by_side[side] for option, by_side in stems.items()}
            about = timm_cfg(side, **{"num_classes": 10, "crop_pct": 1.0, **_HALF, **cfg})
            maps = min(3, options["depth"]) if "depth" in options else 4
            register(__name__, f"{name}_{size}_for_{side}px", kind, {**options, **stem}, about, use, maps=maps)


_sized(
    "resnet",
    SmallResNet,
    {"first_conv": "conv1.0", "classifier": "fc"},
    _RESNETS,
    {"stem_stride": _STEM_STRIDES},
    "Residual stages of one or two basic blocks: for short trainings, and as what a transformer has to beat.",
)
_sized(
    "botnet",
    AttentionResNet,
    {"first_conv": "conv1.0", "classifier": "fc"},
    _BOTNETS,
    {"stem_stride": _STEM_STRIDES},
    "Residual stages with attention in place of the last convolution: a hybrid for few images and spatial tasks.",
)
_sized(
    "hybrid",
    Hybrid,
    {"fixed_input_size": True, "first_conv": "patch_embed.layers.0"},
    _HYBRIDS,
    {"stem_stride": _STEM_STRIDES},
    "Four residual stages, then attention on the last map: for few images, to be trained with spatial tasks.",
)
_sized(
    "convstem_vit",
    ConvStemViT,
    {"fixed_input_size": True, "first_conv": "patch_embed.layers.0"},
    _CONV_STEMS,
    {"stem_strides": _CONV_STRIDES},
    "A ViT behind 3x3 convolutions, with convolutions in its MLPs: mostly attention, yet fit for few images.",
)
