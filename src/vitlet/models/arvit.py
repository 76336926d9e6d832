"""ARViT, and the six-block ViT-Tiny that it was compared with, as timm models.

Mormille, Broni-Bediako, Atsumi: "Regularizing self-attention on vision transformers with 2D spatial distance loss",
Artificial Life and Robotics 27, 2022. Six blocks with the norm after each part, fixed sinusoid positions, no class
token, and a head on all output tokens. The publication and the released code differ: see the entry points below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from timm.layers.attention import Attention
from timm.layers.drop import DropPath
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models import build_model_with_cfg, checkpoint, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

Positions = Literal["input", "every_block"]


class Block(nn.Module):
    """Attention, then one or two linear layers, each followed by the norm of the sum.

    Args:
        dim: width of a token.
        num_heads: of the attention.
        hidden: width between two linear layers; None for a single linear layer.
        drop, attn_drop, drop_path: dropout of the outputs, of the attention weights, and of whole branches.
    """

    def __init__(
        self, dim: int, num_heads: int, hidden: int | None, drop: float, attn_drop: float, drop_path: float
    ) -> None:
        super().__init__()
        self.attn = Attention(dim, num_heads=num_heads, qkv_bias=True, attn_drop=attn_drop, proj_drop=drop)
        self.norm1 = nn.LayerNorm(dim)
        if hidden is None:
            self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(drop))
        else:
            self.mlp = nn.Sequential(
                nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(drop), nn.Linear(hidden, dim), nn.Dropout(drop)
            )
        self.norm2 = nn.LayerNorm(dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Tokens ``(B, N, C)``; positions, if given, are added to what queries, keys and values are made from."""
        attended = self.attn(tokens if positions is None else tokens + positions)
        tokens = self.norm1(tokens + self.drop_path(attended))
        out: Tensor = self.norm2(tokens + self.drop_path(self.mlp(tokens)))
        return out


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight.flatten(1))


