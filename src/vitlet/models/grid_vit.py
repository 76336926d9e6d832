"""A ViT whose tokens keep their rows and columns, so that its MLPs can convolve; images of any size at run time.

All that a ViT of timm can do is inherited. Tokens run through the blocks as ``(B, H, W, C)``: a depth-wise convolution
sees them as a map in channels-last layout without a copy. The positional embedding is interpolated to the grid that the
images have, and is the learned one at the size that the model was built for.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from vitlet.models.mimetic import mimetic_init

MOST_UNFUSED = 256
"""Up to this many tokens a CPU computes attention as plain products.

Its fused kernel is slower in bfloat16, and as fast in 32 bits: ``python benchmarks/small_layers.py``.
"""


class TokenLinear(nn.Linear):
    """A linear layer on tokens ``(..., C)``; in 32 bits on a CPU it is run as a 1x1 convolution.

    torch sends a product in 32 bits to MKL, which is slow on processors that are not Intel's, and a convolution to
    oneDNN, which is not: ``python benchmarks/small_layers.py``. A graph that is exported or compiled keeps the plain
    product.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        wide = tokens.device.type == "cpu" and tokens.dtype is torch.float32 and tokens.ndim > 2
        if not wide or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return F.linear(tokens, self.weight, self.bias)
        rows = tokens.flatten(1, -2).unsqueeze(2).permute(0, 3, 1, 2)  # B, C, N, 1, in channels-last layout: no copy
        out = F.conv2d(rows, self.weight[:, :, None, None], self.bias)
        return out.permute(0, 2, 3, 1).reshape(*tokens.shape[:-1], self.out_features)

    @classmethod
    def like(cls, layer: Any) -> TokenLinear:
        """A fresh one as large as a given linear layer."""
        place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        return cls(layer.in_features, layer.out_features, bias=layer.bias is not None, **place)


class DepthwiseMlp(Mlp):
    """timm's MLP with a depth-wise 3x3 convolution before its activation, as in PVTv2; on tokens ``(B, H, W, C)``."""

    def __init__(self, in_features: int, hidden_features: int, **more: Any) -> None:
        super().__init__(in_features, hidden_features, **more)
        self.fc1, self.fc2 = TokenLinear.like(self.fc1), TokenLinear.like(self.fc2)
        kept: dict[str, Any] = {name: more.get(name) for name in ("device", "dtype")}
        self.conv = nn.Conv2d(hidden_features, hidden_features, 3, padding=1, groups=hidden_features, **kept)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.fc1(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = self.norm(self.drop1(self.act(x)))
        out: Tensor = self.drop2(self.fc2(x))
        return out


class GridAttention(Attention):
    """timm's attention; plain products where those are faster than the fused kernel."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.qkv, self.proj = TokenLinear.like(self.qkv), TokenLinear.like(self.proj)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        count = x.shape[1]
        if x.device.type != "cpu" or count > MOST_UNFUSED or attn_mask is not None or is_causal:
            fused: Tensor = super().forward(x, attn_mask=attn_mask, is_causal=is_causal)
            return fused
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)  # B, h, N, d
        scores = (self.q_norm(query) * self.scale) @ self.k_norm(key).transpose(-2, -1)
        mixed = self.attn_drop(scores.softmax(dim=-1)) @ value
        out: Tensor = self.proj_drop(self.proj(self.norm(mixed.transpose(1, 2).flatten(2))))
        return out


class GridBlock(Block):
    """timm's block on tokens ``(B, H, W, C)``."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        mixed = self.attn(self.norm1(x).flatten(1, 2), attn_mask=attn_mask, is_causal=is_causal)
        x = x + self.drop_path1(self.ls1(mixed.view(x.shape)))
        out: Tensor = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return out


class GridViT(VisionTransformer):
    """timm's ViT with mean pooling on a token grid of any size.

    Args:
        embed_layer: makes the patch embedding, a `Tokenizer`.
        mimetic: initialise attention by `mimetic_init`.
        more: timm's arguments, such as ``embed_dim``, ``depth``, ``num_heads``, ``mlp_ratio``, ``drop_path_rate``.
    """

    def __init__(self, *, embed_layer: Any, mimetic: bool = False, **more: Any) -> None:
        for name in ("class_token", "reg_tokens", "patch_drop_rate"):
            if more.get(name):
                raise ValueError(f"{name} is {more[name]!r}; tokens in rows and columns allow none, leave it out")
        parts = {"block_fn": GridBlock, "attn_layer": GridAttention, "mlp_layer": DepthwiseMlp}
        always = {"embed_layer": embed_layer, "class_token": False, "dynamic_img_size": True}
        super().__init__(**{"global_pool": "avg", "mlp_ratio": 2.0, **parts, **more, **always})
        if mimetic:
            for layer in self.modules():
                if isinstance(layer, GridAttention):
                    mimetic_init(layer)

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Tokens ``(B, H, W, C)`` with positions, in the precision that they had."""
        if self.pos_embed is None:
            return x
        size = [int(x.shape[1]), int(x.shape[2])]
        positions = resample_abs_pos_embed(
            self.pos_embed, new_size=size, old_size=list(self.patch_embed.grid_size), num_prefix_tokens=0
        )
        out: Tensor = self.pos_drop(x + positions.unflatten(1, size).to(x.dtype))
        return out

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Tokens after the last block, ``(B, N, C)``."""
        features: Tensor = super().forward_features(x, attn_mask, is_causal)
        return features.flatten(1, 2)

    def forward_intermediates(  # type: ignore[override]  # timm's less prefix tokens, dictionaries and masks
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """timm's contract: the outputs of blocks as maps, after those of the last block as tokens."""
        both: Any = super().forward_intermediates(x, indices, norm=norm, stop_early=stop_early, output_fmt=output_fmt)
        final, found = both
        maps = [one.flatten(1, 2) for one in found] if output_fmt == "NLC" else found
        return maps if intermediates_only else (final.flatten(1, 2), maps)
