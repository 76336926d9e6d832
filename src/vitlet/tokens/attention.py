"""Attention maps with token coordinates, and penalties on pairs of tokens.

A map is read in one of two equal ways. Up to a few hundred tokens the softmax is there anyway and is used; beyond
that a block keeps its fused kernel and the map is never written down (`vitlet.tokens.streamed_attention`).
Letters: B images, G windows of an image (1 where attention is global), h heads, P prefix tokens, N tokens with a place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitlet.tokens.geometry import manhattan
from vitlet.tokens.streamed_attention import Attended, Penalties
from vitlet.tokens.streamed_attention import Reading as Reading

Heads = Literal["averaged", "each"]
Rows = Literal["normalised", "plain"]
Penalty = Callable[[slice, Tensor], Tensor]
"""From rows of the map, and the distances of their pairs ``(1 or B, G, R, N)``, to penalties of the same shape."""


@dataclass(frozen=True)
class AttentionShape:
    """Shape of one attention layer: heads, tokens, windows.

    Attributes:
        heads: h.
        height, width: rows and columns of the layer's token grid.
        prefix: P, the class and register tokens in front of the others.
        windows: G, 1 where every token sees every other.
        tokens: N, tokens in a window.
        uniform_distance: mean Manhattan distance, in cells, of attention that is spread evenly.
    """

    heads: int
    height: int
    width: int
    prefix: int
    windows: int
    tokens: int
    uniform_distance: float


@dataclass(frozen=True)
class AttentionMap:
    """Attention map of one layer with the coordinates of its tokens.

    Attributes:
        shape: sizes.
        coords: ``(1 or B, G, N, 2)``, row and column of each token in cells of the layer's grid.
        cells: ``(G, N)``, each token's index in the grid, row by row; None where attention is global.
        visible: ``(G, N, N)``, pairs of which both have a place and may see each other; None for all.
        maps: ``(B*G, h, P+N, P+N)`` after the softmax, before dropout; None where it was not written down.
        attended: what the map can be made from, if it was not.
    """

    shape: AttentionShape
    coords: Tensor
    cells: Tensor | None = None
    visible: Tensor | None = None
    maps: Tensor | None = None
    attended: Attended | None = None

    @property
    def weights(self) -> Tensor:
        """The full map, ``(B*G, h, P+N, P+N)``; differentiable. Computed on demand where it was not stored."""
        if self.maps is not None:
            return self.maps
        assert self.attended is not None
        return (self.attended.query @ self.attended.key.transpose(-2, -1)).softmax(-1)

    @property
    def patches(self) -> Tensor:
        """Attention between patch tokens, ``(B, G, h, N, N)``; rows sum to less than 1 if there are prefix tokens."""
        start = self.shape.prefix
        patches: Tensor = self.weights[..., start:, start:].unflatten(0, (-1, self.shape.windows))
        return patches

    def read(
        self, penalty: Penalty, *, heads: Heads = "averaged", rows: Rows = "normalised", extremes: bool = False
    ) -> Reading:
        """Penalty costs, mean distance and, on request, the smallest and largest weight.

        Args:
            penalty: penalty on pairs.
            heads: read the average of the heads' maps, or each map.
            rows: whether what a token pays to prefix tokens counts: plain rows sum to less than 1.
            extremes: find the smallest and largest weight.
        """
        if self.maps is None:
            assert self.attended is not None
            on_pairs = Penalties(self.coords[:, 0], penalty, self.shape.prefix, rows == "normalised")
            return self.attended.read(on_pairs, each=heads == "each", extremes=extremes)  # type: ignore[no-any-return]
        as_they_are = rows == "plain" or self._whole
        # The average first where that is allowed: all that follows, forward and backward, is then h times smaller.
        early = heads == "averaged" and as_they_are
        chosen = self._placed(self.maps.mean(1, keepdim=True) if early else self.maps)  # B, G, 1 or h, N, N
        if not as_they_are:
            chosen = self._shares(chosen)
        if heads == "averaged" and not early:
            chosen = chosen.mean(2, keepdim=True)
        distances = masked(manhattan(self.coords, self.coords), self.visible)  # 1 or B, G, N, N
        penalties = masked(penalty(slice(None), distances), self.visible)
        cost = (chosen * penalties[:, :, None]).sum((1, 3, 4))
        total = penalties.sum((1, 2, 3))
        known = rows == "normalised" or self._whole
        reach = chosen.detach() if known else self._shares(self._placed(self.maps.detach()))
        rows_in_all = reach.shape[0] * reach.shape[2] * self.shape.height * self.shape.width
        distance = (reach * distances[:, :, None]).sum() / rows_in_all
        if not extremes:
            return Reading(cost, total, distance)
        flat = chosen.transpose(1, 2).flatten(2)  # B, 1 or h, pairs
        hidden = None if self.visible is None else ~self.visible.flatten()
        with torch.no_grad():
            low = (flat if hidden is None else flat.masked_fill(hidden, torch.inf)).argmin(-1, keepdim=True)
            high = (flat if hidden is None else flat.masked_fill(hidden, -torch.inf)).argmax(-1, keepdim=True)
        return Reading(cost, total, distance, flat.gather(-1, low)[..., 0], flat.gather(-1, high)[..., 0])

    @property
    def _whole(self) -> bool:
        """Whether rows sum to 1 over the tokens with a place."""
        return self.shape.prefix == 0 and self.visible is None

    def _placed(self, maps: Tensor) -> Tensor:
        """Attention between grid tokens in full precision, ``(B*G, k, P+N, P+N)`` -> ``(B, G, k, N, N)``."""
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        if self.shape.prefix:
            maps = maps[..., self.shape.prefix :, self.shape.prefix :]
        placed: Tensor = maps.unflatten(0, (-1, self.shape.windows))
        return placed

    def _shares(self, maps: Tensor) -> Tensor:
        """Rows that sum to 1 over the tokens with a place that can be seen."""
        if self._whole:
            return maps
        mass = maps if self.visible is None else maps * self.visible[:, None]
        return maps / mass.sum(-1, keepdim=True).clamp(min=1e-30)


def masked(values: Tensor, visible: Tensor | None) -> Tensor:
    """Zero for pairs that cannot see each other."""
    return values if visible is None else values * visible


def uniform_distance(coords: Tensor, visible: Tensor | None = None) -> float:
    """Mean distance of attention that is spread evenly over the pairs that see each other: coords ``(G, N, 2)``."""
    distances = masked(manhattan(coords, coords), visible)
    seen = torch.ones_like(distances) if visible is None else visible.to(distances.dtype)
    count = seen.sum(-1)
    rows = count > 0  # a row of padding has none
    return float((distances.sum(-1) / count.clamp(min=1))[rows].mean())
