"""What the relations of all pairs of tokens (RelViT, "Where are my Neighbors?") cost; run as ``make bench``.

The added part alone (the tasks' forward and backward with their metrics, and the gradient into the tokens) is timed
against the plain model's training step; and `sprel` against the plain form, which has a q, a k and a v layer for each
of its nine heads (v is computed and not used, as in the released code), a cross-entropy, and no metrics.
One thread, CPU time, interleaved in rounds; each figure is the least disturbed round's median.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import timm
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from timing import Report, cpu_ms
from vitlet.backbones import TimmBackbone
from vitlet.tasks.angle import Angle
from vitlet.tasks.distance import Distance
from vitlet.tasks.heads import RelationHead
from vitlet.tasks.position import Position
from vitlet.tasks.sprel import SpatialRelations, relation_classes
from vitlet.tasks.task import Task
from vitlet.tokens.features import Features, Grid
from vitlet.tokens.views import View

ROUNDS = 4
"""The first of them only warms up."""
REPEATS = 5
"""Runs of the added part per round."""
MOST_PERCENT = 3.0
"""Bar on sprel + position, in percent of a ViT-S/16 step."""
MOST_RATIO = 0.80
"""Bar on sprel, as a share of the plain form."""


class SeparateHeads(nn.Module):
    """The plain form: three layers a head, scores stacked; the same weights as a `RelationHead`."""

    def __init__(self, head: RelationHead) -> None:
        super().__init__()
        weights = head.query_key.weight.detach().view(2, head.heads, head.width, head.channels)
        layer = partial(nn.Linear, head.channels, head.width, bias=False)
        self.query, self.key, self.value = (nn.ModuleList(layer() for _ in range(head.heads)) for _ in range(3))
        for layers, values in zip((self.query, self.key), weights, strict=True):
            for one, value in zip(layers, values, strict=True):
                one.weight.data.copy_(value)  # type: ignore[operator, union-attr]
        self.scale = head.width**0.5

    def forward(self, tokens: Tensor) -> Tensor:
        scores = []
        for query, key, value in zip(self.query, self.key, self.value, strict=True):
            value(tokens)
            scores.append(query(tokens) @ key(tokens).transpose(1, 2) / self.scale)
        return torch.stack(scores, dim=1)


@dataclass(frozen=True)
class Case:
    """A backbone and a batch."""

    name: str
    make: Callable[[], nn.Module]
    img_size: int
    batch: int


VIT_S = Case("ViT-S/16, 224 px", partial(timm.create_model, "vit_small_patch16_224"), 224, 16)
SWIN_T = Case("Swin-T, 224 px", partial(timm.create_model, "swin_tiny_patch4_window7_224"), 224, 16)
SMALL_VIT = Case(
    "ViT 192 wide, 9 deep, 32 px",
    partial(VisionTransformer, img_size=32, patch_size=4, embed_dim=192, depth=9, num_heads=12, mlp_ratio=2),
    32,
    64,
)
SMALL_SWIN = Case(
    "Swin 48 wide, 2+2+2 deep, 32 px",
    partial(SwinTransformer, img_size=32, patch_size=2, window_size=4, embed_dim=48, depths=(2, 2, 2)),
    32,
    64,
)


def measure_step(case: Case, groups: Sequence[Sequence[Task]]) -> tuple[float, list[float], Grid]:
    """Milliseconds of the plain training step and of each group of tasks; and the tokens that the tasks saw."""
    torch.manual_seed(0)
    model = case.make().train()
    images, labels = torch.randn(case.batch, 3, case.img_size, case.img_size), torch.randint(10, (case.batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    backbone = TimmBackbone(model, img_size=case.img_size)
    for task in (task for tasks in groups for task in tasks):
        task.build(backbone.shapes(task.needs))
    with torch.no_grad():
        seen = backbone(View(images), groups[0][0].needs).after_norm
    assert seen is not None
    grid = seen

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    added = [partial(run_tasks, tasks, images, grid) for tasks in groups]
    rounds = []
    for _ in range(ROUNDS):
        base = cpu_ms(step)
        runs = [[cpu_ms(run) for run in added] for _ in range(REPEATS)]
        rounds.append([base, *(median(times) for times in zip(*runs, strict=True))])
    base, *parts = (min(figures) for figures in zip(*rounds[1:], strict=True))
    return base, parts, grid


def run_tasks(tasks: Sequence[Task], images: Tensor, grid: Grid) -> None:
    """Forward and backward of these tasks on the same tokens, with the gradient into them."""
    tokens = grid.tokens.detach().requires_grad_()
    here = Grid(tokens, grid.coords)
    losses = []
    for task in tasks:
        task.zero_grad()
        losses.append(task(Features(images, here, after_norm=here)).loss)
    torch.stack(losses).sum().backward()


def measure_ratio(task: SpatialRelations, grid: Grid) -> tuple[float, float, float]:
    """Milliseconds of sprel and of the plain form, and how far their scores differ, in parts of the largest."""
    head = task.head
    assert isinstance(head, RelationHead)
    plain = SeparateHeads(head)
    classes = relation_classes(grid.coords).expand(len(grid.tokens), -1, -1).contiguous()

    def separate() -> None:
        plain.zero_grad()
        tokens = grid.tokens.detach().requires_grad_()
        F.cross_entropy(plain(Grid(tokens, grid.coords).sequence()), classes).backward()

    lean = partial(run_tasks, [task], grid.tokens, grid)
    rounds = []
    for _ in range(ROUNDS):
        runs = [(cpu_ms(lean), cpu_ms(separate)) for _ in range(REPEATS)]
        rounds.append([median(times) for times in zip(*runs, strict=True)])
    ours, theirs = (min(figures) for figures in zip(*rounds[1:], strict=True))
    with torch.no_grad():
        sequence = grid.sequence()
        expected = plain(sequence)
        difference = (head(sequence) - expected).abs().max() / expected.abs().max()
    return ours, theirs, difference.item()


def verdict(found: float, most: float | None) -> str:
    """The last two cells of a row."""
    return "| |" if most is None else f"{most:g} | {'pass' if found <= most else 'FAIL'} |"


STEPS = """
| backbone | batch | grid | step, ms | tasks | added, ms | added, % of step | at most | verdict |
|---|---|---|---|---|---|---|---|---|"""
RATIOS = """
Scores differ by rounding; the difference is in parts of the largest score. Heads as wide as the tokens (`paper`) gain
where a batch has more tokens than a token has channels; Swin-T here has 784 tokens of 768 channels.

