"""An expert's plain recipe for few images, in PyTorch alone: nothing of vitlet is in it.

    python benchmarks/expert.py images.csv --seconds 120 --seed 0

``images.csv`` has the columns path, label and split (train or test). A small residual network is trained for a given
time, import and loading included, then tested once; prints one line of JSON. Seconds are of CPU time on one core, or
with ``--wall`` of the clock on all cores. The learning rate follows the time used, so that the schedule ends with the
budget. Precision and memory layout are what a short measurement finds fastest.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

STARTED = time.monotonic()
SIDES = (96, 48, 64)  # pixels a side: as images are kept, at the start, and at the end of training
TINY = (32, 24, 32)  # the same of images that have no more pixels, with a stem of stride 1
RATE, DECAY, BATCH, WARMUP, SMOOTHING, UNMIXED = 4e-3, 0.1, 32, 0.1, 0.1, 0.9


class Block(nn.Module):
    """A basic residual block; the shortcut pools, the last norm starts at zero."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.second, self.last = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        nn.init.zeros_(self.last.weight)
        pool = nn.AvgPool2d(2, ceil_mode=True) if stride > 1 else nn.Identity()
        project = nn.Sequential(nn.Conv2d(inside, out, 1, bias=False), nn.BatchNorm2d(out))
        self.short = nn.Sequential(pool, project) if inside != out else pool

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm(self.first(x)))
        return F.relu(self.last(self.second(inner)) + self.short(x))


