"""Small residual network for training from scratch on few images: few wide blocks and an equally wide 3x3 stem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.models.resnet import BasicBlock, ResNet
from torch import nn


def conv_norm_act(inside: int, out: int, stride: int) -> list[nn.Module]:
    """A 3x3 convolution, batch norm and ReLU."""
    return [nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


def stem_layers(in_chans: int, width: int, stride: int) -> list[nn.Module]:
    """3x3 convolutions, each with norm and activation: one up to stride 2, two of stride 2 for stride 4."""
    if stride == 4:
        return [*conv_norm_act(in_chans, width // 2, 2), *conv_norm_act(width // 2, width, 2)]
    return conv_norm_act(in_chans, width, stride)


class SmallResNet(ResNet):
    """timm's ResNet with basic blocks, average pooling in its shortcuts, and last norms that start at zero.

    Args:
        layers: blocks of each stage.
        channels: channels of each stage; the stem has those of the first.
        stem_stride: 1, 2 or 4; no pool follows.
        more: timm's arguments, such as ``drop_path_rate``.
    """

    def __init__(
        self,
        layers: Sequence[int] = (1, 1, 1, 1),
        channels: Sequence[int] = (32, 64, 128, 256),
        stem_stride: int = 2,
        in_chans: int = 3,
        **more: Any,
    ) -> None:
        options: dict[str, Any] = {"avg_down": True, "zero_init_last": True, **more}
        # timm's deep stem is the one whose width can be chosen; its convolutions are replaced below.
        stem: dict[str, Any] = {"stem_type": "deep", "stem_width": channels[0] // 2}
        sizes: dict[str, Any] = {"block": BasicBlock, "layers": tuple(layers), "channels": tuple(channels)}
        super().__init__(in_chans=in_chans, **sizes, **stem, **options)
        *first, norm, act = stem_layers(in_chans, channels[0], stem_stride)
        self.conv1, self.bn1, self.act1 = nn.Sequential(*first), norm, act
        self.add_module("maxpool", nn.Identity())
        for layer in self.conv1:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        stages: list[dict[str, Any]] = self.feature_info
        stages[0]["reduction"] = stem_stride
        for stage in stages[1:]:
            stage["reduction"] = stage["reduction"] * stem_stride // 4  # timm's stem divides by four
