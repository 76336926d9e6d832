"""Tokens to tokens: overlapping patches, mixed by a small transformer, cut into overlapping patches again.

Yuan, Chen, Wang, Yu, Shi, Jiang, Tay, Feng, Yan: "Tokens-to-Token ViT: Training Vision Transformers from Scratch on
ImageNet", ICCV 2021. The small transformer is a Performer (Choromanski et al.: "Rethinking Attention with Performers",
ICLR 2021), whose attention costs as much as there are tokens and not their square, or a plain one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers.mlp import Mlp
from torch import Tensor, nn

from vitlet.models.layered import Tokenizer, as_pair
from vitlet.values import ImageSize

TokenMixer = Literal["performer", "transformer"]

RELEASED_SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))
"""Kernel, stride and padding of the three soft splits."""


def random_features(tokens: Tensor, directions: Tensor) -> Tensor:
    """Positive features ``(B, N, m)`` of tokens ``(B, N, C)`` whose products approximate the exponential of theirs.

    Args:
        directions: ``(m, C)``, random.
    """
    half_norms = tokens.square().sum(-1, keepdim=True) / 2
    return torch.exp(tokens @ directions.T - half_norms) / math.sqrt(len(directions))


def performer_attention(query: Tensor, key: Tensor, value: Tensor, directions: Tensor) -> Tensor:
    """Performer attention of queries, keys and values ``(B, N, C)``, without an N x N matrix."""
    query, key = random_features(query, directions), random_features(key, directions)
    summary = key.transpose(1, 2) @ value  # B, m, C
    total = query @ key.sum(1).unsqueeze(2)  # B, N, 1
    return (query @ summary) / (total + 1e-8)


def _all_digits(device: str) -> AbstractContextManager[Any]:
    """Exponentials need them: no autocast, if there is one (the meta device knows none)."""
    casting = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if casting else nullcontext()


class TokenPerformer(nn.Module):
    """Performer attention to a narrower width, then two linear layers.

    Args:
        dim: width of the tokens that come in.
        out: width of those that go out.
        drop: dropout of both parts.
    """

    def __init__(self, dim: int, out: int, drop: float) -> None:
        super().__init__()
        self.kqv = nn.Linear(dim, 3 * out)
        self.proj = nn.Linear(out, out)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(out)
        self.drop = nn.Dropout(drop)
        self.mlp = nn.Sequential(nn.Linear(out, out), nn.GELU(), nn.Linear(out, out), nn.Dropout(drop))
        self.w = nn.Parameter(torch.empty(out // 2, out), requires_grad=False)  # not learned, but kept with the weights
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New random directions, at right angles to each other."""
        nn.init.orthogonal_(self.w, gain=math.sqrt(len(self.w)))

    def forward(self, tokens: Tensor) -> Tensor:
        key, query, value = self.kqv(self.norm1(tokens)).chunk(3, dim=-1)
        with _all_digits(value.device.type):
            attended = performer_attention(query.float(), key.float(), value.float(), self.w.float())
        tokens = value + self.drop(self.proj(attended.to(value.dtype)))  # the input has another width: values stand in
        out: Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class TokenAttention(nn.Module):
    """Attention of one head to a narrower width; the values are added to what it reads."""

    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.scale = dim**-0.5  # of the width that comes in: as released
        self.qkv = nn.Linear(dim, 3 * out, bias=False)
        self.proj = nn.Linear(out, out)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unsqueeze(1).chunk(3, dim=-1)  # B, 1, N, C
        attended = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        out: Tensor = (value + self.proj(attended)).squeeze(1)
        return out


class TokenTransformer(nn.Module):
    """Token transformer of T2T with softmax attention."""

    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(out)
        self.attn = TokenAttention(dim, out)
        self.mlp = Mlp(out, out)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.attn(self.norm1(tokens))
        out: Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class TokensToToken(Tokenizer):
    """Soft splits of the image, tokens mixed between two of them.

    Args:
        splits: kernel, stride and padding of each soft split; between two of them tokens are mixed.
        token_dim: width of the mixed tokens.
        mixer: performer or transformer.
        drop: dropout in the performers.
        strict_img_size, output_fmt: as timm's models pass them for images of any size.
        more: what they pass besides, which means nothing here.
    """

    def __init__(
        self,
        img_size: int | ImageSize = 224,
        in_chans: int = 3,
        embed_dim: int = 384,
        splits: Sequence[Sequence[int]] = RELEASED_SPLITS,
        token_dim: int = 64,
        mixer: TokenMixer = "performer",
        drop: float = 0.1,
        strict_img_size: bool = True,
        output_fmt: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(math.prod(split[1] for split in splits), strict_img_size, output_fmt)
        if mixer not in ("performer", "transformer"):
            raise ValueError(f"the token mixer must be performer or transformer, got {mixer!r}")
        self.splits = [tuple(split) for split in splits]
        channels = in_chans
        for number, (kernel, _, _) in enumerate(self.splits[:-1], start=1):
            width = channels * kernel**2
            mix = TokenPerformer(width, token_dim, drop) if mixer == "performer" else TokenTransformer(width, token_dim)
            self.add_module(f"attention{number}", mix)
            channels = token_dim
        self.project = nn.Linear(channels * self.splits[-1][0] ** 2, embed_dim)
        self.set_input_size(img_size)

    def dynamic_feat_size(self, img_size: ImageSize) -> tuple[int, int]:
        """Rows and columns of tokens for images of this size."""
        size = as_pair(img_size)
        for split in self.splits:
            size = _split_size(size, split)
        return size

    def tokens(self, images: Tensor) -> Tensor:
        """``(B, C, H, W)`` to tokens in rows and columns, ``(B, rows, columns, C)``."""
        maps, size = images, as_pair(images.shape[2:])
        for number, split in enumerate(self.splits, start=1):
            kernel, stride, padding = split
            tokens = F.unfold(maps, kernel, stride=stride, padding=padding).transpose(1, 2)  # B, N, C * kernel^2
            size = _split_size(size, split)
            if number < len(self.splits):
                maps = self.get_submodule(f"attention{number}")(tokens).transpose(1, 2).unflatten(2, size)
        out: Tensor = self.project(tokens).unflatten(1, size)
        return out


def _split_size(size: tuple[int, int], split: Sequence[int]) -> tuple[int, int]:
    kernel, stride, padding = split
    return (size[0] + 2 * padding - kernel) // stride + 1, (size[1] + 2 * padding - kernel) // stride + 1
