"""A moving average of the weights (EMA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LONGEST_DECAY, RECENT = 0.9998, 0.2


def short_run_decay(steps: int) -> float:
    """EMA decay for a run of this number of steps: it averages about the last fifth of them."""
    return min(LONGEST_DECAY, max(0.0, 1 - 1 / max(1.0, RECENT * steps)))


class Average:
    """The average of a model's weights over the last steps; buffers are copied as they are.

    Args:
        module: the model.
        decay: share of the old average that stays at each step; less in the first steps, ``(1 + t) / (10 + t)``.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay = module, decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after this many steps."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        now = self.module.state_dict()
        moving = [name for name, tensor in now.items() if tensor.is_floating_point()]
        torch._foreach_lerp_([self.tensors[name] for name in moving], [now[name] for name in moving], share)
        for name in now.keys() - set(moving):
            self.tensors[name].copy_(now[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the average inside, and its own weights again afterwards."""
        own = {name: tensor.detach().clone() for name, tensor in self.module.state_dict().items()}
        self._fill(self.tensors)
        try:
            yield
        finally:
            self._fill(own)

    @torch.no_grad()
    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self.module.state_dict().items():
            tensor.copy_(tensors[name])
