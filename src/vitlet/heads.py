"""Small networks that read tokens for the tasks; none of them reaches the exported weights."""

from __future__ import annotations

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
        hidden = F.relu(self._project(tokens, pairs))
        hidden = F.relu(self.second(hidden))
        out: Tensor = self.last(self.extra(hidden))
        return out.view(*pairs.shape[:2], -1)

    def _project(self, tokens: Tensor, pairs: Tensor) -> Tensor:
        """First linear layer of every pair, ``(B*M, hidden)``, by the cheaper of two equal ways."""
        batch, count, channels = tokens.shape
        start = _row_starts(batch, count, pairs)
        if count > pairs.shape[1]:  # more tokens than pairs: gather first, then multiply
            ends = tokens.flatten(0, 1).index_select(0, (pairs + start).flatten())  # B*M*2, C
            return self.first(ends.view(-1, 2 * channels))  # type: ignore[no-any-return]
        # Each token is met more than once: multiply each token once per side, then gather the sums.
        weight = self.first.weight.view(-1, 2, channels)  # hidden, 2, C
        flat = tokens.flatten(0, 1)
        left = F.linear(flat, weight[:, 0], self.first.bias).index_select(0, (pairs[..., 0] + start[..., 0]).flatten())
        right = F.linear(flat, weight[:, 1]).index_select(0, (pairs[..., 1] + start[..., 0]).flatten())
        return left + right


def _row_starts(batch: int, count: int, pairs: Tensor) -> Tensor:
    """Row of each image's first token when the batch is laid end to end: ``(B, 1, 1)``."""
    return (torch.arange(batch, device=pairs.device) * count)[:, None, None]
