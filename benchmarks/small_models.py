"""Speed of the networks for small images: ``python benchmarks/small_models.py``.

Times a training step (forward, cross-entropy, backward, fused AdamW) of each on 32 images at its own size with one
thread, in CPU time, so that other programs on the machine count less; the fastest of several steps counts. Writes
``results/small_models.csv`` and the same file into the package, where ``vitlet models --small`` reads it. About two
minutes on one core.
"""

from __future__ import annotations

import csv
import datetime
import io
import sys
from pathlib import Path

import timm
import torch
import torch.nn.functional as F

import vitlet.models
from timing import cpu_ms, processor
from vitlet.models.small_list import SPEEDS, small_models

BATCH, STEPS = 32, 5
RESULTS = Path(__file__).parent / "results" / "small_models.csv"
PACKAGED = Path(vitlet.models.__file__).parent / SPEEDS


def images_per_second(name: str, side: int) -> float:
    """Of the fastest of some training steps after the first."""
    torch.manual_seed(0)
    model = timm.create_model(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images, labels = torch.randn(BATCH, 3, side, side), torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step()
    return 1000 * BATCH / min(cpu_ms(step) for _ in range(STEPS))


def main() -> int:
    """Measure, print, and write both files."""
    torch.set_num_threads(1)
    table = io.StringIO()
    place = f"{datetime.date.today()}; {processor()}, one thread; torch {torch.__version__}, timm {timm.__version__}"
    table.write(f"# python benchmarks/small_models.py; {place}\n")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["name", "img_size", "parameters", "rows", "columns", "images_per_second"])
    for model in small_models():
        speed = round(images_per_second(model.name, model.img_size), 1)
        writer.writerow([model.name, model.img_size, model.parameters, *model.grid, speed])
        print(f"{model.name}: {speed} images a second", flush=True)
    for file in (RESULTS, PACKAGED):
        file.write_text(table.getvalue(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
