"""Attention maps out of any network, without changing what it computes and without per-model code.

Attention is two things to PyTorch: a call of ``scaled_dot_product_attention``, or a softmax over the last axis of
scores. `vitlet.survey` finds the calls of a network whose result is a map over the token grid. A `Tap` then watches the
one module that makes such a call: a small map is computed openly and handed on, of a large one only queries and keys
are kept. All other modules run as they are, on their fused kernels. Nothing enters a state dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

EXPLICIT_TOKENS = 784
"""Up to this many tokens the map is computed openly; beyond, it is never written down."""


class Caught(NamedTuple):
    """A map, or what it can be made of."""

    maps: Tensor | None
    query: Tensor | None = None
    key: Tensor | None = None


def open_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """What ``scaled_dot_product_attention`` computes, and the map (before dropout)."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = (query * scale) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout_p).to(value.dtype) @ value, weights


def is_attention(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether this call turns scores into attention weights."""
    if function is F.scaled_dot_product_attention:
        return True
    if function is not F.softmax and function is not torch.softmax and function is not torch.Tensor.softmax:
        return False
    scores = args[0] if args else kwargs["input"]
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return scores.ndim >= 3 and axis in (-1, scores.ndim - 1)


class _Watch(TorchFunctionMode):
    """Catches the call number ``wanted`` among the attention calls made while it is entered."""

    def __init__(self, found: list[Caught], wanted: int, explicit_tokens: int) -> None:
        super().__init__()
        self.found, self.left, self.explicit_tokens = found, wanted, explicit_tokens

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_attention(func, args, kwargs):
            return func(*args, **kwargs)
        self.left -= 1
        if self.left != -1:
            return func(*args, **kwargs)
        if func is not F.scaled_dot_product_attention:
            maps = func(*args, **kwargs)
            self.found.append(Caught(maps))
            return maps
        query, key, masked, scale = plain_arguments(*args, **kwargs)
        if query.shape[-2] > self.explicit_tokens and not masked and query.shape == key.shape:
            self.found.append(Caught(None, query * scale, key))
            return func(*args, **kwargs)
        out, maps = open_attention(*args, **kwargs)
        self.found.append(Caught(maps))
        return out


def plain_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, bool, float]:
    """Query, key, whether some pairs are treated differently, and the scale."""
    return query, key, attn_mask is not None or is_causal, query.shape[-1] ** -0.5 if scale is None else scale


class Tap:
    """Stands in for the ``forward`` of the module that makes one attention call, for good.

    The module computes the same way whether or not anybody listens, so that what gradient checkpointing computes
    again is what it computed before.
    """

    def __init__(self, module: nn.Module, call: int, explicit_tokens: int) -> None:
        self.module, self.call, self.explicit_tokens = module, call, explicit_tokens
        self.inner = module.forward
        self.listening = False
        self.kept: list[Caught] = []
        module.forward = self.forward  # in the instance: a deep copy gets a tap of its own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass, watched."""
        found: list[Caught] = []
        with _Watch(found, self.call, self.explicit_tokens):
            out = self.inner(*args, **kwargs)
        if self.listening:
            self.kept = found
        return out

    def take(self) -> Caught:
        """What was caught, once."""
        kept, self.kept = self.kept, []
        return kept[0]

    def remove(self) -> None:
        """Give the module its own forward pass back (last tap first)."""
        if getattr(self.inner, "__self__", None) is self.module:
            del self.module.forward
        else:
            self.module.forward = self.inner


@contextmanager
def listening(taps: Sequence[Tap]) -> Iterator[None]:
    """Keep what the taps catch."""
    for tap in taps:
        tap.listening = True
    try:
        yield
    finally:
        for tap in taps:
            tap.listening = False