def network(classes: int, stride: int, widths: tuple[int, ...] = (32, 64, 128, 256)) -> nn.Sequential:
    """A stem, one block per stage, mean pooling: 1.2 million parameters."""
    stem = [nn.Conv2d(3, widths[0], 3, stride, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    stages = [Block(widths[max(i - 1, 0)], width, 1 if i == 0 else 2) for i, width in enumerate(widths)]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def read(table: Path, split: str, side: int) -> tuple[Tensor, Tensor, int]:
    """The images of a split at one size as bytes, their labels, and the number of classes."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["label"] for row in rows})
    chosen = [row for row in rows if row["split"] == split]
    pixels = np.empty((len(chosen), 3, side, side), np.uint8)
    for number, row in enumerate(chosen):
        with Image.open(row["path"]) as image:
            square = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        pixels[number] = np.asarray(square).transpose(2, 0, 1)
    labels = torch.tensor([names.index(row["label"]) for row in chosen])
    return torch.from_numpy(pixels), labels, len(names)


def augment(images: Tensor, side: int) -> Tensor:
    """One affine resample for random resized crop and flip; then brightness, contrast and grey."""
    count = len(images)
    area, aspect = torch.empty(count).uniform_(0.35, 1), torch.empty(count).uniform_(-0.2, 0.2).exp()
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    x, y = (torch.rand(count) * 2 - 1) * (1 - width), (torch.rand(count) * 2 - 1) * (1 - height)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = width * (torch.randint(0, 2, (count,)) * 2 - 1), height
    matrix[:, 0, 2], matrix[:, 1, 2] = x, y
    grid = F.affine_grid(matrix, [count, 3, side, side], align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    mean = images.mean((1, 2, 3), keepdim=True)
    images = (images - mean) * torch.empty(count, 1, 1, 1).uniform_(0.7, 1.3) + mean
    images = images + torch.empty(count, 1, 1, 1).uniform_(-0.2, 0.2)
    grey = (torch.rand(count, 1, 1, 1) < 0.2) * torch.rand(count, 1, 1, 1)
    return images.lerp(images.mean(1, keepdim=True), grey)


def mix(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mixup or cutmix with another order of the same batch."""
    order, share = torch.randperm(len(images)), float(torch.rand(()))
    if torch.rand(()) < 0.5:
        images = images.lerp(images[order], 1 - share)
    else:
        side = images.shape[-1]
        cut = round(side * math.sqrt(1 - share))
        top, left = (int(torch.randint(0, side - cut + 1, ())) for _ in range(2))
        images = images.clone()
        images[:, :, top : top + cut, left : left + cut] = images[order, :, top : top + cut, left : left + cut]
        share = 1 - (cut / side) ** 2
    return images, targets.lerp(targets[order], 1 - share)


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes as floats around zero."""
    return (pixels.float() - mean) / std


def fastest(classes: int, side: int, stride: int) -> tuple[torch.memory_format, Any]:
    """Memory layout and precision of the shortest step, measured for a moment."""
    best = (math.inf, torch.contiguous_format, nullcontext)
    for layout in (torch.contiguous_format, torch.channels_last):
        for context in (nullcontext, lambda: torch.autocast("cpu", torch.bfloat16)):
            model = network(classes, stride).to(memory_format=layout)
            images = torch.randn(BATCH, 3, side, side).to(memory_format=layout)
            for _ in range(3):
                started = time.process_time()
                with context():
                    model(images).float().logsumexp(1).mean().backward()
                seconds = time.process_time() - started
            if seconds < best[0]:
                best = (seconds, layout, context)
    return best[1], best[2]


def train(
    images: Tensor,
    labels: Tensor,
    classes: int,
    budget: float,
    sides: tuple[int, int, int],
    clock: Callable[[], float],
) -> tuple[nn.Module, Any, int]:
    """Train until the time is used up; the moving average of the weights is the result."""
    _, small, large = sides
    stride = 1 if sides == TINY else 2
    layout, context = fastest(classes, large, stride)
    model, average = (network(classes, stride).to(memory_format=layout) for _ in range(2))
    average.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.99), weight_decay=DECAY, fused=True)
    began, steps, order = clock(), 0, torch.empty(0, dtype=torch.long)
    while (used := (clock() - began) / (budget - began)) < 1:
        rate = min(used / WARMUP, 0.5 + 0.5 * math.cos(math.pi * max(0.0, used - WARMUP) / (1 - WARMUP)))
        optimizer.param_groups[0]["lr"] = RATE * rate
        if len(order) < BATCH:
            order = torch.randperm(len(images))
        chosen, order = order[:BATCH], order[BATCH:]
        side = round((small + (large - small) * min(1.0, used / 0.7)) / 8) * 8
        batch = augment(images[chosen], side).contiguous(memory_format=layout)
        targets = F.one_hot(labels[chosen], classes) * (1 - SMOOTHING) + SMOOTHING / classes
        if used < UNMIXED and torch.rand(()) < 0.5:
            batch, targets = mix(batch, targets)
        with context():
            logits = model(batch)
        optimizer.zero_grad()
        F.cross_entropy(logits.float(), targets).backward()
        optimizer.step()
        steps += 1
        with torch.no_grad():
            keep = min(0.998, (1 + steps) / (10 + steps))
            for old, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                old.lerp_(new, 1 - keep) if old.is_floating_point() else old.copy_(new)
    return average.eval(), context, steps


def main() -> None:
    """Train, test once, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0, help="of training, imports and loading included")
    parser.add_argument("--wall", action="store_true", help="by the clock and on all cores, not CPU time on one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="images of 32 pixels: 24 to 32 px, a stem of stride 1")
    chosen = parser.parse_args()
    if not chosen.wall:
        torch.set_num_threads(1)
    clock = (lambda: time.monotonic() - STARTED) if chosen.wall else time.process_time
    torch.manual_seed(chosen.seed)
    sides = TINY if chosen.tiny else SIDES
    pixels, labels, classes = read(chosen.images, "train", sides[0])
    mean = pixels.float().mean((0, 2, 3)).view(1, 3, 1, 1)
    std = pixels.float().std((0, 2, 3)).view(1, 3, 1, 1)
    model, context, steps = train(normalised(pixels, mean, std), labels, classes, chosen.seconds, sides, clock)
    seconds, epochs = clock(), steps * BATCH / len(labels)
    pixels, labels, _ = read(chosen.images, "test", sides[0])  # after the budget
    right = 0
    for first in range(0, len(pixels), 256):
        batch = F.interpolate(normalised(pixels[first : first + 256], mean, std), sides[2], mode="area")
        with torch.inference_mode(), context():
            scores = model(batch).float() + model(batch.flip(3)).float()
        right += int((scores.argmax(1) == labels[first : first + 256]).sum())
    print(json.dumps({"top1": 100 * right / len(labels), "epochs": epochs, "seconds": seconds, "seed": chosen.seed}))


if __name__ == "__main__":
    main()
