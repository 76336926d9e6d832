"""What torch.compile costs and saves a small network on a CPU: ``python benchmarks/compile.py --output FILE``.

Forward and backward pass of 64 images of noise at 64 px, bfloat16, channels-last, one thread; eager and compiled steps
take turns in one process. Compilation counts the CPU time of this process and of the compilers that it starts. A run
whose images grow compiles once for every image size. Break-even: minutes of eager steps after which one compilation is
paid back.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
from pathlib import Path

import timm
import torch
from torch import nn

import vitlet.models  # noqa: F401  # registers the names
from timing import Report, cpu_ms
from vitlet.processes import keep_freed_memory

MODELS = ("resnet_s_for_64px", "hybrid_s_for_64px", "convstem_vit_s_for_64px")
WARM, STEPS = 2, 12


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(name: str) -> tuple[float, float, float]:
    """Seconds of a compilation, milliseconds of an eager step and of a compiled one."""
    eager = timm.create_model(name).to(memory_format=torch.channels_last).train()
    compiled = torch.compile(timm.create_model(name).to(memory_format=torch.channels_last).train())
    images = torch.randn(64, 3, 64, 64).contiguous(memory_format=torch.channels_last)

    def step(model: nn.Module) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(images)
        scores.float().logsumexp(1).mean().backward()

    before = cpu_seconds()
    step(compiled)
    compilation = cpu_seconds() - before
    step(eager)
    times = [[cpu_ms(lambda model=model: step(model)) for model in (eager, compiled)] for _ in range(WARM + STEPS)]
    medians = [statistics.median(column) for column in zip(*times[WARM:], strict=True)]
    return compilation, medians[0], medians[1]


def main() -> None:
    """Measure all models, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # a cache of earlier runs would hide the cost
    torch.set_num_threads(1)
    keep_freed_memory()
    lines = [
        "",
        "| model | compilation, s | eager, ms | compiled, ms | ratio | break-even, min |",
        "|---|---|---|---|---|---|",
    ]
    for name in MODELS:
        compilation, eager, compiled = measure(name)
        gain = 1 - compiled / eager
        even = f"{compilation / gain / 60:.0f}" if gain > 0 else "never"
        lines.append(f"| {name} | {compilation:.0f} | {eager:.1f} | {compiled:.1f} | {compiled / eager:.2f} | {even} |")
    report = Report("What torch.compile costs and saves", __doc__, chosen.output)
    report.add(lines)
    report.close()


if __name__ == "__main__":
    main()
