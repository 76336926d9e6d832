"""What the papers' full tables would take, by ``vitlet plan``.

Nothing of this was run. Steps are counted operation by operation; the devices are known by their data sheets and by
the assumptions named below. ``benchmarks/plan.py`` holds these against published figures: ResNet-50 came out 16 % too
fast on one A100 and 37 % on eight, so take the hours as a lower end. Images are assumed to come fast enough, which
they often do not at such speeds. No validation images are held out, as in the papers; testing is left out. Training is
in bfloat16 (``--amp``). The classifier is counted with 100 classes throughout; the weight of DRLoc on ResNet-50 is not
published.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from timing import Report
from vitlet.config import RunConfig
from vitlet.data.named import OFFICIAL
from vitlet.errors import VitletError
from vitlet.experiments.planning.devices import Roofline, named_device
from vitlet.experiments.planning.plan import GIB, Machine, Plan, predict
from vitlet.experiments.planning.request import PlanRequest
from vitlet.experiments.planning.step import StepCount, count_step
from vitlet.experiments.planning.supply import Supply

CLASSES = 100
NETWORK = 25.0
"""GB/s of one device between machines: a network of 200 gigabits for each."""
DOMAINS = tuple(name for name in OFFICIAL if name.startswith("domainnet"))
SCRATCH = ("imagenet100", "cifar10", "cifar100", "flowers102", "svhn", *DOMAINS)


@dataclass(frozen=True)
class Row:
    """A training of one network, on several datasets."""

    title: str
    model: str
    task: Mapping[str, float]
    batch: int
    epochs: int
    side: int = 224
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> RunConfig:
        """As settings of a run."""
        plain = {"model": self.model, "task": dict(self.task), "img_size": self.side, "amp": True}
        return RunConfig.from_dict({**plain, "batch_size": self.batch, "epochs": self.epochs, **self.settings})


def _drloc(title: str, model: str, weight: float, **settings: Any) -> list[Row]:
    return [
        Row(title, model, {}, 1024, 100, settings=settings),
        Row(f"{title} + DRLoc", model, {"drloc": weight}, 1024, 100, settings=settings),
    ]


DRLOC = [
    *_drloc("CvT-13", "cvt_13", 0.1),
    *_drloc("Swin-T", "swin_tiny_patch4_window7_224", 0.5, drop_path=0.2),
    *_drloc("T2T-ViT-14", "t2t_vit_14", 0.1),
    *_drloc("ViT-B/16", "vit_base_patch16_224", 0.01),
    *_drloc("ResNet-50", "resnet50", 0.1),
]
RELATIONS = {"sprel": 1.0, "position": 1.0}
SMALL = {"model_kwargs": {"patch_size": 4}, "drop_path": 0.1}
LARGE = {"model_kwargs": {"patch_size": 32}, "drop_path": 0.1}
RELVIT_32 = [
    Row("ViT-S/4, pre-training", "vit_small_patch16_224", RELATIONS, 256, 100, 32, {**SMALL, "pretrain": True}),
    Row("ViT-S/4, fine-tuning", "vit_small_patch16_224", {}, 256, 100, 32, SMALL),
]
RELVIT_224 = [
    Row("ViT-S/32, pre-training", "vit_small_patch16_224", RELATIONS, 256, 100, 224, {**LARGE, "pretrain": True}),
    Row("ViT-S/32, fine-tuning", "vit_small_patch16_224", {}, 256, 100, 224, LARGE),
    Row("Swin-T, pre-training", "swin_tiny_patch4_window7_224", RELATIONS, 64, 100, 224, {"pretrain": True}),
    Row("Swin-T, fine-tuning", "swin_tiny_patch4_window7_224", {}, 64, 100),
]
ARVIT = [
    Row("ARViT, fine-tuning", "arvit_patch16_256", {}, 80, 90, 256),
    Row("ARViT + distance", "arvit_patch16_256", {"attention-distance": 0.01}, 80, 90, 256),
    Row("ARViT + similarity", "arvit_patch16_256", {"attention-similarity": 0.01}, 80, 90, 256),
]
ARVIT_IMAGENET = [
    Row(
        "ARViT + distance, pre-training by rotation (90 epochs)",
        "arvit_patch16_256",
        {"rotation": 1.0, "attention-distance": 0.01},
        80,
        90,
        256,
        {"pretrain": True},
    )
]


@cache
def counted(row_key: tuple[str, str], devices: int) -> StepCount:
    """Each network is counted once for a number of devices."""
    row = ROWS[row_key]
    config = row.config()
    return count_step(config, classes=CLASSES, images=PlanRequest(devices=devices).share(row.batch, 1))


ROWS = {(row.title, row.model): row for row in (*DRLOC, *RELVIT_32, *RELVIT_224, *ARVIT, *ARVIT_IMAGENET)}


def planned(row: Row, data: str, devices: int, machine: Machine) -> Plan:
    """One run."""
    supply = Supply(OFFICIAL[data].train, 0, CLASSES, data)
    return predict(
        row.config(), PlanRequest(devices=devices), supply, machine, counted((row.title, row.model), devices)
    )


def add_table(
    report: Report, title: str, rows: Sequence[Row], data: Sequence[str], devices: int, machine: Machine
) -> None:
    """Hours of every run, and what all of them take together."""
    short = [name.removeprefix("domainnet-") for name in data]
    columns = [f"{devices} x {machine.name}", "batch", "GiB of a device", "images/s", *short]
    report.add(["", f"## {title}", "", f"| {' | '.join(columns)} |"])
    report.add([f"|{'---|' * len(columns)}"])
    total = 0.0
    for row in rows:
        try:
            plans = [planned(row, name, devices, machine) for name in data]
        except VitletError as problem:
            report.add([f"| {row.title} | {row.batch} | not available: {problem} |"])
            continue
        hours = [found.hours for found in plans]
        total += sum(hours)
        first = plans[0]
        memory = f"{first.memory.total / GIB:.1f}" + ("" if first.fits else ", does not fit")
        cells = [
            row.title,
            str(row.batch),
            memory,
            f"{first.images_per_second:,.0f}",
            *(f"{each:.3g}" for each in hours),
        ]
        report.add([f"| {' | '.join(cells)} |"])
    report.add(["", f"All of these, once: {total:,.1f} hours, {total * devices:,.0f} device hours."])


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(description="Planning tables of the papers' runs.")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--device", default="a100", help="by its data sheet [a100]")
    chosen = parser.parse_args()
    device = named_device(chosen.device)
    machine = Machine(device.name, Roofline(device), int(device.memory * GIB), device.link, is_gpu=True)
    report = Report("Predicted, not measured: the papers' tables", __doc__, chosen.output)
    report.add(["", *machine.speed.describe()])
    add_table(report, "DRLoc, 100 epochs, 224 px: hours of each run", DRLOC, SCRATCH, 8, machine)
    add_table(report, "RelViT, 100 + 100 epochs, 32 px", RELVIT_32, ("cifar10", "cifar100", "svhn"), 8, machine)
    add_table(report, "RelViT, 100 + 100 epochs, 224 px", RELVIT_224, ("flowers102", "imagenet100"), 8, machine)
    data = ("cifar10", "cifar100", "flowers102", "imagenette", "imagewoof")
    add_table(report, "ARViT, 90 epochs, 256 px", ARVIT, data, 8, machine)
    far = replace(machine, link=NETWORK)
    title = f"ImageNet-1K on 64, {NETWORK:g} GB/s between machines"
    add_table(report, f"DRLoc's networks, 100 epochs: {title}", DRLOC, ("imagenet1k",), 64, far)
    add_table(report, "ARViT's pre-training: ImageNet-1K on 8", ARVIT_IMAGENET, ("imagenet1k",), 8, machine)
    report.close()


if __name__ == "__main__":
    main()
