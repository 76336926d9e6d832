"""What a layer of the small transformers costs in several ways: ``python benchmarks/small_layers.py --output FILE``.

Forward and backward on 32 images of 8 x 8 tokens with 192 channels, as in ``hybrid_s_for_64px``, one thread: CPU time,
the fastest of 20 runs that take turns, in milliseconds. Linear: 192 to 576 channels, as a product and as a 1x1
convolution. Attention: 3 heads, fused and as plain products. Norm and activation: of 192 and of 384 channels.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timing import Report, cpu_ms

B, SIDE, C, HEADS, RUNS = 32, 8, 192, 3, 20


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """A product."""
    return F.linear(x, weight)


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    """The same as a 1x1 convolution."""
    return F.conv2d(x.permute(0, 3, 1, 2), weight[:, :, None, None]).permute(0, 2, 3, 1)


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's fused attention."""
    return F.scaled_dot_product_attention(query, key, value)


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same as plain products."""
    weights: Tensor = ((query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)).softmax(-1)
    return weights @ value


def batch_norm(x: Tensor) -> Tensor:
    """Batch norm of tokens."""
    return F.batch_norm(x.permute(0, 3, 1, 2), None, None, training=True).permute(0, 2, 3, 1)


def layer_norm(x: Tensor) -> Tensor:
    """Layer norm of tokens."""
    return F.layer_norm(x, x.shape[-1:])


def ways(dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    """By name, a run forward and backward."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    tokens, hidden, weight = draw(B, SIDE, SIDE, C), draw(B, SIDE, SIDE, 2 * C), draw(3 * C, C)
    heads = [draw(B, HEADS, SIDE * SIDE, C // HEADS) for _ in range(3)]
    depthwise = nn.Conv2d(2 * C, 2 * C, 3, padding=1, groups=2 * C).to(dtype)
    calls: dict[str, Callable[[], Tensor]] = {
        "linear, product": lambda: linear(tokens, weight),
        "linear, 1x1 convolution": lambda: convolution(tokens, weight),
        "attention, fused": lambda: fused(*heads),
        "attention, plain products": lambda: plain(*heads),
        "layer norm": lambda: layer_norm(tokens),
        "batch norm": lambda: batch_norm(tokens),
        "GELU": lambda: F.gelu(hidden),
        "ReLU": lambda: F.relu(hidden),
        "depth-wise 3x3 convolution": lambda: depthwise(hidden.permute(0, 3, 1, 2)),
    }

    def both(call: Callable[[], Tensor]) -> Callable[[], None]:
        return lambda: call().float().sum().backward()

    return {name: both(call) for name, call in calls.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    report = Report("What a layer of the small transformers costs", __doc__, parser.parse_args().output)
    torch.set_num_threads(1)
    runs = {(name, dtype): run for dtype in (torch.float32, torch.bfloat16) for name, run in ways(dtype).items()}
    fastest = dict.fromkeys(runs, math.inf)
    for _ in range(RUNS):
        for key, run in runs.items():
            fastest[key] = min(fastest[key], cpu_ms(run))
    report.add(["", "| layer | 32 bits | bfloat16 |", "|---|---|---|"])
    for name in dict.fromkeys(name for name, _ in runs):
        found = (f"{fastest[name, dtype]:.1f}" for dtype in (torch.float32, torch.bfloat16))
        report.add([f"| {name} | {' | '.join(found)} |"])
    report.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
