"""What glibc's habit of giving memory back costs a training step: ``python benchmarks/allocator.py --output FILE``.

A training step on 64 images of noise at 64 px, one thread, in processes that take turns: as the system is, and after
`vitlet.processes.keep_freed_memory`, which every training by the command line calls. CPU time of a step in
milliseconds, median over the processes, and page faults per step.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import timm
import torch
import torch.nn.functional as F

from timing import Report, cpu_ms
from vitlet.processes import keep_freed_memory

MODELS = ("resnet_s_for_64px", "hybrid_s_for_64px", "convstem_vit_s_for_64px")
TURNS, STEPS = 3, 10


def measure(name: str, keeps: bool) -> None:
    """Print milliseconds and page faults of a step."""
    import vitlet.models  # noqa: F401  # registers the names

    if keeps:
        keep_freed_memory()
    torch.set_num_threads(1)
    model = timm.create_model(name).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.randn(64, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(64) % 10

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(4):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = [cpu_ms(step) for _ in range(STEPS)]
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / STEPS
    print(statistics.median(times), faults)


def main() -> None:
    """Measure all models, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "KEEPS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        measure(chosen.one[0], chosen.one[1] == "1")
        return
    report = Report("What it costs to give memory back to the system", __doc__, chosen.output)
    head = "| model | as it is, ms | keeps memory, ms | ratio | page faults before | after |"
    report.add(["", head, "|---|---|---|---|---|---|"])
    for name in MODELS:
        found: dict[str, list[tuple[float, ...]]] = {"0": [], "1": []}
        for _ in range(TURNS):
            for keeps, rows in found.items():
                words = [sys.executable, __file__, "--one", name, keeps]
                answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
                rows.append(tuple(map(float, answer.split())))
        (before, old), (after, new) = (
            [statistics.median(each) for each in zip(*found[key], strict=True)] for key in "01"
        )
        report.add([f"| {name} | {before:.1f} | {after:.1f} | {after / before:.2f} | {old:,.0f} | {new:,.0f} |"])
    report.close()


if __name__ == "__main__":
    main()
