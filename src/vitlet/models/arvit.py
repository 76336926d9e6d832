"""ARViT, and the six-block ViT-Tiny that it was compared with, as timm models.

Mormille, Broni-Bediako, Atsumi: "Regularizing self-attention on vision transformers with 2D spatial distance loss",
Artificial Life and Robotics 27, 2022. Six blocks with the norm after each part, fixed sinusoid positions, no class
token, and a head on all output tokens. The publication and the released code differ: see the variants below.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from timm.layers.attention import Attention
from timm.layers.drop import DropPath
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models import checkpoint
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitlet.models.layered import LayeredModel
from vitlet.models.registered import register, timm_cfg

Positions = Literal["input", "every_block"]


class PostNormBlock(nn.Module):
    """Attention, then one or two linear layers, each followed by the norm of the sum.

    Args:
        dim: width of a token.
        num_heads: number of heads of the attention.
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


class ARViT(LayeredModel):
    """The model; arguments that timm's ViT has are called as there.

    Args:
        mlp_hidden: width between the two linear layers of a block; None for one layer.
        positions: where the sinusoids are added: to the input, or in every block.
        position_scale: what they are multiplied with.
        final_norm: a norm between the last block and the head.
        global_pool: token: the head reads all tokens, laid end to end; avg: their mean.
    """

    LAYERS = "blocks"

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
        final_norm: bool = False,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if embed_dim % 4 or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} must be divisible by 4 and by num_heads {num_heads}")
        self.in_chans, self.num_classes = in_chans, num_classes
        self.num_features = self.embed_dim = embed_dim
        self.num_prefix_tokens = 0
        self.positions = positions
        self.grad_checkpointing = False
        self.patch_embed = PatchEmbed(img_size=img_size, patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        table = build_sincos2d_pos_embed(list(self.patch_embed.grid_size), dim=embed_dim, interleave_sin_cos=False)
        self.register_buffer("pos_embed", table[None] * position_scale)  # saved: they may have been switched off
        rates = [drop_path_rate * index / max(1, depth - 1) for index in range(depth)]
        self.blocks = nn.ModuleList(
            PostNormBlock(embed_dim, num_heads, mlp_hidden, proj_drop_rate, attn_drop_rate, rate) for rate in rates
        )
        self.norm = nn.LayerNorm(embed_dim) if final_norm else nn.Identity()  # every block ends in a norm of its own
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

    @property
    def head_hidden_size(self) -> int:  # type: ignore[override]
        """Inputs of the head: of all tokens, or of one."""
        return self.embed_dim * (self.patch_embed.num_patches if self.global_pool == "token" else 1)

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens ``(B, N, C)``, and the positions that every block adds."""
        tokens = self.patch_embed(images)
        positions = self.get_buffer("pos_embed").to(tokens.dtype)
        return (tokens + positions, None) if self.positions == "input" else (tokens, positions)

    def run_layer(self, layer: nn.Module, given: Tensor, positions: Tensor | None) -> tuple[Tensor, tuple[int, int]]:
        """A block."""
        tokens = checkpoint(layer, given, positions) if self.grad_checkpointing else layer(given, positions)
        return tokens, self.patch_embed.grid_size

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores of output tokens."""
        if self.global_pool == "avg":
            tokens = tokens.mean(1)
        elif self.global_pool == "token":
            tokens = tokens.flatten(1)
        tokens = self.head_drop(tokens)
        scores: Tensor = tokens if pre_logits else self.head(tokens)
        return scores


_RELEASED = {
    "mlp_hidden": 256,
    "positions": "every_block",
    "position_scale": 0.3,
    "final_norm": True,
    "proj_drop_rate": 0.1,
    "attn_drop_rate": 0.1,
}
_GRAM = {**_RELEASED, "embed_dim": 512, "num_heads": 8}
_TINY = {"img_size": 256, "patch_size": 16, "embed_dim": 192, "depth": 6, "num_heads": 12}


def _variant(name: str, kind: type[nn.Module], sizes: dict[str, Any], about: str) -> None:
    cfg = timm_cfg(256, fixed_input_size=True, first_conv="patch_embed.proj")
    register(__name__, f"{name}_patch16_256", kind, sizes, cfg, f"{about} with 4 classes.")


_variant(
    "arvit", ARViT, {}, "As published: one linear layer a block, positions added to the input. 8.9 million parameters"
)
_variant(
    "arvit_reference",
    ARViT,
    _RELEASED,
    "As released: d to 256 to d, 0.3 of the positions in every block, dropout 0.1, a final norm. 8,930,920 parameters",
)
_variant(
    "arvit_gram_reference",
    ARViT,
    _GRAM,
    "As released for the similarity loss: 512 wide with 8 heads. 8,812,548 parameters",
)
_variant(
    "vit_tiny_d6",
    VisionTransformer,
    _TINY,
    "The comparison: ViT-Tiny's width (192) with ARViT's 6 blocks and 12 heads. 2.9 million",
)
