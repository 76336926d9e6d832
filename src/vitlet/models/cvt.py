"""CvT, a vision transformer in three stages with convolutions before its tokens and before its attention.

Wu, Xiao, Codella, Liu, Dai, Yuan, Zhang: "CvT: Introducing Convolutions to Vision Transformers", ICCV 2021. Every stage
starts with a strided convolution; queries, keys and values come from depth-wise 3x3 convolutions, keys and values at a
stride of 2; there are no positions, and the class token lives in the last stage only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from timm.layers.drop import calculate_drop_path_rates
from timm.layers.pool1d import global_pool_nlc
from torch import Tensor, nn

from vitlet.models.cvt_layers import (
    ConvAttention,
    ConvBlock,
    ConvEmbed,
    OutsideEpsilonNorm,
    SharedConvAttention,
    Stage,
)
from vitlet.models.layered import LayeredModel, as_map, as_pair
from vitlet.models.registered import register, timm_cfg
from vitlet.values import ImageSize


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class CvT(LayeredModel):
    """The model; arguments that timm's models have are called as there. Any image size, square or not.

    Args:
        img_size: intended image size; only stored.
        global_pool: token: the head reads the class token; avg: the mean of the others. By default what there is.
        embed_dims, depths, num_heads: of the stages.
        kernels, strides, paddings: of the stages' convolutional embeddings.
        kv_stride: stride of the convolutions before keys and values.
        class_token: as published, or none.
        act_layer: gelu as in Hugging Face's transformers; the original code trained with quick_gelu.
        norm_layer, attn_layer: of the embeddings and blocks.
        final_norm: a norm before the head.
        weight_init: trunc_normal, as published, or torch: what torch's layers begin with.
    """

    LAYERS = "stages"

    def __init__(
        self,
        img_size: int | ImageSize = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        embed_dims: Sequence[int] = (64, 192, 384),
        depths: Sequence[int] = (1, 2, 10),
        num_heads: Sequence[int] = (1, 3, 6),
        kernels: Sequence[int] = (7, 3, 3),
        strides: Sequence[int] = (4, 2, 2),
        paddings: Sequence[int] = (2, 1, 1),
        mlp_ratio: float = 4.0,
        kv_stride: int = 2,
        class_token: bool = True,
        act_layer: str = "gelu",
        norm_layer: type[nn.Module] = nn.LayerNorm,
        attn_layer: type[ConvAttention | SharedConvAttention] = ConvAttention,
        final_norm: bool = True,
        weight_init: Literal["trunc_normal", "torch"] = "trunc_normal",
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        for dim, heads in zip(embed_dims, num_heads, strict=True):
            if dim % heads:
                raise ValueError(f"a width of {dim} is not divisible by its {heads} heads")
        self.img_size = as_pair(img_size)
        self.in_chans, self.num_classes = in_chans, num_classes
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dims[-1]
        self.num_prefix_tokens = int(class_token)
        self.pools = ("token", "avg", "") if class_token else ("avg", "")
        rates: Iterator[Any] = iter(calculate_drop_path_rates(drop_path_rate, sum(depths)))
        self.feature_info: list[dict[str, Any]] = []
        stages, channels, reduction = [], in_chans, 1
        for index, dim in enumerate(embed_dims):
            embed = ConvEmbed(channels, dim, kernels[index], strides[index], paddings[index], norm_layer)
            rest = (mlp_ratio, kv_stride, act_layer, proj_drop_rate, attn_drop_rate)
            kinds = (norm_layer, attn_layer)
            blocks = [ConvBlock(dim, num_heads[index], *rest, next(rates), *kinds) for _ in range(depths[index])]
            stages.append(Stage(embed, dim, blocks, class_token and index == len(embed_dims) - 1))
            channels, reduction = dim, reduction * strides[index]
            self.feature_info.append({"module": f"stages.{index}", "num_chs": dim, "reduction": reduction})
        self.stages = nn.ModuleList(stages)
        self.norm = norm_layer(self.num_features) if final_norm else nn.Identity()
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool or ("token" if class_token else "avg"))
        if weight_init == "trunc_normal":
            self.init_weights()

    def init_weights(self) -> None:
        """Linear layers and the class token from a narrow normal distribution."""
        self.apply(_initialise)
        for stage in self._stages():
            if stage.cls_token is not None:
                nn.init.trunc_normal_(stage.cls_token, std=0.02)

    def _stages(self) -> list[Stage]:
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """The class token."""
        return {f"stages.{len(self.stages) - 1}.cls_token"}

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameters by depth."""
        blocks = [
            (r"^stages\.(\d+)\.(?:patch_embed|cls_token)", (-1,)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^norm", (99999,)),
        ]
        return {"stem": r"^stages\.0\.patch_embed", "blocks": r"^stages\.(\d+)" if coarse else blocks}

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute blocks again in the backward pass; their batch norms then see every batch twice."""
        for stage in self._stages():
            stage.grad_checkpointing = enable

    def run_layer(self, layer: nn.Module, given: Tensor, positions: Tensor | None) -> tuple[Tensor, tuple[int, int]]:
        """A stage, from a map to tokens."""
        tokens, size = layer(given)
        return tokens, size

    def between(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """Stages are given maps."""
        return as_map(tokens, size)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores of output tokens ``(B, P + N, C)``."""
        pooled = global_pool_nlc(tokens, pool_type=self.global_pool, num_prefix_tokens=self.num_prefix_tokens)
        scores: Tensor = self.head_drop(pooled)
        if not pre_logits:
            scores = self.head(scores)
        return scores


_FROM_HUGGING_FACE = (
    (r"^(?:cvt\.)?encoder\.", ""),
    (r"\.embedding\.convolution_embeddings\.projection\.", ".patch_embed.proj."),
    (r"\.embedding\.convolution_embeddings\.normalization\.", ".patch_embed.norm."),
    (r"\.layers\.(\d+)\.", r".blocks.\1."),
    (r"\.convolution_projection_([qkv])\w+\.convolution_projection\.convolution\.", r".conv_proj_\1.conv."),
    (r"\.convolution_projection_([qkv])\w+\.convolution_projection\.normalization\.", r".conv_proj_\1.bn."),
    (r"\.projection_([qkv])\w+\.", r".proj_\1."),
    (r"\.attention\.attention\.", ".attn."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
)


def checkpoint_filter_fn(weights: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Weights of Hugging Face's transformers, or of the original code, under the names that they have here."""
    weights = weights.get("state_dict", weights.get("model", weights))
    from_hugging_face = any("convolution_embeddings" in name for name in weights)
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        name = re.sub(r"^stage(\d+)\.", r"stages.\1.", name.removeprefix("module."))
        if from_hugging_face:
            for pattern, replacement in _FROM_HUGGING_FACE:
                name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


_CFG = timm_cfg(224, first_conv="stages.0.patch_embed.proj", crop_pct=0.875)
_KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "cvt_13": ({}, "CvT-13: 1, 2 and 10 blocks. 19,997,480 parameters with 1000 classes."),
    "cvt_21": ({"depths": (1, 4, 16)}, "CvT-21: 1, 4 and 16 blocks. 31,622,696 parameters with 1000 classes."),
}
for _name, (_sizes, _about) in _KINDS.items():
    _cfg = {**_CFG, "hf_hub_id": f"microsoft/{_name.replace('_', '-')}"}
    register(__name__, f"{_name}.microsoft_in1k", CvT, _sizes, _cfg, _about, filter_fn=checkpoint_filter_fn)

_LUCIDRAINS = {
    "paddings": (3, 1, 1),
    "class_token": False,
    "norm_layer": OutsideEpsilonNorm,
    "attn_layer": SharedConvAttention,
    "final_norm": False,
    "weight_init": "torch",
}
register(
    __name__,
    "cvt_13_lucidrains",
    CvT,
    _LUCIDRAINS,
    _CFG,
    "CvT-13 as in lucidrains' vit-pytorch and the experiments of DRLoc: keys and values share a convolution, tokens are"
    " averaged. 19,589,796 parameters with 100 classes.",
)
