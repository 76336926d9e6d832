"""What dense relative localization adds to a training step; run as ``make bench``.

The added part alone (the task's forward and backward, with the gradient into the tokens) is timed against the plain
model's training step and against the floor of its head: three times the forward of its two large matrix products.
One thread, CPU time, all three interleaved in rounds; each figure is the least disturbed round's median.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import timm
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from timing import Report, cpu_ms
from vitlet.backbones import TimmBackbone
from vitlet.tasks.drloc import DRLoc
from vitlet.tokens.features import Features, Grid
from vitlet.tokens.views import View

ROUNDS = 4
"""Base steps per backbone; the first of them only warms up."""
REPEATS = 9
"""Runs of the task and of the floor per round."""
MOST_PERCENT = 1.5
"""Bar on the added time, in percent of the base step, where a case has one."""
MOST_FLOORS = 1.25
"""Bar on the added time, in multiples of the floor."""


@dataclass(frozen=True)
class Case:
    """A backbone, a batch, and which bars hold for it."""

    name: str
    make: Callable[[], nn.Module]
    img_size: int
    batch: int
    most_percent: float | None = None
    most_floors: float | None = MOST_FLOORS
    pool: Literal["auto", "none"] = "auto"


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds of the plain step, of the task alone and of its head's floor."""

    case: Case
    grid: str
    step: float
    added: float
    floor: float

    @property
    def percent(self) -> float:
        return 100 * self.added / self.step

    @property
    def floors(self) -> float:
        return self.added / self.floor

    @property
    def misses(self) -> list[str]:
        """The bars that were missed, in words."""
        bars = (("% of the step", self.percent, self.case.most_percent), ("floors", self.floors, self.case.most_floors))
        return [f"{found:.2f} {unit}, at most {most:g}" for unit, found, most in bars if most and found > most]

    def row(self) -> str:
        """A line of the table."""
        bars = [f"{self.case.most_percent:g} %"] if self.case.most_percent else []
        bars += [f"{self.case.most_floors:g} floors"] if self.case.most_floors else []
        verdict = "FAIL: " + "; ".join(self.misses) if self.misses else "pass"
        return (
            f"| {self.case.name} | {self.case.batch} | {self.grid} | {self.step:.0f} | {self.added:.1f} |"
            f" {self.floor:.1f} | {self.percent:.2f} | {self.floors:.2f} | {', '.join(bars)} | {verdict} |"
        )


HEADER = """\
| backbone | batch | grid | step, ms | added, ms | floor, ms | added, % of step | added / floor | at most | verdict |
|---|---|---|---|---|---|---|---|---|---|"""


VIT_S = partial(timm.create_model, "vit_small_patch16_224")
SMALL_VIT = partial(VisionTransformer, img_size=32, patch_size=4, embed_dim=192, depth=9, num_heads=12, mlp_ratio=2)
SMALL_SWIN = partial(SwinTransformer, img_size=32, patch_size=2, window_size=4, embed_dim=48, depths=(2, 2, 2))
CASES = (
    Case("ViT-S/16, 224 px (pooled to 7x7, the default)", VIT_S, 224, 16, MOST_PERCENT),
    Case("ViT-S/16, 224 px, not pooled", VIT_S, 224, 16, MOST_PERCENT, None, pool="none"),
    Case("Swin-T, 224 px", partial(timm.create_model, "swin_tiny_patch4_window7_224"), 224, 16, MOST_PERCENT),
    Case("ResNet-50, 224 px", partial(timm.create_model, "resnet50"), 224, 16),
    Case("ViT 192 wide, 9 deep, 32 px", partial(SMALL_VIT, num_classes=100), 32, 64),
    Case("Swin 48 wide, 2+2+2 deep, 32 px", partial(SMALL_SWIN, num_heads=(3, 6, 12), num_classes=100), 32, 64),
)


def measure(case: Case) -> Cost:
    """Time a case; the task runs on the tokens that the backbone really hands it, in their layout."""
    torch.manual_seed(0)
    model = case.make().train()
    images = torch.randn(case.batch, 3, case.img_size, case.img_size)
    labels = torch.randint(10, (case.batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    backbone = TimmBackbone(model, img_size=case.img_size)
    task = DRLoc(pool=case.pool)
    task.build(backbone.shapes(task.needs))
    with torch.no_grad():
        last = backbone(View(images)).last
    left, right = (torch.randn(case.batch * task.pairs, width) for width in (2 * last.shape.channels, task.hidden))
    first, second = (torch.randn(task.hidden, inputs.shape[1]) for inputs in (left, right))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    def added() -> None:
        task.zero_grad()
        tokens = last.tokens.detach().requires_grad_()
        task(Features(images, Grid(tokens, last.coords))).loss.backward()

    def products() -> None:
        F.linear(left, first)
        F.linear(right, second)

    rounds = []
    for _ in range(ROUNDS):
        base = cpu_ms(step)
        runs = [(cpu_ms(added), 3 * cpu_ms(products)) for _ in range(REPEATS)]
        rounds.append((base, median(run[0] for run in runs), median(run[1] for run in runs)))
    return Cost(case, str(last.shape), *(min(figures) for figures in zip(*rounds[1:], strict=True)))


def main() -> int:
    """Print the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description="Cost of DRLoc (l1, 64 pairs, hidden 512) beside the training step.")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("What DRLoc adds to a training step", __doc__, args.output)
    report.add(["", HEADER])
    missed = False
    for case in CASES:
        cost = measure(case)
        missed |= bool(cost.misses)
        report.add([cost.row()])
    report.close()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
