"""How well ``vitlet plan`` predicts real training steps of this machine; run as ``make bench``.

Each row is a real configuration: the network with its tasks, forward, backward, clipped gradients, AdamW, on random
images. Time: `vitlet plan` measures the machine on its small pieces of networks and predicts; then, in the same
process, the step is run for real (CPU time of one thread, the median of the steps). Memory: what a process of its own
grows by at its peak, from before the network is built, over two steps. No number is fitted to these rows, but the
method was mended on them: after a first look (one row was off by 295 %, memory by 13 %) kinds of operations were added
to the pieces, a rule for operations far larger than any measured, and a fault in the counting of memory was put right.
Bars: the median error at most 25 %, the worst at most 50 %, for time and for memory.

Last, named devices, which are known by their data sheets alone: predicted images per second beside published ones.
Those on an RTX 3090 are timm's, of its own training loop (results/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv of
its repository, float16, PyTorch 1.12). They are no independent test: of 0.4, 0.5, 0.6, 0.7 and 0.8 of the peak, 0.5
was chosen because it has the least median error on them. Those on A100 and V100 are NVIDIA's (ResNet50 v1.5 for
PyTorch in its DeepLearningExamples, 256 images a device assumed), looked up after that choice. All of them are other
people's measurements in other loops; there is no bar. Grouped and depthwise convolutions come out too fast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import nn

from timing import PeakMemory, Report
from vitlet.config import RunConfig
from vitlet.experiments.planning.devices import DEVICES, EFFICIENCY, Roofline
from vitlet.experiments.planning.plan import Machine, plan, predict
from vitlet.experiments.planning.request import PlanRequest
from vitlet.experiments.planning.step import count_step, plan_objective
from vitlet.experiments.planning.supply import Supply
from vitlet.experiments.planning.workouts import exercise, workouts
from vitlet.training.optim import make_autocast, make_optimizer

MEDIAN, WORST = 25.0, 50.0
"""Bars, in percent."""
MIB = 2**20
CLASSES = 100


@dataclass(frozen=True)
class Case:
    """A configuration; steps are those timed, after one that warms up."""

    model: str
    side: int
    batch: int
    settings: tuple[tuple[str, object], ...] = ()
    steps: int = 3

    @property
    def config(self) -> RunConfig:
        """As settings of a run."""
        plain = {"model": self.model, "img_size": self.side, "batch_size": self.batch, **dict(self.settings)}
        return RunConfig.from_dict({**plain, "device": "cpu"})

    def __str__(self) -> str:
        extra = ", ".join(f"{key} {value}" for key, value in self.settings)
        return f"{self.model}{', ' + extra if extra else ''}"


SMALL_PATCH = ("model_kwargs", {"patch_size": 4})
CASES = (
    Case("vit_tiny_patch16_224", 32, 64, (SMALL_PATCH,)),
    Case("vit_tiny_patch16_224", 32, 128, (SMALL_PATCH, ("task", {"drloc": 0.5}))),
    Case("vit_small_patch16_224", 224, 8),
    Case("vit_small_patch16_224", 224, 16, (("task", {"sprel": 1, "position": 1}),)),
    Case("vit_tiny_patch16_224", 96, 64, (("task", {"attention-distance": 1}),)),
    Case("vit_small_patch16_224", 224, 16, (("grad_checkpointing", True),)),
    Case("swin_tiny_patch4_window7_224", 224, 4),
    Case("swin_tiny_patch4_window7_224", 224, 8, (("task", {"drloc": 0.5}),)),
    Case("resnet18", 64, 64),
    Case("resnet50", 96, 32, (("task", {"drloc": 0.5}),)),
    Case("resnet50", 224, 8),
    Case("convnext_tiny", 96, 16),
    Case("mobilenetv3_large_100", 96, 32),
    Case("efficientnet_b0", 224, 8),
    Case("vit_tiny_patch16_224", 32, 16, (SMALL_PATCH, ("amp", True)), steps=1),
    Case("resnet18", 64, 8, (("amp", True),), steps=1),
    Case("vit_tiny_patch16_224", 96, 16, (("amp", True), ("task", {"drloc": 0.5})), steps=1),
)

PUBLISHED = {
    "vit_tiny_patch16_224": (512, 2293.54),
    "vit_small_patch16_224": (384, 1052.92),
    "vit_base_patch16_224": (192, 390.86),
    "swin_tiny_patch4_window7_224": (256, 646.76),
    "swin_small_patch4_window7_224": (192, 399.67),
    "resnet18": (512, 2764.22),
    "resnet50": (512, 826.06),
    "resnet101": (256, 568.98),
    "convnext_tiny": (256, 813.16),
    "regnety_016": (512, 954.26),
    "mobilenetv2_100": (512, 1832.14),
    "efficientnet_b0": (384, 1459.11),
}
"""By timm on an RTX 3090, float16: batch size and images per second at 224 px."""
RESNET = (
    ("a100", 1, True, 2470.0),
    ("a100", 8, True, 16621.0),
    ("v100", 1, True, 1156.0),
    ("v100", 8, True, 8056.0),
    ("v100", 1, False, 356.0),
    ("v100", 8, False, 2766.0),
)
"""By NVIDIA, ResNet-50 at 224 px: device, how many, whether in float16, images per second."""


def real_step(config: RunConfig) -> Callable[[], None]:
    """A training step as the loop does it, on images made up."""
    objective = plan_objective(config, CLASSES)
    optimizer = make_optimizer(objective, config)
    autocast = make_autocast(config, torch.device("cpu"))
    images = torch.randn(config.batch_size, 3, *objective.backbone.img_size)
    labels = torch.randint(CLASSES, (config.batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        with autocast():
            loss = objective(images, labels, objective.weights(config.epochs / 2)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(objective.parameters(), config.clip_grad or 0.0)
        optimizer.step()

    return step


def print_times(case: Case) -> None:
    """In a process of its own: the plan, then the real thing."""
    torch.set_num_threads(1)
    found = plan(case.config, PlanRequest(images=10**6))
    step = real_step(case.config)
    step()
    taken = []
    for _ in range(case.steps):
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    print(json.dumps({"predicted": found.step_seconds, "real": median(taken), "memory": found.memory.total / MIB}))


def print_memory(case: Case) -> None:
    """In a process of its own: libraries loaded first, then the growth up to the peak of two steps."""
    torch.set_num_threads(1)
    for workout in list(workouts(slow=True)):
        exercise(workout, torch.device("cpu"))(torch.bfloat16 if case.config.amp else None)
    memory = PeakMemory()
    step = real_step(case.config)
    step()
    step()
    print(json.dumps({"real": memory.growth}))


def ask(what: str, case: Case) -> dict[str, float]:
    """Run this file again for one case; for memory, what is freed is to be given back at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if what == "memory":
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    command = [sys.executable, __file__, "--case", str(CASES.index(case)), "--what", what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def error(predicted: float, real: float) -> float:
    """In percent of what is real."""
    return 100 * (predicted / real - 1)


def summary(name: str, errors: list[float]) -> str:
    """Against the bars."""
    sizes = [abs(each) for each in errors]
    passed = median(sizes) <= MEDIAN and max(sizes) <= WORST
    return f"{name}: median error {median(sizes):.1f} %, worst {max(sizes):.1f} %: {'pass' if passed else 'FAIL'}."


def compare(report: Report, cases: list[Case]) -> None:
    """The table of this machine."""
    report.add(
        [
            "| configuration | px | batch | step, s | predicted, s | error % | peak, MiB | predicted, MiB | error % |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
    )
    of_time, of_memory = [], []
    for case in cases:
        timed, used = ask("time", case), ask("memory", case)
        of_time.append(error(timed["predicted"], timed["real"]))
        of_memory.append(error(timed["memory"], used["real"]))
        cells = [str(case), case.side, case.batch, f"{timed['real']:.3f}", f"{timed['predicted']:.3f}"]
        cells += [f"{of_time[-1]:+.1f}", f"{used['real']:.0f}", f"{timed['memory']:.0f}", f"{of_memory[-1]:+.1f}"]
        report.add([f"| {' | '.join(map(str, cells))} |"])
    report.add(["", summary("Time", of_time), summary("Memory", of_memory)])


def compare_published(report: Report) -> None:
    """The table of GPUs that others have measured."""
    report.add(
        [
            "",
            f"## GPUs, predicted at {EFFICIENCY:.0%} of their peak, beside published figures",
            "",
            "| device | network | precision | batch | images/s published | predicted | error % |",
            "|---|---|---|---|---|---|---|",
        ]
    )
    errors = [
        add_published(report, ("rtx3090", 1), model, batch, True, rate) for model, (batch, rate) in PUBLISHED.items()
    ]
    others = [add_published(report, (name, many), "resnet50", 256, half, rate) for name, many, half, rate in RESNET]
    report.add(
        [
            "",
            f"RTX 3090: median error {median(errors):.0f} %, worst {max(errors):.0f} %."
            f" A100 and V100: median {median(others):.0f} %, worst {max(others):.0f} %.",
        ]
    )


def add_published(
    report: Report, devices: tuple[str, int], model: str, batch: int, half: bool, published: float
) -> float:
    """One row; returns the size of the error in percent."""
    device, many = DEVICES[devices[0]], devices[1]
    config = RunConfig(model=model, img_size=(224, 224), batch_size=batch * many, amp=half, amp_dtype="float16")
    machine = Machine(device.name, Roofline(device), 2**40, device.link, is_gpu=True)
    count = count_step(config, classes=1000, images=batch)
    found = predict(config, PlanRequest(devices=many), Supply(10**6, 0, 1000, ""), machine, count).images_per_second
    cells = [f"{many} x {device.name}", model, "float16" if half else "float32", batch * many]
    cells += [f"{published:.0f}", f"{found:.0f}", f"{error(found, published):+.0f}"]
    report.add([f"| {' | '.join(map(str, cells))} |"])
    return abs(error(found, published))


def main() -> None:
    """All cases, or the part of one that a process of its own does."""
    parser = argparse.ArgumentParser(description="Predicted against real training steps.")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case", type=int)
    parser.add_argument("--what", choices=("time", "memory"))
    parser.add_argument("--only", help="cases whose name holds this; or published")
    chosen = parser.parse_args()
    if chosen.case is not None:
        {"time": print_times, "memory": print_memory}[chosen.what](CASES[chosen.case])
        return
    torch.set_num_threads(1)
    report = Report("Predicted and real training steps", __doc__, chosen.output)
    report.add([""])
    if chosen.only == "published":
        compare_published(report)
        return
    compare(report, [case for case in CASES if not chosen.only or chosen.only in str(case)])
    compare_published(report)
    report.close()


if __name__ == "__main__":
    main()
