"""Networks for images of 32, 64 and 96 pixels: 1 to 8 million parameters, a last grid of at least 4 x 4 tokens.

Each is a plain construction: ``NAME_for_32px`` and so on, with ten classes unless told otherwise, and any other image
size by ``img_size``. ``vitlet models --small`` lists them with their grids and speeds.
"""

from __future__ import annotations

from typing import Any

from timm.models import generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitlet.models.cct import CompactTransformer
from vitlet.models.cvt import CvT
from vitlet.models.registered import create, settings
from vitlet.models.t2t import T2TViT

SIDES = (32, 64, 96)


class SmallStemResNet(ResNet):
    """timm's ResNet-18 at half its width, with one 3x3 convolution as its stem and no pool after it.

    Args:
        stem_stride: of that convolution.
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


def _settings(side: int, **more: Any) -> dict[str, Any]:
    half = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return settings(side, **{"num_classes": 10, "crop_pct": 1.0, **half, **more})


_KINDS: dict[str, dict[str, Any]] = {
    "vit": {"fixed_input_size": True, "first_conv": "patch_embed.proj"},
    "swin": {"fixed_input_size": True, "first_conv": "patch_embed.proj", "classifier": "head.fc"},
    "cvt": {"first_conv": "stages.0.patch_embed.proj"},
    "t2t": {"fixed_input_size": True},
    "cct": {"fixed_input_size": True, "first_conv": "patch_embed.convs.0"},
    "resnet": {"first_conv": "conv1", "classifier": "fc"},
}
default_cfgs = generate_default_cfgs(
    {f"{kind}_for_{side}px.untrained": _settings(side, **more) for kind, more in _KINDS.items() for side in SIDES}
)


def _vit(side: int, patch: int, pretrained: bool, more: dict[str, Any]) -> Any:
    sizes = {"patch_size": patch, "embed_dim": 192, "depth": 9, "num_heads": 12, "mlp_ratio": 2.0}
    return create(VisionTransformer, f"vit_for_{side}px", pretrained, **{**sizes, **more})


@register_model
def vit_for_32px(pretrained: bool = False, **more: Any) -> Any:
    """The plain ViT of the small-data literature: the one to compare tasks on."""
    return _vit(32, 4, pretrained, more)


@register_model
def vit_for_64px(pretrained: bool = False, **more: Any) -> Any:
    """The same with patches of 8, for Tiny-ImageNet and its like."""
    return _vit(64, 8, pretrained, more)


@register_model
def vit_for_96px(pretrained: bool = False, **more: Any) -> Any:
    """The same with patches of 8, for STL-10 and its like: 144 tokens."""
    return _vit(96, 8, pretrained, more)


def _swin(side: int, patch: int, window: int, pretrained: bool, more: dict[str, Any]) -> Any:
    sizes = {"embed_dim": 96, "depths": (2, 4, 2), "num_heads": (3, 6, 12), "mlp_ratio": 2.0}
    cut = {"patch_size": patch, "window_size": window, "drop_path_rate": 0.0}  # timm's Swin drops 0.1 unasked
    return create(SwinTransformer, f"swin_for_{side}px", pretrained, **{**sizes, **cut, **more})


@register_model
def swin_for_32px(pretrained: bool = False, **more: Any) -> Any:
    """Attention within windows of 4 x 4, in three stages: one of the families of the publication on DRLoc."""
    return _swin(32, 2, 4, pretrained, more)


@register_model
def swin_for_64px(pretrained: bool = False, **more: Any) -> Any:
    """The same with patches of 4."""
    return _swin(64, 4, 4, pretrained, more)


@register_model
def swin_for_96px(pretrained: bool = False, **more: Any) -> Any:
    """The same with windows of 6 x 6."""
    return _swin(96, 4, 6, pretrained, more)


def _cvt(side: int, stride: int, pretrained: bool, more: dict[str, Any]) -> Any:
    sizes = {"embed_dims": (48, 96, 192), "depths": (1, 2, 6), "num_heads": (1, 2, 4), "mlp_ratio": 3.0}
    stem = {"kernels": (2 * stride - 1, 3, 3), "strides": (stride, 2, 2), "paddings": (stride - 1, 1, 1)}
    # Keys of every token: on 4 x 4 tokens a stride of 2 would leave four.
    return create(CvT, f"cvt_for_{side}px", pretrained, **{**sizes, **stem, "img_size": side, "kv_stride": 1, **more})


@register_model
def cvt_for_32px(pretrained: bool = False, **more: Any) -> Any:
    """Convolutions in every layer and no positions: for images whose sizes vary."""
    return _cvt(32, 2, pretrained, more)


@register_model
def cvt_for_64px(pretrained: bool = False, **more: Any) -> Any:
    """The same with a stem of stride 4."""
    return _cvt(64, 4, pretrained, more)


@register_model
def cvt_for_96px(pretrained: bool = False, **more: Any) -> Any:
    """The same, ending in 6 x 6 tokens."""
    return _cvt(96, 4, pretrained, more)


def _t2t(side: int, first: tuple[int, int, int], pretrained: bool, more: dict[str, Any]) -> Any:
    sizes = {"embed_dim": 192, "depth": 9, "num_heads": 6, "mlp_ratio": 2.0, "token_dim": 32}
    splits = (first, (3, 2, 1), (3, 2, 1))
    return create(T2TViT, f"t2t_for_{side}px", pretrained, **{**sizes, "splits": splits, **more})


@register_model
def t2t_for_32px(pretrained: bool = False, **more: Any) -> Any:
    """Patches that overlap, in front of a plain ViT: for detail that borders of patches would cut apart."""
    return _t2t(32, (3, 1, 1), pretrained, more)


@register_model
def t2t_for_64px(pretrained: bool = False, **more: Any) -> Any:
    """The same with a first split of stride 2."""
    return _t2t(64, (5, 2, 2), pretrained, more)


@register_model
def t2t_for_96px(pretrained: bool = False, **more: Any) -> Any:
    """The same, on 12 x 12 tokens."""
    return _t2t(96, (5, 2, 2), pretrained, more)


def _cct(side: int, layers: int, pretrained: bool, more: dict[str, Any]) -> Any:
    return create(CompactTransformer, f"cct_for_{side}px", pretrained, **{"tokenizer_layers": layers, **more})


@register_model
def cct_for_32px(pretrained: bool = False, **more: Any) -> Any:
    """Two convolutions before a ViT and a learned pool: made by its authors for training on few images."""
    return _cct(32, 2, pretrained, more)


@register_model
def cct_for_64px(pretrained: bool = False, **more: Any) -> Any:
    """The same with three convolutions."""
    return _cct(64, 3, pretrained, more)


@register_model
def cct_for_96px(pretrained: bool = False, **more: Any) -> Any:
    """The same with three convolutions, on 12 x 12 tokens."""
    return _cct(96, 3, pretrained, more)


def _resnet(side: int, stride: int, pretrained: bool, more: dict[str, Any]) -> Any:
    return create(SmallStemResNet, f"resnet_for_{side}px", pretrained, maps=4, **{"stem_stride": stride, **more})


@register_model
def resnet_for_32px(pretrained: bool = False, **more: Any) -> Any:
    """A convolutional network of about the same size: what a transformer has to beat."""
    return _resnet(32, 1, pretrained, more)


@register_model
def resnet_for_64px(pretrained: bool = False, **more: Any) -> Any:
    """The same with a stem of stride 2."""
    return _resnet(64, 2, pretrained, more)


@register_model
def resnet_for_96px(pretrained: bool = False, **more: Any) -> Any:
    """The same, ending in 6 x 6 tokens."""
    return _resnet(96, 2, pretrained, more)
