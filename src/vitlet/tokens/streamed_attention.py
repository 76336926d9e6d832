"""Attention whose weights have a penalty, without the map: a few rows at a time, computed again when needed.

`attend` is fused attention that can be asked later what its weights cost (`Attended.cost`). The costs' gradients do not
go through the weights a second time: they wait until the attention itself is differentiated, which visits every weight
anyway, and join there. Nothing of the size of the map is ever kept.
Letters: B images, h heads, P prefix tokens, N tokens with a place, T = P + N, R rows of a block, d width of a head,
K = B*h maps, laid end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitlet.tokens.geometry import manhattan

BLOCKS = {"cpu": 1 << 20}
"""Weights to hold at a time: four megabytes, which stay in the cache."""
ACCELERATOR_BLOCK = 1 << 25
"""On other devices, whose caches do not matter as much."""


@dataclass(frozen=True)
class Reading:
    """Statistics of one pass over an attention map; one column for the average over heads, or one per head.

    Attributes:
        cost: ``(B, 1 or h)``, penalty times attention, summed over the pairs of an image; carries gradients.
        penalty: ``(1 or B,)``, the sum of the penalties.
        distance: mean attention distance in cells, over rows normalised to their tokens with a place; no gradients.
        low, high: ``(B, 1 or h)``, the smallest and largest weight of a map, if they were asked for, with gradients.
    """

    cost: Tensor
    penalty: Tensor
    distance: Tensor
    low: Tensor | None = None
    high: Tensor | None = None


@dataclass(frozen=True)
class Penalties:
    """Penalty on every pair of tokens that have coordinates.

    Attributes:
        coords: ``(1 or B, N, 2)``.
        penalty: from rows and their distances ``(1 or B, 1, R, N)`` to penalties of the same shape.
        prefix: P, tokens in front that have no place.
        normalised: a row's weights count as shares of what it pays to tokens with a place.
    """

    coords: Tensor
    penalty: Callable[[slice, Tensor], Tensor]
    prefix: int = 0
    normalised: bool = True

    def rows(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Distances and penalties of these rows, ``(1 or B, R, N)``."""
        distances = manhattan(self.coords[:, rows], self.coords)
        return distances, self.penalty(rows, distances[:, None])[:, 0]


@dataclass
class Attended:
    """A layer's queries (scaled) and keys, ``(B, h, T, d)``, and what their weights are normalised with.

    Attributes:
        query, key: with gradients.
        logsumexp: ``(K, T, 1)``.
        token: a 0 that ties the costs to the attention in the graph.
        waiting: costs whose gradients wait for the attention's.
    """

    query: Tensor
    key: Tensor
    logsumexp: Tensor
    token: Tensor
    waiting: list[_Waiting] = field(default_factory=list)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over blocks: nothing to gain from tracing them
    def read(self, penalties: Penalties, *, each: bool = False, extremes: bool = False) -> Reading:
        """Penalty times weight, summed over the pairs of every image, of the heads' average or of each head."""
        with torch.autocast(self.query.device.type, enabled=False):
            cost, penalty, distance, *ends = _Cost.apply(self.token, self, penalties, each, extremes)
        # The ends are indices of pairs, counted row by row: their weights are computed again, with gradients.
        return Reading(cost, penalty, distance, *(self._weight(index, penalties) for index in ends if extremes))

    def _weight(self, index: Tensor, penalties: Penalties) -> Tensor:
        """Weights of single pairs, differentiable: ``(B, 1 or h)`` to ``(B, 1 or h)``, 1 for the heads' average."""
        heads, tokens = self.query.shape[1], self.query.shape[2] - penalties.prefix
        row = (index // tokens + penalties.prefix).expand(-1, heads)  # B, h
        column = (index % tokens).expand(-1, heads)
        chosen = self.query.gather(2, row[..., None, None].expand(-1, -1, 1, self.query.shape[3]))  # B, h, 1, d
        scores = (chosen @ self.key.transpose(-2, -1)).to(self.logsumexp.dtype)[:, :, 0]  # B, h, T
        if penalties.normalised:
            weights = scores[..., penalties.prefix :].softmax(-1)
        else:
            weights = scores.softmax(-1)[..., penalties.prefix :]
        found = weights.gather(2, column[..., None])[..., 0]
        return found.mean(1, keepdim=True) if index.shape[1] == 1 else found


class _Waiting(NamedTuple):
    penalties: Penalties
    factor: Tensor  # K, 1, 1: the cost's gradient
    by_row: Tensor  # K, N, 1: each row's share of the cost
    mass: Tensor  # K, N, 1: what the row pays to tokens with a place

    def add_slope(self, slope: Tensor, penalty: Tensor, group: slice, rows: slice) -> None:
        """Add the gradient with respect to these weights ``(K', R, N)``."""
        factor = self.factor[group]
        if self.of_shares:
            factor = factor / self.mass[group, rows]
            slope.addcmul_(self.by_row[group, rows], factor, value=-1)
        slope.addcmul_(penalty, factor)

    @property
    def of_shares(self) -> bool:
        """Whether shares differ from weights."""
        return self.penalties.normalised and self.penalties.prefix > 0


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Attended]:
    """Scaled dot-product attention of ``(B, h, T, d)``, with streamed access to its weights."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (part.to(torch.get_autocast_dtype(device)) for part in (query, key, value))
    waiting: list[_Waiting] = []
    with torch.autocast(device, enabled=False):
        query = query * scale
        out, token, logsumexp = _Attend.apply(query, key, value, waiting)
    return out, Attended(query, key, logsumexp, token, waiting)


def _maps(part: Tensor) -> Tensor:
    """``(B, h, T, d)`` as ``(K, T, d)`` in full precision."""
    return part.detach().to(torch.promote_types(part.dtype, torch.float32)).flatten(0, 1)


def _row_blocks(maps: int, tokens: int, prefix: int, device: torch.device) -> Iterator[tuple[slice, list[slice]]]:
    """Rows of a block, not mixing the prefix with the rest, and the maps to take at a time."""
    most = BLOCKS.get(device.type, ACCELERATOR_BLOCK)
    rows = max(1, min(tokens, most // tokens))
    together = max(1, most // (rows * tokens))
    groups = [slice(start, min(start + together, maps)) for start in range(0, maps, together)]
    if prefix:
        yield slice(0, prefix), groups
    for start in range(prefix, tokens, rows):
        yield slice(start, min(start + rows, tokens)), groups


def _of_maps(values: Tensor, group: slice, heads: int) -> Tensor:
    """Values per image ``(1 or B, ...)`` as values per map of this group, without a copy where images share them."""
    if len(values) == 1:
        return values
    first, last = group.start // heads, (group.stop - 1) // heads
    if first == last:
        return values[first : first + 1]
    return values[torch.arange(group.start, group.stop, device=values.device) // heads]


class _Attend(torch.autograd.Function):
    """Attention; in its backward pass the gradients of waiting costs join those of the output."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, waiting: list[_Waiting]) -> tuple[Tensor, ...]:
        if query.device.type == "cpu":
            fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            out, logsumexp = fused(query, key, value, scale=1.0)
            logsumexp = logsumexp.flatten(0, 1)[..., None]
        else:
            out, logsumexp = _by_rows(query, key, value)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.waiting = waiting
        ctx.mark_non_differentiable(logsumexp)
        return out, logsumexp.new_zeros(()), logsumexp

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_out: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        waiting, ctx.waiting[:] = list(ctx.waiting), []
        found = _gradients(query, key, value, out, logsumexp, of_out, waiting)
        return (*(each.view_as(query).to(query.dtype) for each in found), None)