| backbone | heads | `sprel`, ms | plain form, ms | ratio | difference of scores | at most | verdict |
|---|---|---|---|---|---|---|---|"""


def report_on(case: Case, report: Report) -> tuple[list[str], bool]:
    """Add a backbone's rows to the first table; its rows of the second, and whether a bar was missed."""
    narrow, wide = SpatialRelations(), SpatialRelations(head="paper")
    groups: dict[str, list[Task]] = {
        "`sprel` + `position`": [narrow, Position()],
        "`sprel`, head of the paper": [wide],
        "`distance`": [Distance()],
        "`angle`": [Angle()],
    }
    step, added, grid = measure_step(case, list(groups.values()))
    missed = False
    for name, part in zip(groups, added, strict=True):
        percent = 100 * part / step
        most = MOST_PERCENT if case is VIT_S and narrow in groups[name] else None
        missed |= most is not None and percent > most
        start = f"| {case.name} | {case.batch} | {grid.shape} | {step:.0f} | {name} | {part:.1f} | {percent:.2f} | "
        report.add([start + verdict(percent, most)])
    rows = []
    for heads, task, most in (("reference", narrow, MOST_RATIO), ("paper", wide, None)):
        ours, theirs, difference = measure_ratio(task, grid)
        ratio = ours / theirs
        missed |= most is not None and ratio > most
        start = f"| {case.name} | `{heads}` | {ours:.1f} | {theirs:.1f} | {ratio:.2f} | {difference:.1e} | "
        rows.append(start + verdict(ratio, most))
    return rows, missed


def main() -> int:
    """Print both tables; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Cost of RelViT's tasks beside the training step and the plain form.")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("What RelViT's tasks add to a training step", __doc__, args.output)
    report.add(STEPS.splitlines())
    ratios, missed = [], False
    for case in (VIT_S, SWIN_T, SMALL_VIT, SMALL_SWIN):
        rows, failed = report_on(case, report)
        ratios += rows
        missed |= failed
    report.add([*RATIOS.splitlines(), *ratios])
    report.close()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
