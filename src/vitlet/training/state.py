"""State of a run: everything that changes during training, is saved, and is restored on resume."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.errors import VitletError, first_line
from vitlet.objective import Objective, Outcome
from vitlet.training.checkpoint import STATE, Checkpoint, save_tensors
from vitlet.training.clock import Clock
from vitlet.training.distributed import World, lost_process, replicate, shard
from vitlet.training.ema import Average, short_run_decay
from vitlet.training.job import Job
from vitlet.training.optim import make_optimizer
from vitlet.training.sharded_checkpoint import load_shards, save_shards, whole_weights

WEIGHTS, AVERAGE = "objective.safetensors", "average.safetensors"


class Means:
    """Running means of losses and metrics over images, on the device until the epoch ends."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor | float] = defaultdict(float)
        self.count = 0

    def add(self, outcome: Outcome, images: int) -> None:
        """Add one micro-batch of a step with this number of images."""
        self.count += images
        self.sums["train/loss"] += outcome.loss.detach() * images
        for name, value in (*outcome.parts.items(), *outcome.metrics.items()):
            self.sums[f"train/{name}"] += (value.detach() if isinstance(value, Tensor) else value) * images
        for name, weight in outcome.weights.items():
            self.sums[f"weight/{name}"] += weight * images

    @property
    def loss(self) -> float:
        """The mean loss so far, of this process."""
        return float(self.sums["train/loss"]) / max(1, self.count)

    def numbers(self) -> dict[str, Any]:
        """The sums as plain numbers, to be saved."""
        return {"count": self.count, "sums": {name: float(total) for name, total in self.sums.items()}}

    def fill(self, numbers: Mapping[str, Any]) -> None:
        """Add saved numbers."""
        self.count += numbers["count"]
        for name, total in numbers["sums"].items():
            self.sums[name] += total

    def over(self, world: World) -> dict[str, float]:
        """The means over the parts of all processes, each counted once."""
        everyone = world.gather(self.numbers())
        count = sum(each["count"] for each in everyone)
        names = {name: None for each in everyone for name in each["sums"]}
        return {name: sum(each["sums"].get(name, 0.0) for each in everyone) / count for name in names}


@dataclass
class State:
    """State of a run: epoch, step, best score, averaged weights.

    Attributes:
        model: what is averaged and exported.
        module: the objective as it is called: itself, or spread over the processes.
        steps: number of steps of an epoch.
        clock: the epoch that schedules see.
        epoch: epochs that are done and evaluated.
        step: steps done of the epoch under way.
        rows: the numbers of the epochs that are done.
    """

    objective: Objective
    model: nn.Module
    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: Average | None
    sharded: bool
    steps: int
    clock: Clock
    epoch: int = 0
    step: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    means: Means = field(default_factory=Means)

    @staticmethod
    def begin(job: Job, world: World, steps: int) -> State:
        """The state before the first step."""
        config, objective, device = job.config, job.objective, job.device
        module: nn.Module = objective
        if config.fsdp:
            shard(objective, objective.backbone)
        elif world.size > 1:
            module = replicate(objective, device, unused=_has_unused(job))
        if config.compile:
            objective.compile()
        optimizer = make_optimizer(objective, config)
        scaler = torch.amp.GradScaler(device.type, enabled=bool(config.amp) and config.amp_dtype == "float16")
        decay = config.model_ema_decay
        decay = short_run_decay(config.epochs * steps) if decay is None else decay
        average = Average(job.model, decay) if config.model_ema else None
        clock = Clock(config.epochs)
        return State(objective, job.model, module, optimizer, scaler, average, config.fsdp, steps, clock)

    @property
    def steps_done(self) -> int:
        """Number of completed steps of the run."""
        return self.epoch * self.steps + self.step

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model holds the weights that are evaluated and exported."""
        return self.average.in_place() if self.average is not None else nullcontext()

    def weights(self) -> dict[str, Tensor]:
        """Weights to export; for a sharded model, all processes must call this, and the first gets them."""
        with self.averaged():
            found = whole_weights(self.model) if self.sharded else self.model.state_dict()
            return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}

    def write(self, folder: Path, world: World, used: float = 0.0) -> None:
        """Write everything into a checkpoint's folder; all processes call this, the first one writes most.

        Args:
            folder: folder of the checkpoint.
            world: the processes.
            used: seconds that this process has used of the run's budget.
        """
        average = self.average.tensors if self.average is not None else {}
        means = world.gather(self.means.numbers())
        if self.sharded:
            save_shards(folder, self.objective, self.optimizer, average)
        if not world.first:
            return
        state: dict[str, Any] = {"scaler": self.scaler.state_dict(), "epoch": self.epoch, "step": self.step}
        state |= {"rows": self.rows, "means": means, "clock": self.clock.to_dict(used)}
        if not self.sharded:
            save_tensors(self.objective.state_dict(), folder / WEIGHTS)
            state["optimizer"] = self.optimizer.state_dict()
            if average:
                save_tensors(average, folder / AVERAGE)
        torch.save(state, folder / STATE)

    def read(self, checkpoint: Checkpoint, world: World) -> None:
        """Become what a checkpoint holds, by whatever number of processes it was written."""
        try:
            state = checkpoint.state()
            if self.sharded:
                average = self.average.tensors if self.average is not None else {}
                load_shards(checkpoint.path, self.objective, self.optimizer, average)
            else:
                self.objective.load_state_dict(checkpoint.tensors(WEIGHTS))
                self.optimizer.load_state_dict(state["optimizer"])
                if self.average is not None:
                    for name, tensor in checkpoint.tensors(AVERAGE).items():
                        self.average.tensors[name].copy_(tensor)
            self.scaler.load_state_dict(state["scaler"])
            self.epoch, self.step, self.rows = int(state["epoch"]), int(state["step"]), list(state["rows"])
            if "clock" in state:  # older checkpoints have none
                self.clock.fill(state["clock"])
            for numbers in state["means"][world.rank :: world.size]:  # my own sums, and those of processes now missing
                self.means.fill(numbers)
        except Exception as problem:  # a foreign file fails in many ways; a process that is gone is no fault of it
            damaged = VitletError(f"cannot continue from {checkpoint.path}: {first_line(problem)}.")
            raise lost_process(problem, world) or damaged from problem


def _has_unused(job: Job) -> bool:
    """Whether some parameters get no gradient, tried on noise; DDP would wait for them."""
    objective = job.objective
    before = {name: buffer.clone() for name, buffer in objective.named_buffers()}
    objective.train()
    objective(*job.example(), objective.weights(0.0)).loss.backward()
    unused = any(p.requires_grad and p.grad is None for p in objective.parameters())
    objective.zero_grad()
    for name, buffer in objective.named_buffers():
        buffer.copy_(before[name])
    return unused
