"""T2T-ViT: soft splits in place of patches, fixed sinusoid positions, then a deep and narrow ViT.

Yuan, Chen, Wang, Yu, Shi, Jiang, Tay, Feng, Yan: "Tokens-to-Token ViT: Training Vision Transformers from Scratch on
ImageNet", ICCV 2021. The blocks are timm's own, so that everything a ViT of timm can do is done here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import adapt_input_conv
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitlet.models.registered import register, timm_cfg
from vitlet.models.soft_split import RELEASED_SPLITS, TokenMixer, TokensToToken
from vitlet.values import ImageSize


def sinusoid_positions(count: int, dim: int) -> Tensor:
    """Sinusoidal positional embedding of a sequence: ``(1, count, dim)``."""
    places = torch.arange(count, dtype=torch.float64, device="cpu")[:, None]
    pairs = torch.arange(dim, device="cpu") // 2
    angles = places / 10000 ** (2 * pairs / dim)
    table = torch.where(torch.arange(dim, device="cpu") % 2 == 0, angles.sin(), angles.cos())
    return table.float()[None]


class T2TViT(VisionTransformer):
    """The model; what is not named here is passed to timm's ViT.

    Args:
        splits: kernel, stride and padding of each soft split.
        token_dim: width of the tokens between soft splits.
        token_mixer: performer, as in the T2T-ViT-14 of the experiments with DRLoc, or transformer.
        token_drop_rate: dropout in the performers; the released code has 0.1, always.
        more: such as ``embed_dim`` [384], ``depth`` [14], ``num_heads`` [6], ``mlp_ratio`` [3], ``dynamic_img_size``,
            ``drop_path_rate``, ``class_token``, ``global_pool``.
    """

    def __init__(
        self,
        img_size: int | ImageSize = 224,
        splits: Sequence[Sequence[int]] = RELEASED_SPLITS,
        token_dim: int = 64,
        token_mixer: TokenMixer = "performer",
        token_drop_rate: float = 0.1,
        **more: Any,
    ) -> None:
        embed = partial(TokensToToken, splits=splits, token_dim=token_dim, mixer=token_mixer, drop=token_drop_rate)
        sizes = {"embed_dim": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3.0, "qkv_bias": False}
        layers = {"embed_layer": embed, "norm_layer": partial(nn.LayerNorm, eps=1e-5)}
        super().__init__(img_size=img_size, **{**sizes, **layers, **more})
        self._fix_positions()

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialize as timm's ViT, except for the sinusoidal positions and the class token."""
        super().init_weights(mode, needs_reset=needs_reset)
        if self.pos_embed is not None:
            with torch.no_grad():
                self.pos_embed.copy_(sinusoid_positions(self.pos_embed.shape[1], self.embed_dim))
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def set_input_size(self, img_size: ImageSize | None = None, patch_size: ImageSize | None = None) -> None:
        """Take images of another size from now on; positions are resampled, and stay fixed."""
        super().set_input_size(img_size, patch_size)
        self._fix_positions()

    def _fix_positions(self) -> None:
        if self.pos_embed is not None:
            self.pos_embed.requires_grad_(False)


def checkpoint_filter_fn(weights: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Weights as released, under the names that they have here, for the model's image size and channels."""
    network: Any = model
    weights = weights.get("state_dict_ema", weights.get("state_dict", weights))
    renamed = {
        name.removeprefix("module.").replace("tokens_to_token.", "patch_embed."): tensor
        for name, tensor in weights.items()
    }
    positions = renamed.get("pos_embed")
    if positions is not None and positions.shape != network.pos_embed.shape:
        renamed["pos_embed"] = resample_abs_pos_embed(
            positions, new_size=network.patch_embed.grid_size, num_prefix_tokens=network.num_prefix_tokens
        )
    _adapt_channels(renamed, network)
    return renamed


def _adapt_channels(weights: dict[str, Tensor], network: Any) -> None:
    """Make the first layer read another number of channels, as timm does with convolutions.

    The norm before it goes over channels and pixels together: its scale and shift move into the linear layer, so that
    a grey network sees exactly what it would see of a grey image in three channels.
    """
    kernel, channels = network.patch_embed.splits[0][0], network.in_chans
    first = "patch_embed.attention1."
    linear = first + ("kqv" if f"{first}kqv.weight" in weights else "attn.qkv")
    norm = f"{first}norm1"
    if f"{linear}.weight" not in weights or weights[f"{norm}.weight"].numel() == channels * kernel**2:
        return
    matrix, scale, shift = weights[f"{linear}.weight"], weights[f"{norm}.weight"], weights[f"{norm}.bias"]
    if f"{linear}.bias" in weights:
        weights[f"{linear}.bias"] = weights[f"{linear}.bias"] + matrix @ shift
    adapted = adapt_input_conv(channels, (matrix * scale).unflatten(1, (-1, kernel, kernel)))
    weights[f"{linear}.weight"] = adapted.flatten(1)
    weights[f"{norm}.weight"] = torch.ones(channels * kernel**2)
    weights[f"{norm}.bias"] = torch.zeros(channels * kernel**2)


_TINY = {"embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}
_WIDE_19 = {"embed_dim": 448, "depth": 19, "num_heads": 7}
_WIDE_24 = {"embed_dim": 512, "depth": 24, "num_heads": 8}
_PLAIN: dict[str, Any] = {"token_mixer": "transformer"}
_KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "7": ({**_TINY, "depth": 7}, "T2T-ViT-7: 256 wide, 7 deep."),
    "12": ({**_TINY, "depth": 12}, "T2T-ViT-12: 256 wide, 12 deep."),
    "14": ({}, "T2T-ViT-14: 384 wide, 14 deep. 21,545,550 parameters with 1000 classes, 21,199,050 with 100."),
    "19": (_WIDE_19, "T2T-ViT-19: 448 wide, 19 deep."),
    "24": (_WIDE_24, "T2T-ViT-24: 512 wide, 24 deep."),
    "t_14": (_PLAIN, "T2T-ViT_t-14: plain attention between the soft splits, which needs much memory."),
    "t_19": ({**_PLAIN, **_WIDE_19}, "T2T-ViT_t-19: the same, 448 wide, 19 deep."),
    "t_24": ({**_PLAIN, **_WIDE_24}, "T2T-ViT_t-24: the same, 512 wide, 24 deep."),
}
for _name, (_sizes, _about) in _KINDS.items():
    _cfg = timm_cfg(224, fixed_input_size=True)
    register(__name__, f"t2t_vit_{_name}", T2TViT, _sizes, _cfg, _about, filter_fn=checkpoint_filter_fn)
