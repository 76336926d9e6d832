"""Attention maps out of any model, without changing what it computes and without per-model code.

Attention is two things to PyTorch: a call of ``scaled_dot_product_attention``, or a softmax over the last axis of
scores. `find_attention` finds the calls of a model whose result is a map over the grid. An `AttentionTap` then
watches the one module that makes such a call: a small map is computed openly and handed on, of a large one only queries
and keys are kept. All other modules run as they are, on their fused kernels. Nothing enters a state dict.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitlet.errors import VitletError
from vitlet.tokens.streamed_attention import Attended, attend

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
        """Scale of the attention scores."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    @property
    def plain(self) -> bool:
        """Whether every weight is used, as it is, for queries, keys and values of one shape ``(B, h, T, d)``."""
        alike = self.query.shape == self.key.shape == self.value.shape and self.query.ndim == 4
        return alike and self.attn_mask is None and not self.is_causal and not self.dropout_p

    def openly(self) -> tuple[Tensor, Tensor]:
        """Output of the attention call, and its map (before dropout)."""
        key, value, mask = self.key, self.value, self.attn_mask
        if self.enable_gqa:
            groups = self.query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = (self.query * self.factor) @ key.transpose(-2, -1)
        if self.is_causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is None:
            weights = scores.softmax(-1)
        else:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            blind = scores.amax(-1, keepdim=True) == -torch.inf  # who sees nobody gets nothing, as from fused kernels
            weights = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
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
    """Catches some of the attention calls made while it is entered.

    Args:
        wanted: numbers of the calls, each with the most tokens of which its map is computed openly.
        found: where to put what is caught, by number.
    """

    def __init__(self, wanted: Mapping[int, int], found: dict[int, Caught]) -> None:
        super().__init__()
        self.wanted, self.found, self.seen = wanted, found, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_attention(func, args, kwargs):
            return func(*args, **kwargs)
        number = self.seen
        self.seen += 1
        if number not in self.wanted:
            return func(*args, **kwargs)
        if func is not F.scaled_dot_product_attention:
            maps = func(*args, **kwargs)
            self.found[number] = Caught(maps)
            return maps
        call = SdpaCall(*args, **kwargs)
        if call.query.shape[-2] > self.wanted[number] and call.plain:
            out, attended = attend(call.query, call.key, call.value, call.factor)
            self.found[number] = Caught(None, attended)
            return out
        out, maps = call.openly()
        self.found[number] = Caught(maps)
        return out


class _Passing(threading.local):
    """Whether taps let everything pass by in this thread."""

    now = False


_passing = _Passing()


@contextmanager
def untapped() -> Iterator[None]:
    """Inside, tapped modules compute as if they had no tap."""
    before, _passing.now = _passing.now, True
    try:
        yield
    finally:
        _passing.now = before


class _Tapped:
    """Stands in for the ``forward`` of a module as long as it has taps.

    The module computes the same way whether or not anybody listens, so that what gradient checkpointing computes
    again is what it computed before.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.inner = module, module.forward
        self.taps: list[AttentionTap] = []
        module.forward = self.forward  # in the instance: a deep copy of the module gets one of its own

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass, watched."""
        if _passing.now or not self.taps:
            return self.inner(*args, **kwargs)
        found: dict[int, Caught] = {}
        with _Watch({tap.call: tap.explicit_tokens for tap in self.taps}, found):
            out = self.inner(*args, **kwargs)
        for tap in self.taps:
            if tap.listening:
                tap.kept = found.get(tap.call)
        return out

    def remove(self, tap: AttentionTap) -> None:
        """Forget a tap; without any the module has its own forward pass back."""
        if tap in self.taps:
            self.taps.remove(tap)
        if self.taps or getattr(vars(self.module).get("forward"), "__self__", None) is not self:
            return
        its_own = getattr(self.inner, "__self__", None) is self.module
        if its_own:
            del self.module.forward
        else:
            self.module.forward = self.inner

    def __getstate__(self) -> dict[str, Any]:
        # Whoever listens all the time listens to this module, not to its copies.
        return vars(self) | {"taps": [tap for tap in self.taps if not tap.listening]}


class AttentionTap:
    """Keeps what one attention call of a module computes with, while it is ``listening``."""

    def __init__(self, module: nn.Module, call: int, explicit_tokens: int) -> None:
        self.call, self.explicit_tokens = call, explicit_tokens
        self.listening = False
        self.kept: Caught | None = None
        standing = getattr(vars(module).get("forward"), "__self__", None)
        self.tapped = standing if isinstance(standing, _Tapped) else _Tapped(module)
        self.tapped.taps.append(self)

    def take(self) -> Caught:
        """The recorded map; cleared by this call."""
        kept, self.kept = self.kept, None
        if kept is None:
            raise VitletError(
                f"no attention was caught in {type(self.tapped.module).__name__}: it made no attention call number"
                f" {self.call + 1} in the last forward pass, as it did when the task was built. Build the task again"
                " where the model has changed since."
            )
        return kept

    def remove(self) -> None:
        """Leave the module alone."""
        self.tapped.remove(self)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"kept": None}  # what was caught is part of a graph that cannot be copied


@contextmanager
def listening(taps: Collection[AttentionTap]) -> Iterator[None]:
    """Keep what the taps catch."""
    for tap in taps:
        tap.listening = True
    try:
        yield
    finally:
        for tap in taps:
            tap.listening = False
