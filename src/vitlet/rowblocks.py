"""Costs of attention without the map: a few rows at a time, from queries and keys.

The cost is a sum over pairs, so its gradient is known up to one factor as soon as a row's softmax is: value and
gradient come out of one pass over blocks of rows that fit into the cache, and nothing of the size of the map is kept.
Letters: B images, h heads, P prefix tokens, N tokens with a place, T = P + N, R rows of a block, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlet.geometry import manhattan

BLOCK = 1 << 19
"""Weights of all heads of one image in a block: two megabytes."""


class Costs(NamedTuple):
    """Costs and indices are ``(B, 1 or h)``; an index counts pairs, row by row."""

    cost: Tensor
    price: Tensor
    distance: Tensor
    lowest: Tensor
    highest: Tensor


@torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over blocks: nothing to gain from tracing them
def blocked_costs(
    query: Tensor,
    key: Tensor,
    coords: Tensor,
    price: Callable[[slice, Tensor], Tensor],
    *,
    prefix: int = 0,
    each: bool = False,
    extremes: bool = False,
    block: int = BLOCK,
) -> Costs:
    """Price times attention, summed over the pairs of every image.

    Args:
        query, key: ``(B, h, T, d)``, the query scaled.
        coords: ``(1 or B, N, 2)``.
        price: from rows and their distances ``(1 or B, 1, R, N)`` to prices.
        prefix: P, tokens in front that have no place.
        each: one cost per head, rather than of their average.
        extremes: find the smallest and the largest weight.
        block: weights to hold at a time.
    """
    with torch.autocast(query.device.type, enabled=False):
        found: tuple[Tensor, ...] = _RowBlocks.apply(query, key, coords, price, prefix, each, extremes, block)
    return Costs(*found)


def pair_weights(query: Tensor, key: Tensor, index: Tensor, *, prefix: int = 0) -> Tensor:
    """Weights of single pairs, differentiable: index ``(B, 1 or h)`` to ``(B, 1 or h)``, 1 for the heads' average."""
    tokens = query.shape[2] - prefix
    row = (index // tokens + prefix).expand(-1, query.shape[1])  # B, h
    column = (index % tokens + prefix).expand(-1, query.shape[1])
    chosen = query.gather(2, row[..., None, None].expand(-1, -1, 1, query.shape[3]))  # B, h, 1, d
    weights = (chosen @ key.transpose(-2, -1)).float().softmax(-1)[:, :, 0]
    found = weights.gather(2, column[..., None])[..., 0]
    return found.mean(1, keepdim=True) if index.shape[1] == 1 else found


class _RowBlocks(torch.autograd.Function):
    """Only the cost has gradients, with respect to query and key."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        coords: Tensor,
        price: Callable[[slice, Tensor], Tensor],
        prefix: int,
        each: bool,
        extremes: bool,
        block: int,
    ) -> tuple[Tensor, ...]:
        work = _Pass(query, key, prefix, each, extremes, needs_gradient=any(ctx.needs_input_grad[:2]))
        tokens = query.shape[2] - prefix
        rows = max(1, block // (query.shape[1] * query.shape[2]))
        for start in range(0, tokens, rows):
            chosen = slice(start, min(start + rows, tokens))
            distances = manhattan(coords[:, chosen], coords)  # 1 or B, R, N
            work.add(chosen, distances, price(chosen, distances[:, None])[:, 0])
        ctx.save_for_backward(*work.gradients)
        ctx.dtype = query.dtype
        results = work.results()
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor = gradients[0][..., None, None]  # B, 1 or h, 1, 1
        of_query, of_key = ((saved * factor).to(ctx.dtype) for saved in ctx.saved_tensors)
        return (of_query, of_key, *(None,) * 6)


class _Pass:
    """What accumulates over blocks of rows."""

    def __init__(
        self, query: Tensor, key: Tensor, prefix: int, each: bool, extremes: bool, *, needs_gradient: bool
    ) -> None:
        self.query, self.key, self.prefix, self.each, self.extremes = (
            query.detach(),
            key.detach(),
            prefix,
            each,
            extremes,
        )
        batch, heads, tokens, _ = query.shape
        self.tokens = tokens - prefix
        exact = torch.promote_types(query.dtype, torch.float32)
        columns = heads if each else 1
        self.cost = torch.zeros(batch, heads, dtype=exact, device=query.device)
        self.price = torch.zeros(batch, dtype=exact, device=query.device)
        self.reach = torch.zeros((), dtype=exact, device=query.device)
        self.low = torch.full((batch, columns), torch.inf, dtype=exact, device=query.device)
        self.high = -self.low
        self.lowest, self.highest = (torch.zeros_like(self.low, dtype=torch.long) for _ in range(2))
        # By key: gradients are summed over rows in full precision, whatever the precision of the network.
        self.gradients = (
            (torch.zeros_like(query, dtype=exact), torch.zeros_like(key, dtype=exact)) if needs_gradient else ()
        )

    def add(self, rows: slice, distances: Tensor, prices: Tensor) -> None:
        """Take in a block: distances ``(1 or B, R, N)`` and prices of the same size."""
        self.price[: len(prices)] += prices.sum((1, 2))
        self.shared_prices = len(prices) == 1
        for image in range(len(self.query)):
            own = prices[min(image, len(prices) - 1)]
            far = distances[min(image, len(distances) - 1)]
            self._add_image(image, rows, far, own)

    def _add_image(self, image: int, rows: slice, distances: Tensor, prices: Tensor) -> None:
        inside = slice(rows.start + self.prefix, rows.stop + self.prefix)
        query, key = self.query[image, :, inside], self.key[image]  # h, R, d and h, T, d
        scores = torch.bmm(query, key.transpose(1, 2)).to(self.cost.dtype)
        weights = torch.softmax(scores, -1)  # h, R, T
        padded = F.pad(prices, (self.prefix, 0)) if self.prefix else prices
        priced = torch.mul(weights, padded, out=scores)
        by_row = priced.sum(-1, keepdim=True)  # h, R, 1
        self.cost[image] += by_row.sum((1, 2))
        self._note(image, rows, weights, distances)
        if self.gradients:  # of a row's softmax: weight times (price minus the row's cost)
            priced.addcmul_(weights, by_row, value=-1)
            of_query, of_key = self.gradients
            of_query[image, :, inside] = torch.bmm(priced, key.to(priced.dtype))
            of_key[image].baddbmm_(priced.transpose(1, 2), query.to(priced.dtype))

    def _note(self, image: int, rows: slice, weights: Tensor, distances: Tensor) -> None:
        """Mean distance, and where the smallest and largest weight are."""
        maps = weights[:, :, self.prefix :]
        if not self.each:
            maps = maps.mean(0, keepdim=True)
        reach = (maps * distances).sum(-1)
        self.reach += (reach / maps.sum(-1).clamp(min=1e-30) if self.prefix else reach).sum()
        if not self.extremes:
            return
        low, lowest = maps.flatten(1).min(1)
        high, highest = maps.flatten(1).max(1)
        first = rows.start * self.tokens
        self.lowest[image] = torch.where(low < self.low[image], lowest + first, self.lowest[image])
        self.highest[image] = torch.where(high > self.high[image], highest + first, self.highest[image])
        self.low[image] = torch.minimum(low, self.low[image])
        self.high[image] = torch.maximum(high, self.high[image])

    def results(self) -> tuple[Tensor, ...]:
        """Cost, price, mean distance, and the pairs of smallest and largest weight."""
        heads = self.cost.shape[1]
        columns = self.lowest.shape[1]
        distance = self.reach / (len(self.query) * columns * self.tokens)
        price = self.price[:1] if self.shared_prices else self.price
        if self.each:
            return self.cost, price, distance, self.lowest, self.highest
        for gradient in self.gradients:
            gradient /= heads
        return self.cost.mean(1, keepdim=True), price, distance, self.lowest, self.highest
