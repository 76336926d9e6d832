"""What the house's networks tell timm about themselves when they are registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from timm.models import build_model_with_cfg
from torch import Tensor, nn

Filter = Callable[[Mapping[str, Any], nn.Module], dict[str, Tensor]]
"""From the names of a file's weights to those of the network."""


def settings(side: int, **more: Any) -> dict[str, Any]:
    """timm's description of a network for square images of this side; ImageNet's statistics unless said otherwise."""
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


def create(
    kind: type[nn.Module],
    variant: str,
    pretrained: bool,
    filter_fn: Filter | None = None,
    maps: int = 3,
    **arguments: Any,
) -> Any:
    """Build a registered network in timm's way; with ``features_only`` it gives its last so many maps."""
    return build_model_with_cfg(
        kind,
        variant,
        pretrained,
        pretrained_filter_fn=filter_fn,
        feature_cfg={"out_indices": maps, "feature_cls": "getter"},
        **arguments,
    )
