"""Small models that read tokens for the tasks; none of them reaches the exported weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PairHead(nn.Module):
    """An MLP on two concatenated tokens: ``2C -> hidden -> ReLU -> hidden -> ReLU -> out``.

    Args:
        channels: C, the width of a token.
        hidden: width of the hidden layers.
        out: number of outputs.
        extra_linear: one more ``hidden -> hidden`` layer without activation before the output (as the released
            DRLoc code has for its classifying variants).
    """

    def __init__(self, channels: int, hidden: int, out: int, *, extra_linear: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(2 * channels, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.extra = nn.Linear(hidden, hidden) if extra_linear else nn.Identity()
        self.last = nn.Linear(hidden, out)

    def forward(self, tokens: Tensor, pairs: Tensor) -> Tensor:
        """Outputs ``(B, M, out)`` for tokens ``(B, N, C)`` and pairs of their indices ``(B, M, 2)``."""
        hidden = F.relu(self._project(tokens, pairs), inplace=True)
        hidden = F.relu(self.second(hidden), inplace=True)
        out: Tensor = self.last(self.extra(hidden))
        return out.view(*pairs.shape[:2], -1)

    def _project(self, tokens: Tensor, pairs: Tensor) -> Tensor:
        """First linear layer of every pair, ``(B*M, hidden)``, by the cheaper of two equal ways."""
        batch, count, channels = tokens.shape
        starts = torch.arange(batch, device=pairs.device) * count  # each image's first token, images laid end to end
        rows = (pairs + starts[:, None, None]).flatten(0, 1)  # B*M, 2
        flat = tokens.flatten(0, 1)
        if count >= pairs.shape[1]:  # a token is met at most once per side, on average: gather first, then multiply
            ends = flat.index_select(0, rows.flatten()).view(-1, 2 * channels)
            return self.first(ends)  # type: ignore[no-any-return]
        # Fewer tokens than pairs: multiply every token once per side, then gather and add the products.
        left, right = self.first.weight.split(channels, dim=1)
        first = F.linear(flat, left, self.first.bias).index_select(0, rows[:, 0])
        second = F.linear(flat, right).index_select(0, rows[:, 1])
        return first + second


class RelationHead(nn.Module):
    """Scores of every ordered pair of tokens, ``q.k / sqrt(width)`` by K heads: no softmax, no value, no bias.

    Args:
        channels: C, the width of a token.
        heads: K, scores per pair.
        width: channels of each head's q and k.
    """

    def __init__(self, channels: int, heads: int, width: int) -> None:
        super().__init__()
        self.channels, self.heads, self.width = channels, heads, width
        self.query_key = nn.Linear(channels, 2 * heads * width, bias=False)  # all q, then all k

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``(B, K, N, N)`` of first and second token, for tokens ``(B, N, C)``, by the cheaper of two ways."""
        batch, count, channels = tokens.shape
        scale = 1 / math.sqrt(self.width)
        if channels * (self.width + batch * count) > 2 * batch * count * self.width:
            projected: Tensor = self.query_key(tokens).view(batch, count, 2, self.heads, self.width)
            query, key = projected.permute(2, 0, 3, 1, 4).unbind()  # B, K, N, width
            return (query * scale) @ key.transpose(2, 3)
        # Heads as wide as the tokens: join q and k into one C x C matrix per head, and multiply each token once.
        query, key = self.query_key.weight.view(2, self.heads, self.width, channels).unbind()
        joint = key.transpose(1, 2) @ (query * scale)  # K, C, C
        turned = F.linear(tokens, joint.flatten(0, 1)).view(batch, count * self.heads, channels)
        return (turned @ tokens.transpose(1, 2)).view(batch, count, self.heads, count).transpose(1, 2)
