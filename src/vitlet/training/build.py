"""Builds device, model, backbone and initial weights from settings, and fills in open settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitlet.backbones import Backbone, TimmBackbone
from vitlet.config import RunConfig
from vitlet.errors import VitletError, first_line
from vitlet.models.factory import build_model
from vitlet.models.initialise import freeze_all_but_classifier, load_weights, switch_positions_off
from vitlet.objective import Objective
from vitlet.processes import usable_cores
from vitlet.tokens.views import PlainView
from vitlet.training.clock import Sizes, growing_sizes
from vitlet.training.inputs import choose_crop
from vitlet.training.run_folder import run_weights

MIXED = 0.9
"""Share of a run after which the preset ``standard`` mixes no more images."""


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


def build_backbone(config: RunConfig, num_classes: int) -> tuple[TimmBackbone, dict[str, Any]]:
    """The model of a run, tried on an empty image, and the arguments that timm built it with."""
    model, arguments = build_model(
        config.model,
        num_classes=num_classes,
        in_chans=config.in_chans,
        img_size=config.img_size,
        drop_path=config.drop_path,
        model_kwargs=config.model_kwargs,
        pretrained=config.pretrained,
    )
    if config.grad_checkpointing:
        checkpoint_gradients(model, config.model)
    backbone = TimmBackbone(model, img_size=config.img_size, in_chans=config.in_chans)
    backbone.shapes(least=2 if config.tasks else 1)
    return backbone, arguments


def default_workers(device: torch.device) -> int:
    """Default number of loading processes; 0 on a CPU, where they would compete with the training."""
    return 0 if device.type == "cpu" else min(8, usable_cores())


def resolve_settings(config: RunConfig, backbone: Backbone, num_classes: int, device: torch.device) -> RunConfig:
    """Fill in every setting that was left open, but for the positional embedding."""
    config = config.resolved(img_size=backbone.img_size)
    if config.mixup_off_epoch is None:
        config = replace(config, mixup_off_epoch=MIXED * config.epochs)
    crop_pct = config.crop_pct
    if crop_pct is None:  # evaluation sees objects at the size that training showed them
        crop_pct = 0.875 if choose_crop(config) == "resized" else 1.0
    lr = config.lr
    if config.lr_base is not None:
        ratio = config.batch_size / config.lr_base_size
        lr = config.lr_base * (ratio if config.lr_base_scale == "linear" else ratio**0.5)
    return replace(
        config,
        lr=lr,
        amp=bool(config.amp),
        channels_last=bool(config.channels_last),
        val_interval=config.val_interval or 1,
        crop_pct=crop_pct,
        num_classes=num_classes or None,
        warmup_epochs=config.epochs / 20 if config.warmup_epochs is None else config.warmup_epochs,
        device=device.type,  # a continued run may find another one of them free
        workers=default_workers(device) if config.workers is None else config.workers,
    )


def training_sizes(config: RunConfig, objective: Objective) -> Sizes | None:
    """Image sizes of a run with progressive resizing; model and tasks are tried at each of them."""
    if config.img_size_start is None or config.img_size_start == config.img_size:
        return None
    assert config.img_size is not None
    if choose_crop(config) != "resized":
        raise VitletError(
            f"img_size_start needs crops that are resized; found crop {choose_crop(config)!r}. Add --crop resized."
        )
    found = [
        size
        for size in growing_sizes(config.img_size_start, config.img_size)
        if objective_takes(objective, size, required=size == config.img_size_start)
    ]
    return Sizes(found, config.epochs)


def objective_takes(objective: Objective, size: tuple[int, int], *, required: bool) -> bool:
    """Whether the model and its tasks can be trained on images of this size; an error if that is ``required``."""
    backbone = objective.backbone
    parameter = next(backbone.parameters())
    images = torch.zeros(2, backbone.in_chans, *size, device=parameter.device)
    was = objective.training
    objective.eval()
    try:
        with torch.no_grad():
            grid = backbone(PlainView()(images)).last.shape
            if objective.terms and min(grid.height, grid.width) < 2:
                raise VitletError(f"a grid of {grid.height}x{grid.width} tokens, where spatial tasks need at least 2x2")
            objective(images, None, objective.weights(0.0))
    except Exception as problem:  # any type, any model
        if not required:
            return False
        raise VitletError(
            f"{backbone.describe()} and its tasks cannot start with images of {size[0]}x{size[1]} pixels:"
            f" {first_line(problem)}. Use a larger first size, one that the patches divide, a model that takes any size"
            " (for timm's ViT: --model-kwargs dynamic_img_size=true), or one --img-size."
        ) from problem
    finally:
        objective.train(was)
    return True


def load_first_weights(model: nn.Module, config: RunConfig) -> list[str]:
    """Load initial weights, freeze parts and set positional embeddings; returns notes on what was done."""
    notes = []
    if config.init is not None:
        loaded = load_weights(model, find_weights(Path(config.init)))
        notes.append(f"from {config.init}: {loaded}")
        if config.freeze and loaded.layout is not None and loaded.layout.differs:
            raise VitletError(
                f"{config.init} is {loaded.layout.name}'s, which fills {loaded.layout.fits} tensors of {config.model}:"
                f" frozen, {loaded.layout.differs[0]} and others would stay random. Leave out --freeze."
            )
    if config.freeze:
        freeze_all_but_classifier(model)
        notes.append("only the classifier is trained")
    if config.positions == "off":
        notes.append(switch_positions_off(model))
    return notes


def find_weights(place: Path) -> Path:
    """The file of weights that ``--init`` names: itself, in a folder of timm's local-dir layout, or of a run."""
    pickled = place / "pytorch_model.bin"
    if pickled.is_file() and not (place / "model.safetensors").is_file():
        return pickled
    return place if place.is_file() else run_weights(place)


def checkpoint_gradients(model: nn.Module, name: str) -> None:
    """Let a model recompute its activations in the backward pass."""
    try:
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    except (AttributeError, AssertionError, NotImplementedError) as problem:
        raise VitletError(
            f"{name} does not support gradient checkpointing; leave out --grad-checkpointing."
        ) from problem
