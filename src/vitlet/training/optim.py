"""The optimizer of a run, its learning rate, and its precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from vitlet.config import BaseConfig, RunConfig
from vitlet.models.initialise import layer_decay_groups
from vitlet.models.optimizers import optimizer_by_name
from vitlet.objective import Objective
from vitlet.objective.schedules import Schedule, WarmupCosine, WarmupQuarterCosine, WarmupStableDecay
from vitlet.training.muon import Muon, is_inner_weight


def make_optimizer(objective: Objective, config: BaseConfig) -> torch.optim.Optimizer:
    """Optimizer by timm's name; no weight decay on 1-D parameters and those that the model excludes (position tables).

    ``muon`` is for the weights inside the model; its first layer, its classifier and the tasks have AdamW.
    """
    model: Any = objective.backbone.model
    excluded: set[str] = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    decay: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    groups: list[dict[str, Any]] = []
    named = list(objective.named_parameters())
    if config.layer_decay is not None:
        groups = layer_decay_groups(model, weight_decay=config.weight_decay, layer_decay=config.layer_decay)
        named = [(name, parameter) for name, parameter in named if not name.startswith("backbone.")]
    hidden: list[nn.Parameter] = []
    ends = _ends(model) if config.opt == "muon" else ()
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        inner = name.removeprefix("backbone.model.")
        if config.opt == "muon" and inner != name and inner not in excluded and is_inner_weight(inner, parameter, ends):
            hidden.append(parameter)
        else:
            (plain if parameter.ndim <= 1 or inner in excluded else decay).append(parameter)
    groups += [{"params": decay, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    betas: tuple[float, ...] | None = getattr(config, "betas", lambda: None)()
    if config.opt == "muon":
        groups += [{"params": hidden, "weight_decay": config.weight_decay, "muon": True}]
        dtype = torch.bfloat16 if config.amp else torch.float32
        kept = [group for group in groups if group["params"]]
        return Muon(kept, lr=config.lr, betas=betas or (0.9, 0.99), dtype=dtype)
    return optimizer_by_name(config.opt, [group for group in groups if group["params"]], lr=config.lr, betas=betas)


def _ends(model: Any) -> list[str]:
    """Names of a model's first layer and of its classifier, by its configuration."""
    known = getattr(model, "pretrained_cfg", None) or {}
    found: list[str] = []
    for key in ("first_conv", "classifier"):
        names = known.get(key) or ()
        found += [names] if isinstance(names, str) else list(names)
    return found


def make_schedule(config: RunConfig) -> Schedule:
    """The learning rate by the epoch: warm-up, then half a cosine, a quarter of one, or constant and a linear end."""
    kinds: dict[str, Any] = {"cosine": WarmupCosine, "wsd": WarmupStableDecay, "quarter-cosine": WarmupQuarterCosine}
    warmup, end = config.warmup_epochs or 0.0, min(config.min_lr, config.lr)
    schedule: Schedule = kinds[config.sched](config.lr, config.epochs, warmup, end=end)
    return schedule


def make_autocast(config: BaseConfig, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Autocast context for the precision of the settings."""
    if not config.amp:
        return nullcontext
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[config.amp_dtype]
    return lambda: torch.autocast(device.type, dtype=dtype)