def _by_rows(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attention where no kernel hands out its logsumexp."""
    queries, keys, values = map(_maps, (query, key, value))
    out, logsumexp = torch.empty_like(queries), torch.empty_like(queries[..., :1])
    for rows, groups in _row_blocks(len(queries), queries.shape[1], 0, query.device):
        for group in groups:
            scores = torch.bmm(queries[group, rows], keys[group].transpose(1, 2))
            logsumexp[group, rows] = scores.logsumexp(-1, keepdim=True)
            out[group, rows] = torch.bmm(scores.sub_(logsumexp[group, rows]).exp_(), values[group])
    return out.view_as(query).to(query.dtype), logsumexp


def _gradients(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, of_out: Tensor, waiting: list[_Waiting]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, ``(K, T, d)``."""
    queries, keys, values, of_outs = map(_maps, (query, key, value, of_out))
    heads, tokens = query.shape[1:3]
    logsumexp = logsumexp.to(queries.dtype)
    of_query, of_key, of_value = (torch.zeros_like(part) for part in (queries, keys, values))
    mean = (of_outs * _maps(out)).sum(-1, keepdim=True)  # K, T, 1: of each row's gradient, under its weights
    for cost in waiting:
        if not cost.of_shares:  # shares sum to 1 whatever the weights: their gradient has no such part
            mean[:, cost.penalties.prefix :] += cost.factor * cost.by_row
    prefix = waiting[0].penalties.prefix if waiting else 0
    buffers = _Buffers(queries)
    for rows, groups in _row_blocks(len(queries), tokens, prefix, query.device):
        placed = slice(rows.start - prefix, rows.stop - prefix)
        penalties = [cost.penalties.rows(placed)[1] for cost in waiting] if rows.start >= prefix else []
        for group in groups:
            weights, slope = buffers(group, rows)
            _weights(queries[group, rows], keys[group], logsumexp[group, rows], out=weights)
            torch.bmm(of_outs[group, rows], values[group].transpose(1, 2), out=slope)
            of_value[group].baddbmm_(weights.transpose(1, 2), of_outs[group, rows])
            slope.sub_(mean[group, rows])
            for cost, penalty in zip(waiting, penalties, strict=False):
                cost.add_slope(slope[..., prefix:], _of_maps(penalty, group, heads), group, placed)
            slope.mul_(weights)
            of_query[group, rows] = torch.bmm(slope, keys[group])
            of_key[group].baddbmm_(slope.transpose(1, 2), queries[group, rows])
    return of_query, of_key, of_value


def _weights(queries: Tensor, keys: Tensor, logsumexp: Tensor, out: Tensor) -> Tensor:
    return torch.bmm(queries, keys.transpose(1, 2), out=out).sub_(logsumexp).exp_()


class _Buffers:
    """Two pieces of memory of the size of a block, used again for every block."""

    def __init__(self, like: Tensor) -> None:
        self.tokens = like.shape[1]
        self.flat = like.new_empty(2, 0)

    def __call__(self, group: slice, rows: slice) -> tuple[Tensor, Tensor]:
        shape = (group.stop - group.start, rows.stop - rows.start, self.tokens)
        size = shape[0] * shape[1] * shape[2]
        if self.flat.shape[1] < size:
            self.flat = self.flat.new_empty(2, size)
        return self.flat[0, :size].view(shape), self.flat[1, :size].view(shape)


class _Cost(torch.autograd.Function):
    """A sum over pairs. Its gradient is left with the attention, which computes it with its own."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, attended: Attended, penalties: Penalties, each: bool, extremes: bool
    ) -> tuple[Tensor, ...]:
        queries, keys = _maps(attended.query), _maps(attended.key)
        batch, heads, tokens, _ = attended.query.shape
        prefix = penalties.prefix
        found = _Sums(batch, heads, tokens - prefix, each, queries)
        buffers = _Buffers(queries)
        logsumexp = attended.logsumexp.to(queries.dtype)
        for rows, groups in _row_blocks(len(queries), tokens, prefix, queries.device):
            if rows.start < prefix:
                continue
            placed = slice(rows.start - prefix, rows.stop - prefix)
            distances, penalty = penalties.rows(placed)
            found.penalty = found.penalty + penalty.sum((1, 2))
            for group in groups:
                weights, product = buffers(group, rows)
                _weights(queries[group, rows], keys[group], logsumexp[group, rows], out=weights)
                weights, product = weights[..., prefix:], product[..., prefix:]
                if prefix:
                    found.mass[group, placed] = weights.sum(-1, keepdim=True)
                torch.mul(weights, _of_maps(penalty, group, heads), out=product)
                found.by_row[group, placed] = product.sum(-1, keepdim=True)
                torch.mul(weights, _of_maps(distances, group, heads), out=product)
                found.reach[group, placed] = product.sum(-1, keepdim=True)
                if extremes:
                    found.maps.append(weights / found.mass[group, placed] if penalties.normalised else weights.clone())
            found.finish(placed)
        if penalties.normalised:
            found.by_row /= found.mass
        ctx.attended, ctx.penalties, ctx.each = attended, penalties, each
        ctx.save_for_backward(found.by_row, found.mass)
        results = found.results()
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        by_row, mass = ctx.saved_tensors
        heads = ctx.attended.query.shape[1]
        factor = gradients[0] if ctx.each else gradients[0].expand(-1, heads) / heads
        ctx.attended.waiting.append(_Waiting(ctx.penalties, factor.reshape(-1, 1, 1), by_row, mass))
        return (torch.zeros_like(ctx.attended.token), *(None,) * 4)


class _Sums:
    """Sums over blocks of rows."""

    def __init__(self, batch: int, heads: int, tokens: int, each: bool, like: Tensor) -> None:
        self.batch, self.heads, self.tokens, self.each = batch, heads, tokens, each
        self.by_row = like.new_zeros(batch * heads, tokens, 1)
        self.reach, self.mass = torch.zeros_like(self.by_row), torch.ones_like(self.by_row)  # all of it if no prefix
        self.penalty = like.new_zeros(1)
        columns = heads if each else 1
        self.low = like.new_full((batch, columns), torch.inf)
        self.high = -self.low
        self.lowest, self.highest = (torch.zeros_like(self.low, dtype=torch.long) for _ in range(2))
        self.maps: list[Tensor] = []

    def finish(self, rows: slice) -> None:
        """Find the smallest and the largest weight, after all maps of these rows were added."""
        if not self.maps:
            return
        maps = torch.cat(self.maps).unflatten(0, (self.batch, self.heads))
        self.maps.clear()
        flat = (maps if self.each else maps.mean(1, keepdim=True)).flatten(2)  # B, 1 or h, R*N
        (low, lowest), (high, highest) = flat.min(-1), flat.max(-1)
        first = rows.start * self.tokens
        self.lowest = torch.where(low < self.low, lowest + first, self.lowest)
        self.highest = torch.where(high > self.high, highest + first, self.highest)
        self.low, self.high = torch.minimum(low, self.low), torch.maximum(high, self.high)

    def results(self) -> tuple[Tensor, ...]:
        """Cost, penalty, mean distance, and the pairs of smallest and largest weight."""
        cost = self.by_row.view(self.batch, self.heads, self.tokens).sum(-1)
        if not self.each:
            cost = cost.mean(1, keepdim=True)
        return cost, self.penalty, (self.reach / self.mass).mean(), self.lowest, self.highest
