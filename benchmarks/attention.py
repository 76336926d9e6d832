"""What a price on attention costs (ARViT, self-attention regularization); run as ``make bench``.

The attention of one layer, 6 heads of 64 channels: fused, with the map written down by hand (softmax, a penalty matrix
made beforehand, no metrics), and as vitlet has it, forward and backward with the gradients into queries, keys and
values. Vitlet's are the open form and, above 784 tokens, the form without a map; both also give the mean attention
distance. Memory is what a step adds to the process at its peak, beyond what fused attention adds, each in a process of
its own. Last, what regularising one layer of ViT-S/16 adds to its training step: the layer's attention with the task,
less fused attention. One thread, CPU time, interleaved in rounds; each figure is the least disturbed round's median.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timing import PeakMemory, Report, cpu_ms
from vitlet.backbones.tap_attention import EXPLICIT_TOKENS, AttentionTap, listening
from vitlet.tasks.attention_distance import AttentionDistance, linear_penalty
from vitlet.tasks.attention_similarity import AttentionSimilarity
from vitlet.tasks.task import Task
from vitlet.tokens.attention import AttentionMap, AttentionShape
from vitlet.tokens.features import Features, Grid, GridShape, Shapes
from vitlet.tokens.geometry import grid_coords, manhattan

HEADS, WIDTH = 6, 64
CASES = ((8, 32), (14, 16), (28, 4), (56, 1))
"""Side of the token grid, and batch."""
ROUNDS = 4
"""The first of them only warms up."""
MOST_SMALL = 1.10
"""Bar up to 196 tokens: vitlet's time as a share of the map written by hand."""
MOST_LARGE = 0.70
"""Bar at 3,136 tokens: time without a map as a share of the open form."""
MOST_MEMORY = 1 / 20
"""Bar there on the added memory, as a share of the open form's."""
MOST_PERCENT = 5.0
"""Bar on one regularised layer, in percent of a ViT-S/16 step."""


class Core(nn.Module):
    """Fused attention as a block calls it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)


class Layer:
    """One layer's attention on random queries, keys and values, in all forms."""

    def __init__(self, side: int, batch: int, prefix: int = 0) -> None:
        generator = torch.Generator().manual_seed(0)
        tokens = side * side + prefix
        sizes = (batch, HEADS, tokens, WIDTH)
        self.inputs = [torch.randn(sizes, generator=generator).requires_grad_() for _ in range(3)]
        self.gradient = torch.randn(sizes, generator=generator)
        self.coords = grid_coords(side, side)[None]
        self.images = torch.randn(batch, 3, 16 * side, 16 * side, generator=generator)
        self.shape = AttentionShape(HEADS, side, side, prefix, 1, side * side, 0.0)
        self.penalty = linear_penalty(manhattan(self.coords, self.coords)) if tokens <= 4000 else None

    def fused(self) -> None:
        """No price."""
        (F.scaled_dot_product_attention(*self.inputs) * self.gradient).sum().backward()

    def by_hand(self) -> None:
        """The map, and a penalty matrix that was made beforehand."""
        query, key, value = self.inputs
        weights = ((query * WIDTH**-0.5) @ key.transpose(-2, -1)).softmax(-1)
        loss = (self.penalty * weights.mean(1)).sum() / (len(query) * weights.shape[-1])
        ((weights @ value * self.gradient).sum() + loss).backward()

    def with_task(self, task: Task, explicit_tokens: int = EXPLICIT_TOKENS) -> Callable[[], None]:
        """As vitlet does it: a tap on the module, then the task on the map."""
        task.build(Shapes(GridShape(1, self.shape.height, self.shape.width), attention=(self.shape,)))
        core = Core()
        tap = AttentionTap(core, 0, explicit_tokens)

        def run() -> None:
            with listening([tap]):
                out = core(*self.inputs)
            caught = tap.take()
            attention = AttentionMap(self.shape, self.coords[:, None], maps=caught.maps, attended=caught.attended)
            grid = Grid(torch.empty(len(out), 1, self.shape.height, self.shape.width), self.coords)
            features = Features(self.images, grid, attention={0: attention})
            ((out * self.gradient).sum() + task(features).loss).backward()

        return run


def times(runs: list[Callable[[], None]], repeats: int) -> list[float]:
    """Milliseconds of each run, interleaved."""
    rounds = []
    for _ in range(ROUNDS):
        done = [[cpu_ms(run) for run in runs] for _ in range(repeats)]
        rounds.append([median(column) for column in zip(*done, strict=True)])
    return [min(column) for column in zip(*rounds[1:], strict=True)]


def forms(side: int, batch: int) -> dict[str, Callable[[], None]]:
    """All forms at one size."""
    layer = Layer(side, batch)
    runs = {"fused": layer.fused, "by hand": layer.by_hand, "open": layer.with_task(AttentionDistance(), 10**9)}
    if side * side > EXPLICIT_TOKENS:
        runs["no map"] = layer.with_task(AttentionDistance())
    return runs


