"""Predicted memory, step time, hours and cost of a run, without training."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from vitlet.config import RunConfig
from vitlet.errors import VitletError
from vitlet.experiments.planning.devices import DEVICES, EFFICIENCY, Device, Roofline, all_reduce_seconds, named_device
from vitlet.experiments.planning.measure import MachineSpeed, measure_machine, memory_gib
from vitlet.experiments.planning.request import PlanRequest
from vitlet.experiments.planning.step import Memory, StepCount, count_step
from vitlet.experiments.planning.supply import Supply, find_supply
from vitlet.training.build import find_device

GIB = 2**30
RESERVED_GIB = 1.0
"""Assumed to be taken by the driver and by libraries on a GPU ..."""
FRAGMENTED = 0.05
"""... and the share of the rest that is lost between blocks of memory."""
MACHINE_LINK = 1.0
"""GB/s between machines like this one where nothing is said: a model of ten gigabits."""
FSDP_TRAFFIC = 1.5
"""Sharded training gathers weights twice and scatters gradients once: three halves of an all-reduce."""


@dataclass(frozen=True)
class Plan:
    """A prediction.

    Attributes:
        run: model, image size, data and precision, in words.
        devices, device: how many of what.
        parameters: number of parameters of the model and the heads of its tasks.
        gflops: GFLOPs of products for one image, forward and backward.
        images: that one device looks at at a time.
        memory: memory of one device; ``available`` is what it has, ``fits`` whether that is enough.
        step_seconds: duration in seconds of one optimizer step, of which ``link_seconds`` go into exchanging gradients.
        images_per_second: throughput of all devices.
        steps: number of steps of the run; ``hours`` with evaluation after every epoch.
        cost: cost of all devices, None without a price.
        advice: what to do where it does not fit.
        notes: what the numbers rest on.
    """

    run: str
    devices: int
    device: str
    parameters: int
    gflops: float
    images: int
    memory: Memory
    available: int
    step_seconds: float
    link_seconds: float
    images_per_second: float
    steps: int
    hours: float
    cost: float | None
    advice: str
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the memory is enough."""
        return self.memory.total <= self.available

    def to_dict(self) -> dict[str, Any]:
        """The plan as a dictionary for JSON."""
        plain = asdict(self) | {"fits": self.fits}
        plain["memory"]["total"] = self.memory.total
        return plain


@dataclass(frozen=True)
class Machine:
    """Device that a training step runs on."""

    name: str
    speed: Roofline | MachineSpeed
    memory: int
    link: float
    is_gpu: bool


