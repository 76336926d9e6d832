"""Speed of the networks for small images: ``python benchmarks/small_models.py``.

Times a training step (forward, cross-entropy, backward, fused AdamW) on 32 images at each network's own size with one
thread, in 32 bits and in bfloat16 with channels-last layout. The networks take turns and CPU time counts, so that other
programs on the machine count less; the fastest of several steps counts. Of the families in five sizes those of size s
are measured. Writes ``results/small_models.csv`` and the same file into the package, where ``vitlet models --small``
reads it. About three minutes on one core.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import torch.nn.functional as F

import vitlet.models
from timing import cpu_ms, processor
from vitlet.models.small_list import SPEEDS, SmallModel, small_models

BATCH, ROUNDS = 32, 3
RESULTS = Path(__file__).parent / "results" / "small_models.csv"
PACKAGED = Path(vitlet.models.__file__).parent / SPEEDS
LEFT_OUT = re.compile("_(xs|m|l|xl)_for_")


def training_step(name: str, side: int, bf16: bool) -> Callable[[], None]:
    """A function that trains this network for one step."""
    torch.manual_seed(0)
    layout = torch.channels_last if bf16 else torch.contiguous_format
    model = timm.create_model(name).train().to(memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(BATCH, 3, side, side).contiguous(memory_format=layout)
    labels = torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            scores = model(images)
        F.cross_entropy(scores.float(), labels).backward()
        optimizer.step()

    return step


def measure(models: list[SmallModel]) -> dict[tuple[str, bool], float]:
    """Images per second by name and precision: of the fastest of some steps after the first."""
    steps = {(one.name, bf16): training_step(one.name, one.img_size, bf16) for one in models for bf16 in (False, True)}
    fastest = dict.fromkeys(steps, math.inf)
    for step in steps.values():
        step()
    for number in range(ROUNDS):
        for key, step in steps.items():
            fastest[key] = min(fastest[key], cpu_ms(step))
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    return {key: round(1000 * BATCH / milliseconds, 1) for key, milliseconds in fastest.items()}


def main() -> int:
    """Measure, print, and write both files."""
    torch.set_num_threads(1)
    models = [one for one in small_models() if not LEFT_OUT.search(one.name)]
    speeds = measure(models)
    table = io.StringIO()
    place = f"{datetime.date.today()}; {processor()}, one thread; torch {torch.__version__}, timm {timm.__version__}"
    table.write(f"# python benchmarks/small_models.py; {place}\n")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["name", "img_size", "parameters", "rows", "columns", "images_per_second", "in_bf16"])
    for one in models:
        both = speeds[one.name, False], speeds[one.name, True]
        writer.writerow([one.name, one.img_size, one.parameters, *one.grid, *both])
    print(table.getvalue())
    for file in (RESULTS, PACKAGED):
        file.write_text(table.getvalue(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
