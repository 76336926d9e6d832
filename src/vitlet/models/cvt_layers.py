"""The parts of CvT: convolutional embeddings, attention on convolved tokens, blocks, stages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from timm.layers.create_act import get_act_layer
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from timm.models import checkpoint
from torch import Tensor, nn


class ConvEmbed(nn.Module):
    """A strided convolution and a norm: ``(B, C, H, W)`` to tokens ``(B, N, C)`` and the size of their grid."""

    def __init__(
        self, channels: int, dim: int, kernel: int, stride: int, padding: int, norm_layer: type[nn.Module]
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, kernel, stride=stride, padding=padding)
        self.norm = norm_layer(dim)

    def forward(self, maps: Tensor) -> tuple[Tensor, tuple[int, int]]:
        grid = self.proj(maps)
        tokens: Tensor = self.norm(grid.flatten(2).transpose(1, 2))
        return tokens, (int(grid.shape[2]), int(grid.shape[3]))


class ConvProjection(nn.Module):
    """Depth-wise 3x3 convolution with batch norm: ``(B, C, H, W)`` to tokens ``(B, N, C)``."""

    def __init__(self, dim: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, stride=stride, padding=1, groups=dim, bias=False)
        self.bn = nn.BatchNorm2d(dim)

    def forward(self, grid: Tensor) -> Tensor:
        tokens: Tensor = self.bn(self.conv(grid)).flatten(2).transpose(1, 2)
        return tokens


class ConvolvedAttention(nn.Module):
    """Base of attention whose queries, keys and values are convolved; a class token passes the convolutions by.

    A subclass makes ``attn_drop``, ``proj`` and ``proj_drop``, and says what is convolved how.
    """

    num_heads: int
    scale: float
    attn_drop: nn.Dropout
    proj: nn.Linear
    proj_drop: nn.Dropout

    @abstractmethod
    def project(self, prefix: Tensor, grid: Tensor) -> Iterator[Tensor]:
        """Queries ``(B, P + N, C)``, keys and values (fewer) of a prefix ``(B, P, C)`` and a grid ``(B, C, H, W)``."""

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        prefix, patches = tokens.split([tokens.shape[1] - size[0] * size[1], size[0] * size[1]], dim=1)
        grid = patches.transpose(1, 2).unflatten(2, size)  # B, C, H, W
        query, key, value = (
            part.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in self.project(prefix, grid)
        )  # B, h, P + N, C / h
        rate = self.attn_drop.p if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, scale=self.scale)
        out: Tensor = self.proj_drop(self.proj(attended.transpose(1, 2).flatten(2)))
        return out


class ConvAttention(ConvolvedAttention):
    """Queries, keys and values with a convolution each.

    Args:
        kv_stride: stride of the convolution before keys and values; from 2 on the weights are no longer token by token.
    """

    def __init__(self, dim: int, num_heads: int, kv_stride: int, attn_drop: float, proj_drop: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = dim**-0.5  # of the whole width, not of a head's: as released
        self.conv_proj_q = ConvProjection(dim, 1)
        self.conv_proj_k = ConvProjection(dim, kv_stride)
        self.conv_proj_v = ConvProjection(dim, kv_stride)
        self.proj_q, self.proj_k, self.proj_v = (nn.Linear(dim, dim) for _ in range(3))
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def project(self, prefix: Tensor, grid: Tensor) -> Iterator[Tensor]:
        yield self.proj_q(torch.cat([prefix, self.conv_proj_q(grid)], dim=1))
        yield self.proj_k(torch.cat([prefix, self.conv_proj_k(grid)], dim=1))
        yield self.proj_v(torch.cat([prefix, self.conv_proj_v(grid)], dim=1))


class SharedConvAttention(ConvolvedAttention):
    """Keys and values share a convolution; projections without bias; scores scaled by the width of a head."""

    def __init__(self, dim: int, num_heads: int, kv_stride: int, attn_drop: float, proj_drop: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.conv_proj_q = ConvProjection(dim, 1)
        self.conv_proj_kv = ConvProjection(dim, kv_stride)
        self.proj_q = nn.Linear(dim, dim, bias=False)
        self.proj_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def project(self, prefix: Tensor, grid: Tensor) -> Iterator[Tensor]:
        yield self.proj_q(torch.cat([prefix, self.conv_proj_q(grid)], dim=1))
        yield from self.proj_kv(torch.cat([prefix, self.conv_proj_kv(grid)], dim=1)).chunk(2, dim=2)


class OutsideEpsilonNorm(nn.Module):
    """LayerNorm that adds its epsilon to the standard deviation, not to the variance."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``(..., C)``; the mean and the deviation are computed in single precision or better."""
        exact = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        spread, mean = torch.var_mean(exact, -1, correction=0, keepdim=True)
        normed = (tokens - mean) / (spread.sqrt() + self.eps)
        return normed.to(tokens.dtype) * self.weight + self.bias


class ConvBlock(nn.Module):
    """Attention and two linear layers, each on the norm of what it is added to."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        kv_stride: int,
        act_layer: str,
        proj_drop: float,
        attn_drop: float,
        drop_path: float,
        norm_layer: type[nn.Module],
        attn_layer: type[ConvAttention | SharedConvAttention],
    ) -> None:
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = attn_layer(dim, num_heads, kv_stride, attn_drop, proj_drop)
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), act_layer=get_act_layer(act_layer), drop=proj_drop)
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """Tokens ``(B, P + N, C)`` of a grid of this size."""
        tokens = tokens + self.drop_path1(self.attn(self.norm1(tokens), size))
        out: Tensor = tokens + self.drop_path2(self.mlp(self.norm2(tokens)))
        return out


class Stage(nn.Module):
    """A convolutional embedding, perhaps a class token, and blocks."""

    def __init__(self, embed: ConvEmbed, dim: int, blocks: Sequence[ConvBlock], class_token: bool) -> None:
        super().__init__()
        self.patch_embed = embed
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if class_token else None
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, maps: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """``(B, C, H, W)`` to tokens ``(B, P + N, C)`` and the size of their grid."""
        tokens, size = self.patch_embed(maps)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        for block in self.blocks:
            tokens = checkpoint(block, tokens, size) if self.grad_checkpointing else block(tokens, size)
        return tokens, size
