"""From settings to everything a run needs, checked before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from vitlet.backbone import Backbone, TimmBackbone
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.loading import EvaluationSet, evaluation_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import mix_seed
from vitlet.data.sources import load_dataset
from vitlet.errors import VitletError
from vitlet.feeding import class_weights, data_request, keep_splits
from vitlet.models.factory import build_model, data_statistics, describe_for_timm
from vitlet.objective import Objective, Term
from vitlet.schedules import Constant, Ramp, Schedule
from vitlet.tasks.declared import load_task
from vitlet.term_view import make_view


@dataclass
class Prepared:
    """Everything a run needs, checked, before anything is written."""

    config: RunConfig
    dataset: Dataset
    objective: Objective
    preprocess: Preprocess
    description: str
    device: torch.device

    @property
    def model(self) -> nn.Module:
        """The network without its task heads."""
        return self.objective.backbone.model

    def evaluation_loader(self, images: ImageSet) -> Any:
        """All of these images once, as evaluation sees them."""
        dataset = EvaluationSet(images, self.preprocess, channels=self.config.in_chans)
        return evaluation_loader(
            dataset, batch_size=self.config.batch_size, workers=self.config.workers or 0, device=str(self.device)
        )


def prepare(config: RunConfig, dataset: Dataset | None = None) -> Prepared:
    """Find the data, build the network and the objective, and resolve every setting left open."""
    device = find_device(config.device)
    dataset = dataset or load_dataset(data_request(config))
    num_classes = config.num_classes or len(dataset.classes)
    if num_classes < len(dataset.classes):
        raise VitletError(
            f"the data has {len(dataset.classes)} classes, but num_classes is {num_classes}: labels would lie beyond"
            " the classifier. Leave --num-classes out."
        )
    torch.manual_seed(mix_seed(config.seed))
    model, arguments = build_model(
        config.model,
        num_classes=num_classes,
        in_chans=config.in_chans,
        img_size=config.img_size,
        drop_path=config.drop_path,
        model_kwargs=config.model_kwargs,
        pretrained=config.pretrained,
    )
    backbone = TimmBackbone(model, img_size=config.img_size, in_chans=config.in_chans)
    backbone.shapes()
    warmup = config.epochs / 20 if config.warmup_epochs is None else config.warmup_epochs
    workers = (0 if device.type == "cpu" else min(8, os.cpu_count() or 1)) if config.workers is None else config.workers
    config = config.resolved(
        img_size=backbone.img_size,
        num_classes=num_classes,
        warmup_epochs=warmup,
        device=str(device),
        workers=workers,
    )
    criterion = nn.CrossEntropyLoss(
        class_weights(config, dataset, num_classes), label_smoothing=config.smoothing or 0.0
    )
    objective = Objective(backbone, make_terms(config, backbone), criterion)
    mean, std = data_statistics(model, config.in_chans)
    preprocess = Preprocess(backbone.img_size, crop_pct=config.crop_pct, mean=mean, std=std)
    dataset = keep_splits(config, dataset, preprocess)
    names = [*dataset.classes, *(f"unused {index}" for index in range(len(dataset.classes), num_classes))]
    description = describe_for_timm(
        model, arguments, img_size=backbone.img_size, crop_pct=config.crop_pct, mean=mean, std=std, classes=names
    )
    return Prepared(config, dataset, objective.to(device), preprocess, description, device)


def make_terms(config: RunConfig, backbone: Backbone) -> list[Term]:
    """The tasks of a run with their weight schedules and views."""
    terms = []
    for name, chosen in config.tasks.items():
        task = load_task(name)(**chosen.options)
        weight = _weight_schedule(chosen, task.suggested_schedule, config.epochs)
        terms.append(Term(task, weight, make_view(chosen, backbone)))
    return terms


def _weight_schedule(chosen: TaskConfig, suggested: str, epochs: int) -> Schedule:
    if (chosen.schedule or suggested) == "constant":
        return Constant(chosen.weight)
    warmup = min(20.0, epochs / 5) if chosen.warmup_epochs is None else chosen.warmup_epochs
    return Ramp(chosen.weight, epochs=epochs, warmup_epochs=warmup)


def find_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is the first accelerator, else the CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return accelerator or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise VitletError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:1 or mps.") from None
    if device.type != "cpu" and (accelerator is None or accelerator.type != device.type):
        raise VitletError(f"the device {name!r} is not available here; found {accelerator or 'only the CPU'}.")
    return device


def make_optimizer(objective: Objective, config: RunConfig) -> torch.optim.Optimizer:
    """AdamW; no decay on 1-D parameters nor on those the network itself excludes (position tables)."""
    model: Any = objective.backbone.model
    excluded: set[str] = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    decay: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            without = parameter.ndim <= 1 or name.removeprefix("backbone.model.") in excluded
            (plain if without else decay).append(parameter)
    groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)


def make_autocast(config: RunConfig, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Mixed precision as the settings say."""
    if not config.amp:
        return nullcontext
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[config.amp_dtype]
    return lambda: torch.autocast(device.type, dtype=dtype)


def make_mix(config: RunConfig) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Mixup and cutmix, one of them per batch at equal odds where both are on."""
    mixes: list[Any] = []
    if config.mixup:
        mixes.append(v2.MixUp(alpha=config.mixup, num_classes=config.num_classes))
    if config.cutmix:
        mixes.append(v2.CutMix(alpha=config.cutmix, num_classes=config.num_classes))
    if not mixes:
        return lambda images, labels: (images, labels)
    choice: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = v2.RandomChoice(mixes)
    return choice
