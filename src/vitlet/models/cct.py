"""A compact convolutional transformer: tokens from convolutions, a ViT, and a pool that weighs every token.

After Hassani, Walton, Shah, Abuduweili, Li, Shi: "Escaping the Big Data Paradigm with Compact Transformers", 2021. The
blocks are timm's own (the publication's have one more norm), so that everything a ViT of timm can do is done here.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitlet.models.layered import Tokenizer
from vitlet.values import ImageSize


class ConvTokenizer(Tokenizer):
    """3x3 convolutions, each followed by a pool that halves the image.

    Args:
        layers: how many convolutions, and halvings.
        hidden: channels between two of them.
        strict_img_size, output_fmt: as timm's models pass them for images of any size.
        more: what they pass besides, which means nothing here.
    """

    def __init__(
        self,
        img_size: int | ImageSize = 32,
        in_chans: int = 3,
        embed_dim: int = 256,
        layers: int = 1,
        hidden: int = 64,
        strict_img_size: bool = True,
        output_fmt: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(2**layers, strict_img_size, output_fmt)
        widths = [in_chans, *[hidden] * (layers - 1), embed_dim]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1, bias=False) for before, after in pairwise(widths)
        )
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.set_input_size(img_size)
        self.init_weights()

    def init_weights(self) -> None:
        """Convolutions that keep the size of what goes through them."""
        for convolution in self.convs:
            nn.init.kaiming_normal_(convolution.get_parameter("weight"))

    def dynamic_feat_size(self, img_size: ImageSize) -> tuple[int, int]:
        """Rows and columns of tokens for images of this size: halved and rounded up, once a layer."""
        step = self.patch_size[0]
        return -(-int(img_size[0]) // step), -(-int(img_size[1]) // step)

    def tokens(self, images: Tensor) -> Tensor:
        """``(B, C, H, W)`` to tokens in rows and columns, ``(B, rows, columns, C)``."""
        for convolution in self.convs:
            images = self.pool(convolution(images).relu())
        return images.permute(0, 2, 3, 1)


class SequencePool(nn.Module):
    """The mean of tokens, weighed by a softmax over a score that each of them gets."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)
        nn.init.trunc_normal_(self.score.weight, std=0.02)
        nn.init.zeros_(self.score.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        weights = torch.softmax(self.score(tokens), dim=1)  # B, N, 1
        return (weights * tokens).sum(1)


class CompactTransformer(VisionTransformer):
    """The model; what is not named here is passed to timm's ViT.

    Args:
        global_pool: map, timm's word for a pool that is learned; avg or another of timm's for that.
        tokenizer_layers: convolutions before the blocks; each halves the grid.
        more: such as ``depth`` [7], ``num_heads`` [4], ``mlp_ratio`` [2], ``dynamic_img_size``, ``drop_path_rate``.
    """

    def __init__(
        self,
        img_size: int | ImageSize = 32,
        global_pool: str = "map",
        tokenizer_layers: int = 1,
        embed_dim: int = 256,
        **more: Any,
    ) -> None:
        sizes = {"embed_dim": embed_dim, "depth": 7, "num_heads": 4, "mlp_ratio": 2.0, "qkv_bias": False}
        tokens = {"class_token": False, "embed_layer": partial(ConvTokenizer, layers=tokenizer_layers)}
        super().__init__(img_size=img_size, **{"global_pool": global_pool, **sizes, **tokens, **more})
        if global_pool == "map":
            self.attn_pool = SequencePool(embed_dim)  # type: ignore[assignment]  # in place of timm's