class ARViT(nn.Module):
    """The network; arguments that timm's ViT has are called as there.

    Args:
        mlp_hidden: width between the two linear layers of a block; None for one layer.
        positions: where the sinusoids are added: to the input, or in every block.
        position_scale: what they are multiplied with.
        global_pool: token: the head reads all tokens, laid end to end; avg: their mean.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 256,
        patch_size: int = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 516,
        depth: int = 6,
        num_heads: int = 12,
        mlp_hidden: int | None = None,
        positions: Positions = "input",
        position_scale: float = 1.0,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if embed_dim % 4 or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} needs to be divisible by 4 and by num_heads {num_heads}")
        self.in_chans, self.num_classes = in_chans, num_classes
        self.num_features = self.embed_dim = embed_dim
        self.num_prefix_tokens = 0
        self.positions = positions
        self.grad_checkpointing = False
        self.patch_embed = PatchEmbed(img_size=img_size, patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        table = build_sincos2d_pos_embed(list(self.patch_embed.grid_size), dim=embed_dim, interleave_sin_cos=False)
        self.register_buffer("pos_embed", table[None] * position_scale, persistent=False)
        rates = [drop_path_rate * index / max(1, depth - 1) for index in range(depth)]
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, mlp_hidden, proj_drop_rate, attn_drop_rate, rate) for rate in rates
        )
        self.norm = nn.Identity()  # every block ends in a norm
        self.feature_info = [
            {"module": f"blocks.{index}", "num_chs": embed_dim, "reduction": patch_size} for index in range(depth)
        ]
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.apply(_initialise)

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """Positions are no parameters here."""
        return set()

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameters by depth."""
        return {"stem": r"^patch_embed", "blocks": [(r"^blocks\.(\d+)", None)]}

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks again in the backward pass rather than keep what they computed."""
        self.grad_checkpointing = enable

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head; 0 classes for none."""
        if global_pool is not None:
            if global_pool not in ("token", "avg", ""):
                raise ValueError(f"global_pool is {global_pool!r}; ARViT has token (all of them), avg, or '' for none")
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head_hidden_size = self.embed_dim * (self.patch_embed.num_patches if self.global_pool == "token" else 1)
        self.head: nn.Module = nn.Linear(self.head_hidden_size, num_classes) if num_classes else nn.Identity()

    def _embed(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens ``(B, N, C)``, and the positions that every block adds."""
        tokens = self.patch_embed(images)
        positions = self.get_buffer("pos_embed").to(tokens.dtype)
        return (tokens + positions, None) if self.positions == "input" else (tokens, positions)

    def forward_features(self, images: Tensor) -> Tensor:
        """Output tokens ``(B, N, C)``."""
        tokens, positions = self._embed(images)
        for block in self.blocks:
            tokens = checkpoint(block, tokens, positions) if self.grad_checkpointing else block(tokens, positions)
        return tokens

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """timm's contract: the output of blocks as maps, after that of the last block as tokens."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is {output_fmt!r}; it needs to be NCHW or NLC")
        wanted, last = feature_take_indices(len(self.blocks), indices)
        tokens, positions = self._embed(x)
        found: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            if stop_early and index > last:
                break
            tokens = checkpoint(block, tokens, positions) if self.grad_checkpointing else block(tokens, positions)
            if index in wanted:
                found.append(tokens)
        if output_fmt == "NCHW":
            height, width = self.patch_embed.grid_size
            found = [each.transpose(1, 2).unflatten(2, (height, width)).contiguous() for each in found]
        return found if intermediates_only else (tokens, found)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> Sequence[int]:
        """Drop the blocks after the last one that is wanted."""
        wanted, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_head:
            self.reset_classifier(0, "")
        return list(wanted)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores of output tokens."""
        if self.global_pool == "avg":
            tokens = tokens.mean(1)
        elif self.global_pool == "token":
            tokens = tokens.flatten(1)
        tokens = self.head_drop(tokens)
        scores: Tensor = tokens if pre_logits else self.head(tokens)
        return scores

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        return self.forward_head(self.forward_features(images))


def _settings(**more: Any) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, 256, 256),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "apache-2.0",
        **more,
    }


default_cfgs = generate_default_cfgs(
    {
        "arvit_patch16_256.untrained": _settings(),
        "arvit_reference_patch16_256.untrained": _settings(),
        "arvit_gram_reference_patch16_256.untrained": _settings(),
        "vit_tiny_d6_patch16_256.untrained": _settings(),
    }
)


def _create(kind: type[nn.Module], variant: str, pretrained: bool, **arguments: Any) -> Any:
    return build_model_with_cfg(
        kind, variant, pretrained, feature_cfg={"out_indices": 3, "feature_cls": "getter"}, **arguments
    )


@register_model
def arvit_patch16_256(pretrained: bool = False, **more: Any) -> Any:
    """As published: one linear layer a block, positions added to the input. 8.9 million parameters with 4 classes."""
    return _create(ARViT, "arvit_patch16_256", pretrained, **more)


@register_model
def arvit_reference_patch16_256(pretrained: bool = False, **more: Any) -> Any:
    """As released: d to 256 to d, 0.3 of the positions in every block, dropout 0.1. 8.9 million with 4 classes."""
    return _create(ARViT, "arvit_reference_patch16_256", pretrained, **{**_RELEASED, **more})


@register_model
def arvit_gram_reference_patch16_256(pretrained: bool = False, **more: Any) -> Any:
    """As released for the similarity loss: 512 wide with 8 heads. 8.8 million parameters with 4 classes."""
    arguments = {**_RELEASED, "embed_dim": 512, "num_heads": 8, **more}
    return _create(ARViT, "arvit_gram_reference_patch16_256", pretrained, **arguments)


@register_model
def vit_tiny_d6_patch16_256(pretrained: bool = False, **more: Any) -> Any:
    """The comparison: ViT-Tiny's width (192) with ARViT's 6 blocks and 12 heads. 2.9 million with 4 classes."""
    arguments = {"img_size": 256, "patch_size": 16, "embed_dim": 192, "depth": 6, "num_heads": 12, **more}
    return _create(VisionTransformer, "vit_tiny_d6_patch16_256", pretrained, **arguments)


_RELEASED = {
    "mlp_hidden": 256,
    "positions": "every_block",
    "position_scale": 0.3,
    "proj_drop_rate": 0.1,
    "attn_drop_rate": 0.1,
}
