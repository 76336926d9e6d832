"""A small residual network to guide others."""

from __future__ import annotations

from typing import Any

import timm
import torch

import vitlet.models  # noqa: F401, registers it
from vitlet.backbones import TimmBackbone

NARROW = {"layers": (1, 1, 1, 1), "channels": (8, 16, 24, 32)}


def residual(size: tuple[int, int], classes: int = 5, **options: Any) -> TimmBackbone:
    """With random weights, and running statistics that are not those of a new network."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = timm.create_model("resnet_for_32px", num_classes=classes, **NARROW, **options)
        model.train()(torch.randn(4, model.in_chans, *size))
    return TimmBackbone(model, img_size=size)