def plan(config: RunConfig, request: PlanRequest) -> Plan:
    """Predict a run; raises `VitletError` for settings that no run could have."""
    supply = find_supply(config, request.images)
    images = request.share(config.batch_size, config.grad_accum_steps)
    images = min(images, supply.train // (request.devices * config.grad_accum_steps))  # as in training
    if not images:
        raise VitletError(
            f"{supply.train} training images are too few for this number of devices and gradient-accumulation"
            " micro-batches."
        )
    machine = find_machine(config, request)
    count = count_step(config, classes=supply.classes, images=images)
    return predict(config, request, supply, machine, count)


def predict(config: RunConfig, request: PlanRequest, supply: Supply, machine: Machine, count: StepCount) -> Plan:
    """Predict times from operation counts and device speed."""
    batch = count.images * request.devices * config.grad_accum_steps
    link = request.link or machine.link
    traffic = all_reduce_seconds(request.devices, count.memory.gradients, link) * (FSDP_TRAFFIC if config.fsdp else 1.0)
    own = machine.speed.seconds(count.part) + machine.speed.seconds(count.update)
    own += (config.grad_accum_steps - 1) * machine.speed.seconds(count.further)
    steps = supply.train // batch
    tested = math.ceil(supply.val / (count.images * request.devices)) * machine.speed.seconds(count.evaluation)
    hours = config.last_epoch * (steps * (own + traffic) + tested) / 3600
    memory = _on_device(count.memory, request.devices if config.fsdp else 1, machine)
    return Plan(
        run=_describe(config, count, supply),
        devices=request.devices,
        device=machine.name,
        parameters=count.parameters,
        gflops=count.flops / 1e9,
        images=count.images,
        memory=memory,
        available=machine.memory,
        step_seconds=own + traffic,
        link_seconds=traffic,
        images_per_second=batch / (own + traffic),
        steps=config.last_epoch * steps,
        hours=hours,
        cost=None if request.price is None else request.price * request.devices * hours,
        advice=advise(memory, machine.memory, config, request, count.images),
        notes=_notes(supply, machine, request, link),
    )


def find_machine(config: RunConfig, request: PlanRequest) -> Machine:
    """A device of one's own numbers, one by name, or this machine, measured now."""
    name = "auto" if config.device == "this" else config.device
    if request.tflops is not None and request.bandwidth is not None and request.memory is not None:
        precisions = ("float32", config.amp_dtype if config.amp else "float32")
        peaks = dict.fromkeys(precisions, request.tflops)
        device = Device("your device", peaks, request.bandwidth, request.memory, MACHINE_LINK, "your numbers")
    elif name.partition(":")[0] not in ("auto", "cpu", "cuda", "mps", "xpu"):
        device = named_device(name)
    elif request.efficiency is not None:
        raise VitletError(
            "--efficiency has no effect on this machine, which is measured. Leave it out, or name a --device."
        )
    else:
        here = find_device(name)
        measured = measure_machine(here, getattr(torch, config.amp_dtype) if config.amp else None)
        memory = int((request.memory or memory_gib(here)) * GIB)
        return Machine("this machine", measured, memory, MACHINE_LINK, is_gpu=here.type != "cpu")
    speed = Roofline(device, request.efficiency or EFFICIENCY)
    memory = int((request.memory or device.memory) * GIB)
    return Machine(device.name, speed, memory, device.link, is_gpu=device.name in DEVICES)


def _on_device(memory: Memory, shards: int, machine: Machine) -> Memory:
    state = ("weights", "gradients", "optimizer", "average")
    needed = replace(memory, **{name: -(-getattr(memory, name) // shards) for name in state})
    lost = int(RESERVED_GIB * GIB + FRAGMENTED * needed.total) if machine.is_gpu else 0
    return replace(needed, reserved=lost)


def advise(memory: Memory, available: int, config: RunConfig, request: PlanRequest, images: int) -> str:
    """Flags that would make a run fit into memory; empty if it fits."""
    if memory.total <= available:
        return ""
    by_image = memory.activations + memory.temporary
    fixed = memory.total - by_image
    ways = []
    fitting = (part for part in range(2, images + 1) if images % part == 0 and fixed + by_image / part <= available)
    if smaller := next(fitting, 0):
        parts = config.grad_accum_steps * smaller
        ways.append(f"--grad-accum-steps {parts} ({images // smaller} images at a time, the same batch)")
    if not config.grad_checkpointing:
        ways.append("--grad-checkpointing (less memory, more time)")
    if not config.amp:
        ways.append("--amp (activations in half the bytes)")
    if request.devices > 1 and not config.fsdp:
        ways.append("--fsdp (weights and optimizer spread over the devices)")
    if not ways or (fixed > available and config.fsdp):
        ways.append("more devices, or a smaller --model")
    needs = f"needs {memory.total / GIB:.1f} GiB, the device has {available / GIB:.1f}"
    return f"{needs}. Try {'; or '.join(ways)}."


def _describe(config: RunConfig, count: StepCount, supply: Supply) -> str:
    height, width = count.img_size
    tasks = "".join(f" + {name}" for name in config.tasks)
    precision = config.amp_dtype if config.amp else "float32"
    return (
        f"{config.model}{tasks} at {height}x{width}, {supply.classes} classes, {precision}, {config.last_epoch} epochs"
    )


def _notes(supply: Supply, machine: Machine, request: PlanRequest, link: float) -> tuple[str, ...]:
    notes = [f"data: {supply.note}", *machine.speed.describe()]
    if request.devices > 1:
        notes.append(f"between devices: {link:g} GB/s, exchanged after the backward pass, not during it")
    if machine.is_gpu:
        notes.append(f"memory: {RESERVED_GIB:g} GiB and {FRAGMENTED:.0%} assumed lost to the driver and to gaps")
    notes.append("time without loading images: valid as long as images are loaded fast enough")
    return tuple(notes)
