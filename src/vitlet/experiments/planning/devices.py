"""Device performance: published peaks by name or custom numbers, and the time of an operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitlet.errors import VitletError, nearest

if TYPE_CHECKING:
    from vitlet.experiments.planning.counting import Work

EFFICIENCY = 0.5
"""Assumed share of the published peak that matrix products and convolutions achieve; see benchmarks/plan.py."""
BANDWIDTH_SHARE = 0.8
"""Assumed share of the published memory bandwidth that other operations achieve."""
LAUNCH_SECONDS = 8e-6
"""Assumed time in which Python and PyTorch hand one operation to a GPU; a step of tiny operations waits for that."""


@dataclass(frozen=True)
class Device:
    """A device by its published numbers.

    Attributes:
        name: as on the command line.
        tflops: trillions of floating-point operations a second of dense products, by precision.
        bandwidth: bandwidth of its memory, GB/s.
        memory: GiB.
        link: GB/s that one device sends to the others.
        source: where the numbers come from.
    """

    name: str
    tflops: Mapping[str, float]
    bandwidth: float
    memory: float
    link: float
    source: str = field(default="published peaks", compare=False)


def _peaks(half: float, full: float) -> dict[str, float]:
    return {"float32": full, "float16": half, "bfloat16": half}


DEVICES = {
    device.name: device
    for device in (
        Device("a100", _peaks(312, 19.5), 2039, 80, 300),
        Device("a100-40gb", _peaks(312, 19.5), 1555, 40, 300),
        Device("h100", _peaks(989, 67), 3350, 80, 450),
        Device("v100", {"float32": 15.7, "float16": 125}, 900, 32, 150),
        Device("rtx3090", _peaks(71, 35.6), 936, 24, 16),
        Device("rtx4090", _peaks(165, 82.6), 1008, 24, 32),
        Device("l4", _peaks(121, 30.3), 300, 24, 32),
        Device("t4", {"float32": 8.1, "float16": 65}, 320, 16, 16),
    )
}
"""Data-sheet numbers: dense products in half precision (float32 sums) and float32 without TF32, SXM forms of a100, h100
and v100; link: NVLink in one direction where there is one, otherwise PCIe."""


def named_device(name: str) -> Device:
    """The device of that name."""
    if name not in DEVICES:
        raise VitletError(
            f"unknown device {name!r}.{nearest(name, DEVICES)} Known: this, {', '.join(DEVICES)}; for another give"
            " --tflops, --bandwidth and --memory."
        )
    return DEVICES[name]


@dataclass(frozen=True)
class Roofline:
    """Every operation takes as long as its arithmetic or its memory traffic, whichever is longer."""

    device: Device
    efficiency: float = EFFICIENCY

    def seconds(self, work: Mapping[Work, int]) -> float:
        """The device's own time, unless handing the operations over takes longer."""
        own = sum(count * self._one(each) for each, count in work.items())
        return max(own, LAUNCH_SECONDS * sum(work.values()))

    def _one(self, work: Work) -> float:
        peak = self.device.tflops.get(work.precision, self.device.tflops["float32"])
        arithmetic = work.flops / (1e12 * peak * self.efficiency)
        return max(arithmetic, work.bytes / (1e9 * self.device.bandwidth * BANDWIDTH_SHARE))

    def describe(self) -> list[str]:
        """Description of the source of the numbers, and of the assumptions."""
        lines = [
            f"{self.device.name}: {self.device.source}; assumed, not measured: {self.efficiency:.0%} of the peak of"
            f" products, {BANDWIDTH_SHARE:.0%} of the memory bandwidth, {LAUNCH_SECONDS * 1e6:.0f} microseconds to"
            " hand over an operation"
        ]
        if self.device.name in DEVICES and "bfloat16" not in self.device.tflops:
            lines.append(f"{self.device.name} has no products in bfloat16: with --amp use --amp-dtype float16")
        return lines


def all_reduce_seconds(devices: int, size: int, link: float) -> float:
    """A ring: every device sends and receives twice the bytes but for its own share."""
    return 2 * (devices - 1) / devices * size / (1e9 * link)
