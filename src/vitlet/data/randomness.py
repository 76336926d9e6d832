"""Randomness without state: every number is a function of what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_UInt64 = np.ndarray[Any, np.dtype[np.uint64]]

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix_seed(*parts: int) -> int:
    """One seed from several numbers, well spread: neighbours get unrelated streams."""
    mixed = _GAMMA
    for part in parts:  # a step of splitmix64 for each part
        mixed = (mixed ^ (part + _GAMMA)) * _FIRST % 2**64
        mixed = (mixed ^ (mixed >> 27)) * _SECOND % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63


def keyed_uniforms(count: int, seed: int, epochs: Sequence[int], indices: Sequence[int]) -> Tensor:
    """``(B, count)`` numbers in [0, 1); row b is a function of (seed, epochs[b], indices[b]) alone."""
    mixed = np.full(len(indices), mix_seed(seed), dtype=np.uint64)
    mixed = _mix(_mix(mixed, np.asarray(epochs, dtype=np.uint64)), np.asarray(indices, dtype=np.uint64))
    drawn = _mix(mixed[:, None], np.arange(count, dtype=np.uint64)[None])
    return torch.from_numpy((drawn >> np.uint64(40)).astype(np.float32) / np.float32(2**24))


def _mix(mixed: _UInt64, part: _UInt64) -> _UInt64:
    """The step of `mix_seed` on arrays; unsigned numbers wrap around."""
    with np.errstate(over="ignore"):
        mixed = (mixed ^ (part + np.uint64(_GAMMA))) * np.uint64(_FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
        last: _UInt64 = mixed ^ (mixed >> np.uint64(31))
    return last
