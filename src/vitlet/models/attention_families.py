"""Families of timm whose attention is a map over the token grid, found by ``benchmarks/attention_models.py``.

Surveying a model takes seconds and there are 1,351, so that ``vitlet models --attention`` reads this list instead. It
is no permission: what a model really has is surveyed when it is used.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

WHOLE_GRID = "whole grid"
WINDOWS = "windows"

_WHOLE = (
    *("arvit", "beit", "cait", "cpubone", "csatv2", "deepseek_vit", "deit", "efficientformer"),
    *("efficientformer_v2", "eva", "iformer", "levit", "mvitv2", "naflexvit", "nextvit", "pit", "pvt_v2"),
    *("qwen3_vit", "shvit", "t2t", "tnt", "twins", "vision_transformer", "vision_transformer_hybrid"),
    *("vision_transformer_relpos", "vitamin", "volo"),
)
_WINDOWED = (
    *("davit", "efficientvit_msra", "gcvit", "hieradet_sam2", "maxxvit", "swin_transformer"),
    *("swin_transformer_v2", "swin_transformer_v2_cr", "tiny_vit"),
)
FAMILIES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_WHOLE, ("*", WHOLE_GRID)),
    **dict.fromkeys(_WINDOWED, ("*", WINDOWS)),
    "fastvit": ("fastvit_[ms][ac]*", WHOLE_GRID),
    "lowformer": ("lowformer_[!e]*", WHOLE_GRID),
    "metaformer": ("caformer_*", WHOLE_GRID),
    "mobilenetv3": ("mobilenetv4_hybrid_*", WHOLE_GRID),
    "mobilevit": ("mobilevit_*", WINDOWS),
    "small": ("[!r]*", WHOLE_GRID),  # all but the ResNets
}
"""Module of timm -> its names with maps, as a pattern, and what the maps cover (windows: in some layers)."""


def has_attention_maps(name: str, family: str) -> bool:
    """Whether a model of this name and family is known to have them."""
    pattern, _ = FAMILIES.get(family, ("", ""))
    return fnmatchcase(name, pattern)
