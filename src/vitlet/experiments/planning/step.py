"""One training step of a run, counted on tensors without content."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitlet.config import RunConfig
from vitlet.experiments.planning.counting import Counting, SavedBytes, Work
from vitlet.models.initialise import freeze_all_but_classifier
from vitlet.objective import Objective
from vitlet.training.build import build_backbone
from vitlet.training.ema import LONGEST_DECAY, Average
from vitlet.training.jobs import job_class
from vitlet.training.optim import make_autocast, make_optimizer
from vitlet.training.terms import make_terms


@dataclass(frozen=True)
class Memory:
    """Bytes on one device; weights include buffers such as running means.

    Attributes:
        activations: kept for the backward pass.
        temporary: the peak less all that is named: the batch and results not yet dropped. Below zero where the
            gradients grow only while the activations go, so that never all are there at once.
        reserved: taken by the driver, and lost between blocks of memory.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    temporary: int
    reserved: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(asdict(self).values())


@dataclass(frozen=True)
class StepCount:
    """Operations of one device in a training step, and its memory in bytes.

    Attributes:
        part: forward and backward pass over one part of the batch.
        further: the same for each further part, whose gradients are added.
        update: clipping, the optimizer, the moving average.
        evaluation: one forward pass over as many images, as evaluation does it.
        images: in a part.
        memory: at its peak.
        parameters: trained and frozen ones.
        img_size: size of the images.
    """

    part: Counter[Work]
    further: Counter[Work]
    update: Counter[Work]
    evaluation: Counter[Work]
    images: int
    memory: Memory
    parameters: int
    img_size: tuple[int, int]

    @property
    def flops(self) -> int:
        """Floating-point operations of products per image, forward and backward."""
        return sum(work.flops * count for work, count in self.part.items()) // self.images


def plan_objective(config: RunConfig, classes: int) -> Objective:
    """The objective that a run with these settings would train; no data is read, no weights are downloaded."""
    job = job_class(config)
    config = replace(job.with_tasks(config), pretrained=False)
    backbone, _ = build_backbone(config, classes if job.labelled else 0)
    if config.freeze:
        freeze_all_but_classifier(backbone.model)
    return Objective(backbone, make_terms(config, backbone)).train()


def count_step(config: RunConfig, *, classes: int, images: int) -> StepCount:
    """Count a step over ``images`` images at a time, as it is once training is under way."""
    objective = plan_objective(config, classes)
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # a task may keep constants that are no buffers
    without_content(objective, fake)
    with fake:
        return _count(objective, config, images)


def _count(objective: Objective, config: RunConfig, images: int) -> StepCount:
    optimizer = make_optimizer(objective, config)
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()  # makes its state, which is there from the second step on
    batch = torch.empty(images, objective.backbone.in_chans, *objective.backbone.img_size)
    labels = job_class(config).labels(torch.zeros(images, dtype=torch.long))
    counting = Counting()
    kept = [*objective.parameters(), *objective.buffers()]
    average = Average(objective.backbone.model, LONGEST_DECAY) if config.model_ema else None
    moments = (value for state in optimizer.state.values() for value in state.values())
    held = {
        "weights": counting.hold(kept),
        "gradients": counting.hold(parameter.grad for parameter in trained if parameter.grad is not None),
        "optimizer": counting.hold(value for value in moments if isinstance(value, Tensor)),
        "average": counting.hold(average.tensors.values() if average else ()),
    }
    counting.hold([batch])
    optimizer.zero_grad()  # as the loop does before every step
    counting.peak = counting.live
    autocast = make_autocast(config, torch.device("cpu"))
    parts, saved = [], 0
    with counting:
        for _ in range(min(2, config.grad_accum_steps)):
            found = SavedBytes(kept)
            with found, autocast():
                loss = objective(batch, labels, objective.weights(config.epochs / 2)).loss
            saved = max(saved, found.total)
            del found
            loss.backward()
            del loss
            parts.append(counting.take())
        nn.utils.clip_grad_norm_(objective.parameters(), config.clip_grad or math.inf)
        optimizer.step()
        if average is not None:
            average.update(1)
        update = counting.take()
        objective.eval()
        with torch.no_grad(), autocast():
            objective.backbone.model(batch)
    return StepCount(
        part=parts[0],
        further=parts[-1],
        update=update,
        evaluation=counting.take(),
        images=images,
        memory=Memory(**held, activations=saved, temporary=counting.peak - saved - sum(held.values())),
        parameters=sum(parameter.numel() for parameter in objective.parameters()),
        img_size=objective.backbone.img_size,
    )


def without_content(module: nn.Module, fake: FakeTensorMode) -> None:
    """Replace every parameter and buffer by one of the same size without content; shared ones stay shared."""
    done: dict[int, Any] = {}
    for part in module.modules():
        for kind in (part._parameters, part._buffers):
            tensors: dict[str, Any] = kind
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in done:
                    hollow = fake.from_tensor(tensor.detach())
                    is_parameter = isinstance(tensor, nn.Parameter)
                    done[id(tensor)] = nn.Parameter(hollow, tensor.requires_grad) if is_parameter else hollow
                tensors[name] = done.get(id(tensor))
