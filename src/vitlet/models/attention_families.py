"""Families of timm whose attention is a map over the token grid, found by ``benchmarks/attention_models.py``.

Surveying a network takes seconds and there are 1,351, so that ``vitlet models --attention`` reads this list instead. It
is no permission: what a network really has is surveyed when it is used.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

WHOLE_GRID = "whole grid"
WINDOWS = "windows"

FAMILIES: dict[str, tuple[str, str]] = {
    "arvit": ("*", WHOLE_GRID),
    "beit": ("*", WHOLE_GRID),
    "cait": ("*", WHOLE_GRID),
    "cpubone": ("*", WHOLE_GRID),
    "csatv2": ("*", WHOLE_GRID),
    "davit": ("*", WINDOWS),
    "deepseek_vit": ("*", WHOLE_GRID),
    "deit": ("*", WHOLE_GRID),
    "efficientformer": ("*", WHOLE_GRID),
    "efficientformer_v2": ("*", WHOLE_GRID),
    "efficientvit_msra": ("*", WINDOWS),
    "eva": ("*", WHOLE_GRID),
    "fastvit": ("fastvit_[ms][ac]*", WHOLE_GRID),
    "gcvit": ("*", WINDOWS),
    "hieradet_sam2": ("*", WINDOWS),
    "iformer": ("*", WHOLE_GRID),
    "levit": ("*", WHOLE_GRID),
    "lowformer": ("lowformer_[!e]*", WHOLE_GRID),
    "maxxvit": ("*", WINDOWS),
    "metaformer": ("caformer_*", WHOLE_GRID),
    "mobilenetv3": ("mobilenetv4_hybrid_*", WHOLE_GRID),
    "mobilevit": ("mobilevit_*", WINDOWS),
    "mvitv2": ("*", WHOLE_GRID),
    "naflexvit": ("*", WHOLE_GRID),
    "nextvit": ("*", WHOLE_GRID),
    "pit": ("*", WHOLE_GRID),
    "pvt_v2": ("*", WHOLE_GRID),
    "qwen3_vit": ("*", WHOLE_GRID),
    "shvit": ("*", WHOLE_GRID),
    "small": ("[!r]*", WHOLE_GRID),  # all but the ResNets
    "swin_transformer": ("*", WINDOWS),
    "swin_transformer_v2": ("*", WINDOWS),
    "swin_transformer_v2_cr": ("*", WINDOWS),
    "t2t": ("*", WHOLE_GRID),
    "tiny_vit": ("*", WINDOWS),
    "tnt": ("*", WHOLE_GRID),
    "twins": ("*", WHOLE_GRID),
    "vision_transformer": ("*", WHOLE_GRID),
    "vision_transformer_hybrid": ("*", WHOLE_GRID),
    "vision_transformer_relpos": ("*", WHOLE_GRID),
    "vitamin": ("*", WHOLE_GRID),
    "volo": ("*", WHOLE_GRID),
}
"""Module of timm -> its names with maps, as a pattern, and what the maps cover (windows: in some layers)."""


def has_attention_maps(name: str, family: str) -> bool:
    """Whether a network of this name and family is known to have them."""
    pattern, _ = FAMILIES.get(family, ("", ""))
    return fnmatchcase(name, pattern)
