"""ViTs behind convolutions, for training from scratch on few images: a plain stem, or residual stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from timm.models.resnet import BasicBlock, make_blocks
from torch import Tensor, nn

from vitlet.models.grid_vit import GridViT
from vitlet.models.layered import Tokenizer
from vitlet.models.small_resnet import conv_norm_act, stem_layers
from vitlet.values import ImageSize


class ConvTokens(Tokenizer):
    """Tokens that are the output of convolutions; rows and columns are rounded up where strides do not fit.

    Args:
        layers: from images ``(B, channels, height, width)`` to the token grid ``(B, C, H, W)``.
        stride: pixels per token.
    """

    def __init__(self, layers: nn.Sequential, stride: int, img_size: int | ImageSize) -> None:
        super().__init__(stride, strict_img_size=False, output_fmt="NHWC")
        self.layers = layers
        self.set_input_size(img_size)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize as timm's ResNet: preserved variances, residual blocks start as identity."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(layer, BasicBlock):
                layer.zero_init_last()

    def dynamic_feat_size(self, img_size: ImageSize) -> tuple[int, int]:
        """Rows and columns of tokens for images of this size."""
        step = self.patch_size[0]
        return -(-int(img_size[0]) // step), -(-int(img_size[1]) // step)

    def tokens(self, images: Tensor) -> Tensor:
        """``(B, C, H, W)`` to tokens ``(B, rows, columns, C)``; no copy where the layout is channels-last."""
        grid: Tensor = self.layers(images)
        return grid.permute(0, 2, 3, 1).contiguous()


def conv_tokens(
    img_size: int | ImageSize, in_chans: int, embed_dim: int, stem_width: int, stem_strides: Sequence[int], **more: Any
) -> ConvTokens:
    """3x3 convolutions with batch norm, twice as wide each; ``more`` is what timm passes besides."""
    widths = [in_chans, *(stem_width * 2**number for number in range(len(stem_strides) - 1)), embed_dim]
    layers = [
        layer
        for inside, out, stride in zip(widths[:-1], widths[1:], stem_strides, strict=True)
        for layer in conv_norm_act(inside, out, stride)
    ]
    return ConvTokens(nn.Sequential(*layers[:-1]), prod(stem_strides), img_size)


def residual_tokens(
    img_size: int | ImageSize,
    in_chans: int,
    embed_dim: int,
    channels: Sequence[int],
    stem_stride: int,
    merge: bool,
    **more: Any,
) -> ConvTokens:
    """A stem, stages of one residual block, and a 3x3 convolution of stride 2; ``more`` is what timm passes besides."""
    if not merge and channels[-1] != embed_dim:
        raise ValueError(f"without merge, the last of the channels, {channels[-1]}, must be embed_dim, {embed_dim}")
    stages, _ = make_blocks(
        (BasicBlock,) * len(channels),
        tuple(channels),
        (1,) * len(channels),
        channels[0],
        avg_down=True,
        drop_block_rate=0.0,
        act_layer=nn.ReLU,
        norm_layer=nn.BatchNorm2d,
    )
    layers = [*stem_layers(in_chans, channels[0], stem_stride), *(stage for _, stage in stages)]
    if merge:
        layers += conv_norm_act(channels[-1], embed_dim, 2)[:-1]
    return ConvTokens(nn.Sequential(*layers), stem_stride * 2 ** (len(channels) - (not merge)), img_size)


class ConvStemViT(GridViT):
    """A ViT behind 3x3 convolutions of stride 2.

    Args:
        stem_width: channels of the first convolution; each next one has twice as many, the last ``embed_dim``.
        stem_strides: strides of the convolutions.
        more: arguments of `GridViT`.
    """

    def __init__(self, stem_width: int = 32, stem_strides: Sequence[int] = (2, 2, 2), **more: Any) -> None:
        super().__init__(embed_layer=partial(conv_tokens, stem_width=stem_width, stem_strides=stem_strides), **more)


class Hybrid(GridViT):
    """Residual stages on large grids, attention on a small one.

    Args:
        channels: channels of the residual stages, one block each; every stage but the first halves the grid.
        stem_stride: 1, 2 or 4.
        merge: make tokens by a 3x3 convolution of stride 2; else they are the last stage's map.
        more: arguments of `GridViT`.
    """

    def __init__(
        self, channels: Sequence[int] = (32, 64), stem_stride: int = 2, merge: bool = True, **more: Any
    ) -> None:
        tokens = partial(residual_tokens, channels=channels, stem_stride=stem_stride, merge=merge)
        super().__init__(embed_layer=tokens, **more)