def peak_mib(side: int, batch: int, form: str) -> float:
    """What one step of a form adds to a fresh process at its peak."""
    command = [sys.executable, __file__, "--peak", str(side), str(batch), form]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_peak(side: int, batch: int, form: str) -> None:
    """In the process of its own: warm up on a small layer, then watch the high-water mark of one step."""
    forms(30, 1)[form]()
    run = forms(side, batch)[form]
    memory = PeakMemory()
    run()
    print(memory.growth)


def layers(report: Report) -> list[str]:
    """The table of forms; returns what was missed."""
    report.add(
        [
            "",
            "| tokens | batch | fused, ms | by hand | open | no map | ours / hand | no map / open | bar | verdict |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
    )
    misses = []
    for side, batch in CASES:
        runs = forms(side, batch)
        found = dict(zip(runs, times(list(runs.values()), 9 if side < 20 else 3), strict=True))
        chosen = found.get("no map", found["open"])
        ratio, saved = chosen / found["by hand"], found["no map"] / found["open"] if "no map" in found else None
        most = f"{MOST_SMALL:g} of by hand" if side < 20 else f"{MOST_LARGE:g} of open" if saved else ""
        missed = (side < 20 and ratio > MOST_SMALL) or (saved is not None and saved > MOST_LARGE)
        misses += [f"{side * side} tokens"] if missed else []
        cells = [f"{found[form]:.1f}" if form in found else "" for form in ("fused", "by hand", "open", "no map")]
        verdict = "" if not most else "FAIL" if missed else "pass"
        last = f"{ratio:.2f} | {'' if saved is None else f'{saved:.2f}'} | {most} | {verdict} |"
        report.add([f"| {side * side} | {batch} | {' | '.join(cells)} | {last}"])
    return misses


def memory(report: Report) -> list[str]:
    """The table of memory; returns what was missed."""
    side, batch = CASES[-1]
    peaks = {form: peak_mib(side, batch, form) for form in ("fused", "by hand", "open", "no map")}
    extra = {form: peak - peaks["fused"] for form, peak in peaks.items()}
    share = extra["no map"] / extra["open"]
    verdict = "pass" if share <= MOST_MEMORY else "FAIL"
    report.add(
        [
            "",
            "| tokens | fused, MiB | by hand, more | open, more | no map, more | no map / open | bar | verdict |",
            "|---|---|---|---|---|---|---|---|",
            f"| {side * side} | {peaks['fused']:.0f} | {extra['by hand']:.0f} | {extra['open']:.0f} |"
            f" {extra['no map']:.0f} | {share:.3f} | {MOST_MEMORY:g} | {verdict} |",
        ]
    )
    return [] if share <= MOST_MEMORY else ["memory"]


def training_step(report: Report) -> list[str]:
    """What one regularised layer adds to ViT-S/16; returns what was missed."""
    torch.manual_seed(0)
    batch = 16
    model = timm.create_model("vit_small_patch16_224").train()
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(10, (batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    layer = Layer(14, batch, prefix=1)
    tasks = (
        AttentionDistance(),
        AttentionDistance(preset="reference"),
        AttentionSimilarity(),
        AttentionSimilarity(preset="reference"),
    )
    runs = [layer.fused, *(layer.with_task(task) for task in tasks)]
    rounds = []
    for _ in range(ROUNDS):
        base = cpu_ms(step)
        done = [[cpu_ms(run) for run in runs] for _ in range(9)]
        rounds.append([base, *(median(column) for column in zip(*done, strict=True))])
    base, fused, *found = (min(column) for column in zip(*rounds[1:], strict=True))
    return step_table(report, tasks, base, [cost - fused for cost in found])


def step_table(report: Report, tasks: Sequence[Task], base: float, added: Sequence[float]) -> list[str]:
    """A line per task; returns what was missed."""
    head = "| ViT-S/16, 224 px, batch 16 | step, ms | added, ms | % | at most | verdict |"
    report.add(["", head, "|---|---|---|---|---|---|"])
    misses = []
    for task, name, cost in zip(tasks, ("paper", "reference") * 2, added, strict=True):
        percent = 100 * cost / base
        misses += [task.name] if percent > MOST_PERCENT else []
        verdict = "FAIL" if percent > MOST_PERCENT else "pass"
        figures = f"{base:.0f} | {cost:.1f} | {percent:.2f} | {MOST_PERCENT:g} %"
        report.add([f"| {task.name}, {name} | {figures} | {verdict} |"])
    return misses


def main() -> int:
    """Print the tables; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Cost of a price on the attention of one layer.")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.peak:
        print_peak(int(args.peak[0]), int(args.peak[1]), args.peak[2])
        return 0
    report = Report("What a price on attention costs", __doc__, args.output)
    misses = [*layers(report), *memory(report), *training_step(report)]
    report.close()
    return int(bool(misses))


if __name__ == "__main__":
    sys.exit(main())
