"""From settings to everything a run needs, checked before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from vitlet.backbones import Backbone, TimmBackbone
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.loading import EvaluationSet, evaluation_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import mix_seed
from vitlet.data.shards import ShardStream
from vitlet.data.sources import load_dataset, load_unlabelled
from vitlet.data.splits import fingerprint
from vitlet.errors import VitletError
from vitlet.models.factory import build_model, data_statistics, describe_for_timm
from vitlet.models.initialise import (
    freeze_all_but_classifier,
    layer_decay_groups,
    load_weights,
    position_names,
    switch_positions_off,
)
from vitlet.objective import Objective, Outcome, Term
from vitlet.objective.balance import Balance, GradientNorms, Uncertainty
from vitlet.objective.schedules import Constant, Ramp, Schedule, WarmupCosine
from vitlet.tasks.declared import load_task
from vitlet.training.distributed import World
from vitlet.training.evaluate import Scores, evaluate, evaluate_tasks, nothing
from vitlet.training.inputs import choose_crop, class_weights, data_request, decode_splits
from vitlet.training.run_folder import run_weights
from vitlet.training.term_view import make_view


@dataclass
class Prepared:
    """Everything a run needs, checked, before anything is written; ``notes`` are sentences worth saying."""

    config: RunConfig
    dataset: Dataset
    objective: Objective
    preprocess: Preprocess
    description: str
    device: torch.device
    notes: tuple[str, ...] = ()
    _loader: Any = None

    @property
    def model(self) -> nn.Module:
        """The network without its task heads."""
        return self.objective.backbone.model

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.dataset.classes)

    @property
    def images(self) -> int:
        """Number of training images."""
        return len(self.dataset.train)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of each split, what tells its choice of images from another; a stream's are not known before the end."""
        known = {name: each for name, each in self.dataset.splits().items() if not isinstance(each, ShardStream)}
        return {name: fingerprint(images) for name, images in known.items()}

    @property
    def data_note(self) -> str:
        """What the data is, in a sentence."""
        return self.dataset.note

    @property
    def validates(self) -> bool:
        """Whether there are validation images."""
        return self.dataset.val is not None

    @property
    def tests(self) -> bool:
        """Whether there are labelled test images."""
        return self.dataset.test is not None and not self.config.pretrain

    @cached_property
    def mix(self) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        """Mixup and cutmix of a batch."""
        return make_mix(self.config)

    def inputs(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        """Images and labels of a batch on the device, mixed; no labels in pre-training."""
        images, labels = batch
        images = images.to(self.device, non_blocking=True)
        labels = None if self.config.pretrain else labels.to(self.device, non_blocking=True)
        return self.mix(images, labels)

    def example(self) -> tuple[Tensor, Tensor | None]:
        """Two images of noise, of the first class."""
        assert self.config.img_size is not None
        images = torch.randn(2, self.config.in_chans, *self.config.img_size, device=self.device)
        return images, None if self.config.pretrain else torch.zeros(2, dtype=torch.long, device=self.device)

    def learning_rate(self) -> Schedule:
        """Warm-up, then a cosine."""
        config = self.config
        return WarmupCosine(config.lr, config.epochs, config.warmup_epochs or 0.0, end=min(config.min_lr, config.lr))

    def classify(self, images: Tensor) -> Tensor:
        """Class scores, as the exported network gives them; a sharded one can only be called as a whole."""
        if not self.config.fsdp:
            logits: Tensor = self.model(images)
            return logits
        outcome: Outcome = self.objective(images, None, {})
        assert outcome.logits is not None
        return outcome.logits

    @cached_property
    def _autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        return make_autocast(self.config, self.device)

    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        """The validation numbers of the classifier, or of the tasks in pre-training."""
        loader = self._validation_loader(world)
        if self.config.pretrain:
            weights = self.objective.weights(epoch)
            return evaluate_tasks(
                self.objective,
                loader,
                weights=weights,
                device=self.device,
                autocast=self._autocast,
                world=world,
                between=between,
            )
        return self._evaluate(loader, world, between).to_dict()

    def test(self, world: World) -> Scores:
        """Scores on the test images."""
        assert self.dataset.test is not None
        return self._evaluate(self.evaluation_loader(self.dataset.test, world), world, nothing)

    def _evaluate(self, loader: Any, world: World, between: Callable[[], None]) -> Scores:
        return evaluate(
            self.classify,
            loader,
            classes=len(self.classes),
            device=self.device,
            autocast=self._autocast,
            world=world,
            between=between,
        )

    def _validation_loader(self, world: World) -> Any:
        """One for the whole run: its loading processes stay."""
        if self._loader is None:
            assert self.dataset.val is not None
            self._loader = self.evaluation_loader(self.dataset.val, world)
        return self._loader

    def evaluation_loader(self, images: ImageSet, world: World) -> Any:
        """This process's share of these images, as evaluation sees them."""
        dataset = EvaluationSet(images, self.preprocess, channels=self.config.in_chans)
        return evaluation_loader(
            dataset,
            batch_size=-(-self.config.batch_size // (world.size * self.config.grad_accum_steps)),
            workers=self.config.workers or 0,
            device=str(self.device),
            share=slice(world.rank, None, world.size),
        )


def prepare(config: RunConfig, dataset: Dataset | None = None) -> Prepared:
    """Find the data, build the network and the objective, and resolve every setting left open."""
    device = find_device(config.device)
    config = with_tasks(config)
    if dataset is None:
        dataset = load_unlabelled(data_request(config)) if config.pretrain else load_dataset(data_request(config))
    num_classes = 0 if config.pretrain else class_count(config, len(dataset.classes))
    torch.manual_seed(mix_seed(config.seed))
    backbone, arguments = build_backbone(config, num_classes)
    model = backbone.model
    config = _resolved(config, backbone, num_classes, device)
    notes = _start_from(model, config)
    weights = None if config.pretrain else class_weights(config, dataset, num_classes)
    criterion = nn.CrossEntropyLoss(weights, label_smoothing=config.smoothing or 0.0)
    objective = Objective(backbone, make_terms(config, backbone), criterion, make_balance(config))
    mean, std = data_statistics(model, config.in_chans)
    crop_pct = config.crop_pct or 1.0
    preprocess = Preprocess(backbone.img_size, crop_pct=crop_pct, mean=mean, std=std)
    dataset = decode_splits(config, dataset, preprocess)
    names = [*dataset.classes, *(f"unused {index}" for index in range(len(dataset.classes), num_classes))]
    description = describe_for_timm(
        model, arguments, img_size=backbone.img_size, crop_pct=crop_pct, mean=mean, std=std, classes=names
    )
    return Prepared(config, dataset, objective.to(device), preprocess, description, device, tuple(notes))


def with_tasks(config: RunConfig) -> RunConfig:
    """The settings with the tasks of pre-training where none are named."""
    if not config.pretrain or config.tasks:
        return config
    return replace(config, tasks={"sprel": TaskConfig(1.0), "position": TaskConfig(1.0)})


def class_count(config: RunConfig, classes: int) -> int:
    """Size of the classifier for data of so many classes."""
    if config.num_classes is not None and config.num_classes < classes:
        raise VitletError(
            f"the data has {classes} classes, but num_classes is {config.num_classes}: labels would lie beyond the"
            " classifier. Leave --num-classes out."
        )
    return config.num_classes or classes


def build_backbone(config: RunConfig, num_classes: int) -> tuple[TimmBackbone, dict[str, Any]]:
    """The network of a run, tried on an empty image, and the arguments that timm built it with."""
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


def _resolved(config: RunConfig, backbone: Backbone, num_classes: int, device: torch.device) -> RunConfig:
    """Every setting that was left open, filled in."""
    workers = config.workers
    if workers is None:
        workers = 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
    positions = config.positions
    if positions == "auto":
        positions = "off" if config.pretrain and _gives_away(config, backbone.model) else "on"
    config = config.resolved(img_size=backbone.img_size)
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
        crop_pct=crop_pct,
        num_classes=num_classes or None,
        warmup_epochs=config.epochs / 20 if config.warmup_epochs is None else config.warmup_epochs,
        device=device.type,  # a continued run may find another one of them free
        workers=workers,
        positions=positions,
    )


def _gives_away(config: RunConfig, model: nn.Module) -> bool:
    """Whether the positional embedding tells a task of this run where each patch lies."""
    asks_for_places = [
        name for name, task in config.tasks.items() if load_task(name).asks_for_places and task.view != "shuffle"
    ]
    return bool(position_names(model)) and bool(asks_for_places)


def _start_from(model: nn.Module, config: RunConfig) -> list[str]:
    """Weights of another run, frozen parts and positions, as the settings say; what was done, in sentences."""
    notes = []
    if config.init is not None:
        notes.append(f"from {config.init}: {load_weights(model, find_weights(Path(config.init)))}")
    if config.freeze:
        freeze_all_but_classifier(model)
        notes.append("only the classifier is trained")
    if config.positions == "off":
        switch_positions_off(model)
        notes.append("positional embedding off")
    elif config.pretrain and _gives_away(config, model):
        notes.append(
            "the positional embedding is on and the patches are not shuffled: it gives the answers away, so the network"
            " may learn nothing from the images. Use --positions off, or a shuffled view."
        )
    return notes


def find_weights(place: Path) -> Path:
    """The file of weights that ``--init`` names: itself, in a folder of timm's local-dir layout, or of a run."""
    pickled = place / "pytorch_model.bin"
    if pickled.is_file() and not (place / "model.safetensors").is_file():
        return pickled
    return place if place.is_file() else run_weights(place)


def checkpoint_gradients(model: nn.Module, name: str) -> None:
    """Let a network recompute its activations in the backward pass."""
    try:
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    except (AttributeError, AssertionError, NotImplementedError) as problem:
        raise VitletError(f"{name} cannot recompute its activations; leave out --grad-checkpointing.") from problem


def make_terms(config: RunConfig, backbone: Backbone) -> list[Term]:
    """The tasks of a run with their weight schedules and views."""
    terms = []
    for name, chosen in config.tasks.items():
        task = load_task(name)(**chosen.options)
        weight = _weight_schedule(chosen, task.suggested_schedule, config.epochs)
        terms.append(Term(task, weight, make_view(chosen, task, backbone)))
    return terms


def make_balance(config: RunConfig) -> Balance | None:
    """How the tasks of a run and its labels are weighed against each other, if not by fixed weights."""
    if config.balance_tasks == "fixed":
        return None
    names = [*([] if config.pretrain else [Objective.MAIN]), *config.tasks]
    if len(names) < 2:
        raise VitletError(f"balance_tasks {config.balance_tasks} weighs losses, found only {names[0]}. Add a task.")
    if config.balance_tasks == "uncertainty":
        return Uncertainty(names)
    return GradientNorms(names, labels=not config.pretrain)


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
    groups: list[dict[str, Any]] = []
    named = list(objective.named_parameters())
    if config.layer_decay is not None:
        groups = layer_decay_groups(model, weight_decay=config.weight_decay, layer_decay=config.layer_decay)
        named = [(name, parameter) for name, parameter in named if not name.startswith("backbone.")]
    for name, parameter in named:
        if parameter.requires_grad:
            without = parameter.ndim <= 1 or name.removeprefix("backbone.model.") in excluded
            (plain if without else decay).append(parameter)
    groups += [{"params": decay, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.lr, fused=True)


def make_autocast(config: RunConfig, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Mixed precision as the settings say."""
    if not config.amp:
        return nullcontext
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[config.amp_dtype]
    return lambda: torch.autocast(device.type, dtype=dtype)


def make_mix(config: RunConfig) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
    """Mixup and cutmix, one of them per batch at equal odds where both are on."""
    if config.pretrain:
        return lambda images, labels: (images, labels)
    mixes: list[Any] = []
    if config.mixup:
        mixes.append(v2.MixUp(alpha=config.mixup, num_classes=config.num_classes))
    if config.cutmix:
        mixes.append(v2.CutMix(alpha=config.cutmix, num_classes=config.num_classes))
    if not mixes:
        return lambda images, labels: (images, labels)
    choice: Callable[[Tensor, Any], tuple[Tensor, Any]] = v2.RandomChoice(mixes)
    return choice
