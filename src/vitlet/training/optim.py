"""The optimizer of a run, and its precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from vitlet.config import BaseConfig
from vitlet.models.initialise import layer_decay_groups
from vitlet.objective import Objective


def make_optimizer(objective: Objective, config: BaseConfig) -> torch.optim.Optimizer:
    """AdamW; no decay on 1-D parameters nor on those the network itself excludes (position tables)."""
    model: Any = objective.backbone.model
    excluded: set[str] = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    decay: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    groups: list[dict[str, Any]] = []
    named = list(objective.named_parameters())
    if config.layer_decay is not None:
        groups = layer_decay_groups(model, weight_decay=config.weight_decay, layer_decay=config.layer_decay)
        named = [(name, parameter) for name, parameter in named if not name.startswith("backbone.")]
    for name, parameter in named:
        if parameter.requires_grad:
            without = parameter.ndim <= 1 or name.removeprefix("backbone.model.") in excluded
            (plain if without else decay).append(parameter)
    groups += [{"params": decay, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.lr, fused=True)


def make_autocast(config: BaseConfig, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Mixed precision as the settings say."""
    if not config.amp:
        return nullcontext
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[config.amp_dtype]
    return lambda: torch.autocast(device.type, dtype=dtype)
