"""Registration of vitlet's models with timm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

WeightFilter = Callable[[Mapping[str, Any], nn.Module], dict[str, Tensor]]
"""From the names of a file's weights to those of the model."""


def timm_cfg(side: int, **more: Any) -> dict[str, Any]:
    """timm's description of a model for square images of this side; ImageNet's statistics unless said otherwise."""
    return {
        "num_classes": 1000,
        "input_size": (3, side, side),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "classifier": "head",
        "license": "apache-2.0",
        **more,
    }


def register(
    module: str,
    name: str,
    kind: type[nn.Module],
    sizes: Mapping[str, Any],
    cfg: Mapping[str, Any],
    about: str,
    *,
    filter_fn: WeightFilter | None = None,
    maps: int = 3,
) -> None:
    """Let ``timm.create_model(name)`` build a model, and the module have a function of that name that does.

    Args:
        module: that the model belongs to.
        name: name of the model; with the tag of its weights, such as ``cvt_13.microsoft_in1k``, where there are any.
        kind: its class.
        sizes: arguments of the class, unless others are given.
        cfg: as `timm_cfg` makes it.
        about: the docstring of the function.
        filter_fn: for released weights.
        maps: how many of the last maps it gives with ``features_only``.
    """
    name, _, tag = name.partition(".")

    def build(pretrained: bool = False, **more: Any) -> Any:
        return build_model_with_cfg(
            kind,
            name,
            pretrained,
            pretrained_filter_fn=filter_fn,
            feature_cfg={"out_indices": maps, "feature_cls": "getter"},
            **{**sizes, **more},
        )

    build.__name__ = build.__qualname__ = name
    build.__module__, build.__doc__ = module, about
    names = vars(sys.modules[module])
    names[name] = build
    names.setdefault("default_cfgs", {}).update(generate_default_cfgs({f"{name}.{tag or 'untrained'}": dict(cfg)}))
    register_model(build)
