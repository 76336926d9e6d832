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

from vitlet.rowblocks import Attended, attend

EXPLICIT_TOKENS = 784
"""Up to this many tokens the map is computed openly; beyond, it is never written down."""


class Caught(NamedTuple):
    """A map, or what it can be made of."""

    maps: Tensor | None
    attended: Attended | None = None


class SdpaCall(NamedTuple):
    """The arguments of ``scaled_dot_product_attention``, by its names and in its order."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def factor(self) -> float:
        """What scores are multiplied with."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def plain(self) -> bool:
        """Whether every weight is used, as it is, for queries, keys and values of one shape ``(B, h, T, d)``."""
        alike = self.query.shape == self.key.shape == self.value.shape and self.query.ndim == 4
        return alike and self.attn_mask is None and not self.is_causal and not self.dropout_p

    def openly(self) -> tuple[Tensor, Tensor]:
        """What the call computes, and the map (before dropout)."""
        key, value, mask = self.key, self.value, self.attn_mask
        if self.enable_gqa:
            groups = self.query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = (self.query * self.factor) @ key.transpose(-2, -1)
        if self.is_causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1)
        return F.dropout(weights, self.dropout_p).to(value.dtype) @ value, weights


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
        call = SdpaCall(*args, **kwargs)
        if call.query.shape[-2] > self.explicit_tokens and call.plain:
            out, attended = attend(call.query, call.key, call.value, call.factor)
            self.found.append(Caught(None, attended))
            return out
        out, maps = call.openly()
        self.found.append(Caught(maps))
        return out


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
