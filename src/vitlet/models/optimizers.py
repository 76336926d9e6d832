"""Optimizers by timm's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timm.optim._optim_factory import create_optimizer_v2, list_optimizers

from vitlet.errors import VitletError, first_line, nearest


def optimizer_by_name(
    name: str, groups: Sequence[Mapping[str, Any]], *, lr: float, betas: tuple[float, ...] | None = None
) -> torch.optim.Optimizer:
    """An optimizer for groups of parameters, each with its own weight decay."""
    chosen: dict[str, Any] = {"betas": betas} if betas else {}
    if name == "adamw":  # one kernel for all parameters
        return torch.optim.AdamW([dict(group) for group in groups], lr=lr, fused=True, **chosen)
    try:
        optimizer: torch.optim.Optimizer = create_optimizer_v2([dict(group) for group in groups], name, lr=lr, **chosen)
    except Exception as problem:  # timm's factory complains in many types
        raise VitletError(
            f"the optimizer {name!r} cannot be made: {first_line(problem)}."
            f"{nearest(name, [str(known) for known in list_optimizers()])} Use one that timm knows, such as adamw,"
            " muon, sgd, lion."
        ) from problem
    return optimizer
