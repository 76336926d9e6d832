"""The speed of this machine, measured on small pieces of models in a few seconds."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from vitlet.errors import VitletError
from vitlet.experiments.planning.counting import Counting, Work
from vitlet.experiments.planning.workouts import TokenBlock, exercise, workouts

REPEATS = 2
"""Steps that each piece is timed on, after one that warms up."""
ANY = "add"
"""Kind that stands for all that was not measured: reads and writes, little arithmetic."""

FAR = 64
"""An operation that is so many times larger than the largest measured of its kind is none of these: an addition of two
numbers says nothing about one of two images."""

Curve = tuple[tuple[float, float], ...]
"""Sizes of an operation, ascending, and the rate at each: operations or bytes a second."""


@dataclass(frozen=True)
class MachineSpeed:
    """A machine's rates by kind of operation and precision, and what each operation costs beyond its own work."""

    curves: Mapping[tuple[str, str], Curve]
    overhead: float
    name: str

    def seconds(self, work: Mapping[Work, int]) -> float:
        """Seconds of a step: each operation at the rate measured for its kind and size."""
        return sum(count * (self.overhead + self._one(each)) for each, count in work.items())

    def _one(self, work: Work) -> float:
        size = work.flops or work.bytes
        stand_in = "mm_nn" if work.flops else ANY
        for kind in ((work.kind, work.precision), (work.kind, "float32"), (stand_in, work.precision)):
            if kind in self.curves and size <= FAR * self.curves[kind][-1][0]:
                return size / rate_at(self.curves[kind], size)
        return size / rate_at(self.curves[stand_in, "float32"], size)

    def describe(self) -> list[str]:
        """The two best-known numbers of each precision."""
        lines = []
        for precision in sorted({precision for _, precision in self.curves}):
            products = max((rate for _, rate in self.curves.get(("mm_nn", precision), ())), default=0.0)
            if products:
                moved = max(rate for _, rate in self.curves.get((ANY, precision), ((1.0, 0.0),)))
                lines.append(
                    f"{self.name}, measured just now, {precision}: {products / 1e9:.3g} GFLOP/s in matrix products,"
                    f" {moved / 1e9:.3g} GB/s in additions"
                )
        return lines


def rate_at(curve: Curve, size: float) -> float:
    """The rate between the two measured sizes around this one, by their logarithms; beyond, that of the nearest."""
    sizes, rates = np.log(curve).T
    return math.exp(np.interp(math.log(max(size, 1)), sizes, rates))


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds of work: this process's own on one core, otherwise on the wall, once the device has finished."""
    if device.type == "cpu":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def clock() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return clock


def measure_machine(device: torch.device, precision: torch.dtype | None) -> MachineSpeed:
    """Time small pieces of models on a device, in float32 and, if one is given, in a mixed precision."""
    clock = clock_of(device)
    times: dict[Work, list[float]] = defaultdict(list)
    for chosen in {None, precision}:
        slow = chosen is not None and device.type == "cpu"
        for workout in workouts(slow=slow):
            step = exercise(workout, device)
            step(chosen)
            with Counting(clock) as watch:
                for _ in range(1 if slow else REPEATS):
                    step(chosen)
            for work, taken in watch.times.items():
                times[work] += taken
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this machine"
    measured = MachineSpeed(_curves(times), 0.0, name)
    return replace(measured, overhead=_overhead(measured, device, clock))


def _curves(times: Mapping[Work, list[float]]) -> dict[tuple[str, str], Curve]:
    """Speed curves by kind of operation and precision; sizes within a factor of four are merged."""
    points: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for work, taken in times.items():
        if size := work.flops or work.bytes:
            members = points[work.kind, work.precision][round(math.log(size, 4))]
            members.append((size, max(median(taken), 1e-9)))
    return {kind: tuple(_joined(buckets[key]) for key in sorted(buckets)) for kind, buckets in points.items()}


def _joined(members: list[tuple[float, float]]) -> tuple[float, float]:
    """Mean size, and the rate of all of them together."""
    sizes, seconds = (sum(column) for column in zip(*members, strict=True))
    return sizes / len(members), sizes / seconds


def _overhead(measured: MachineSpeed, device: torch.device, clock: Callable[[], float]) -> float:
    """Overhead of an operation in seconds, from a training step with almost no arithmetic."""
    step = exercise((lambda: TokenBlock(32), (1, 4, 32)), device)
    counting = Counting()
    with counting:
        step(None)
    steps, start = 50, clock()
    for _ in range(steps):
        step(None)
    beyond = (clock() - start) / steps - measured.seconds(counting.work)
    return max(0.0, beyond / counting.work.total())


def memory_gib(device: torch.device) -> float:
    """Memory of this machine, or of its accelerator."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory) / 2**30
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError) as problem:  # not on Windows
        raise VitletError("the memory of this system is unknown; give it in GiB with --memory.") from problem
