"""Small pieces of models that a machine is measured on: each uses the operations that networks are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenBlock(nn.Module):
    """A transformer block; ``open_attention`` writes the maps down within windows, as networks with windows do."""

    def __init__(self, width: int, *, open_attention: bool = False) -> None:
        super().__init__()
        self.heads, self.open_attention = width // 32, open_attention
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        joint = self.joint(self.norms[0](tokens)).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = joint.unbind(0)
        if self.open_attention:
            mixed = (query * 32**-0.5 @ key.transpose(-2, -1)).softmax(-1) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.out(mixed.transpose(1, 2).reshape(batch, count, width))
        grown: Tensor = self.shrink(F.gelu(self.grow(self.norms[1](tokens))))
        return tokens + grown


class ConvolutionBlock(nn.Module):
    """Convolutions of every kind, batch norm, the usual activations and a pool."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.dense = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.smaller = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.point = nn.Conv2d(2 * width, 4 * width, 1, bias=False)
        self.back = nn.Conv2d(4 * width, 2 * width, 1, bias=False)
        self.near = nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4 * width, bias=False)
        self.far = nn.Conv2d(2 * width, 2 * width, 7, padding=3, groups=2 * width)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)])

    def forward(self, images: Tensor) -> Tensor:
        maps = F.relu(self.norms[0](self.dense(self.stem(images))))
        maps = self.smaller(maps)
        wide = F.hardswish(self.near(F.silu(self.norms[1](self.point(maps)))))
        maps = maps + self.far(self.back(wide))
        return F.max_pool2d(maps, 3, stride=2, padding=1)


Workout = tuple[Callable[[], nn.Module], tuple[int, ...]]
"""What makes a piece of a model, and the shape of what to feed it."""


def workouts(*, slow: bool) -> Iterator[Workout]:
    """Pieces of several sizes; fewer where a precision is expected to be slow."""
    sizes = ((96, 2, 64), (192, 2, 196)) if slow else ((96, 8, 64), (192, 8, 196), (384, 8, 196))
    for width, batch, tokens in sizes:
        yield partial(TokenBlock, width), (batch, tokens, width)
    for count, width in ((16, 96),) if slow else ((64, 96), (256, 96)):
        yield partial(TokenBlock, width, open_attention=True), (count, 49, width)
    for batch, width, side in ((2, 32, 64), (2, 128, 32)) if slow else ((8, 32, 64), (4, 64, 224), (8, 256, 64)):
        yield partial(ConvolutionBlock, width), (batch, 3, side, side)


def exercise(workout: Workout, device: torch.device) -> Callable[[torch.dtype | None], None]:
    """A whole training step of the piece: forward, backward, clip, AdamW; in a mixed precision if one is given."""
    make, shape = workout
    network = make().to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, fused=True)
    batch = torch.randn(shape, device=device, requires_grad=True)

    def step(precision: torch.dtype | None) -> None:
        with torch.autocast(device.type, dtype=precision, enabled=precision is not None):
            loss = network(batch).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        batch.grad = None
        nn.utils.clip_grad_norm_(network.parameters(), 5.0, foreach=False)
        optimizer.step()

    return step
