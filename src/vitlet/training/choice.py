"""Automatic choice of model and recipe, by the data, the machine and what was measured.

`choose` looks at the data, finds the entry of ``choices.yaml`` that applies to it, and completes the settings: every
setting that the user gave is kept, and the others follow from it. A file of trained weights (``--init``) of a known
layout determines the model; other runs that start from trained weights are not chosen for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitlet.config import RunConfig, TaskConfig
from vitlet.config.setting import AUG, OPTIM
from vitlet.data.glance import Glance, glance
from vitlet.data.images import Dataset
from vitlet.data.sources import load_dataset
from vitlet.models.layouts import Layout, fitted_kwargs, frozen_kwargs, layout_of
from vitlet.processes import this_process
from vitlet.training.build import find_device, find_weights
from vitlet.training.inputs import data_request
from vitlet.training.knowledge import DeviceKind, Rule, knowledge
from vitlet.training.resume import given_settings

FOR_TASKS = ("task", "positions", "balance_tasks")
"""Settings that need a model with attention: if one is given, ``with_tasks`` of the table is chosen."""

SIDES = (32, 64, 96, 128, 224)
"""Image sizes that the models of the table are built for."""

STEPS = 8
"""Steps of an epoch that smaller batches are to leave where there are few images; no batch is smaller than this."""

UNKNOWN_SIDE = 224.0


@dataclass(frozen=True)
class Choice:
    """Complete settings, and where they come from.

    Attributes:
        config: the settings.
        rule: the entry of ``choices.yaml``.
        found: properties of the data.
        source: the data as it was read; None where only its size was known.
        decoded: its pixels, by how they are prepared: several runs on the same data decode it once.
        layout: layout of the trained weights that the run starts from.
    """

    config: RunConfig
    rule: Rule
    found: Glance
    source: Dataset | None = None
    decoded: dict[str, Dataset] = field(default_factory=dict, compare=False, repr=False)
    layout: Layout | None = None

    @property
    def data(self) -> str:
        """Short description of the data and the machine."""
        side = "" if self.found.side is None else f" of about {self.found.side:g} px"
        device = "a CPU" if self.rule.device == "cpu" else "an accelerator"
        return f"{self.found.images:,} images{side} on {device}"

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines that report the choice and its reason, and one on trained weights."""
        config = self.config
        first, last = config.img_size_start, config.img_size
        sizes = (f"{first[0]} to " if first else "") + (f"{last[0]} px" if last else "")
        open_length = config.minutes is None and config.cpu_minutes is None and config.head != "logistic"
        length = f", {config.epochs} epochs" if open_length else ""
        measured = self.rule.measured.shown() if self.rule.measured else "not measured for such data"
        tasks = "".join(f" with {name}={task.weight:g}" for name, task in config.tasks.items())
        steps = [
            f"{config.opt}, learning rate {config.lr:g}" if config.lr_base is None else config.opt,
            f"batches of {config.batch_size}",
            f"augmentation {config.aug}" + (" without mirroring" if config.hflip == 0 else ""),
        ]
        at_once = config.head == "logistic"
        parts = [
            *(["logistic regression on frozen features"] if at_once else steps),
            *(["averaged weights"] if config.model_ema else []),
            *(["grey images"] if config.in_chans == 1 else []),
        ]
        return (
            f"chosen for {self.data}: {config.model}{tasks} at {sizes}{length} ({measured})",
            f"chosen: {', '.join(parts)}; to choose yourself, name a --model",
            *([f"trained weights {config.init}: {self.layout}"] if self.layout else []),
        )


def choose(config: RunConfig, given: Mapping[str, Any] | None = None, source: Dataset | None = None) -> Choice:
    """Complete the settings for their data and this machine.

    Args:
        config: the settings.
        given: those that the user named, which stay as they are (default: those that differ from the defaults).
        source: the data (default: ``config.data``, which is read).
    """
    given = given_settings(config) if given is None else given
    source = source or load_dataset(data_request(config))
    device: DeviceKind = "cpu" if find_device(config.device).type == "cpu" else "accelerator"
    layout = layout_of(find_weights(Path(config.init))) if config.init is not None else None
    return replace(choose_for(config, given, glance(source), device, layout), source=source)


def choose_for(
    config: RunConfig, given: Collection[str], found: Glance, device: DeviceKind, layout: Layout | None = None
) -> Choice:
    """Choose settings for known properties of the data and a known layout of trained weights."""
    side = UNKNOWN_SIDE if found.side is None else found.side
    rules = knowledge().rules
    if layout is not None:
        rules = knowledge().frozen if config.head == "logistic" else knowledge().finetuned
        config = replace(config, model=layout.model)
    rule = next(rule for rule in rules if rule.holds(device, found.images, side))
    values = completed(rule.settings, config, given, found)
    if layout is not None and "model_kwargs" not in given:
        arguments = frozen_kwargs if config.head == "logistic" else fitted_kwargs
        size = values.get("img_size", config.img_size)
        assert size is not None
        values["model_kwargs"] = arguments(layout, size)
    return Choice(replace(config, **values), rule, found, layout=layout)


def frozen_settings(choice: Choice, given: Collection[str]) -> RunConfig:
    """Settings of a logistic regression on frozen features of the same weights, without those of training steps."""
    config, usual = choice.config, RunConfig()
    assert choice.layout is not None and config.img_size is not None
    stays = {"seed", "minutes", "batch_size", "tta", "crop_pct"}
    stays |= {"balance", "class_weights"} if config.balance == "weights" else set()
    steps = {item.name for item in RunConfig.settings() if item.metadata["group"] in (OPTIM, AUG)} - stays
    steps |= {"layer_decay", "drop_path", "img_size_start", "compile", "fsdp", "autotune", "tasks", "balance_tasks"}
    plain = {name: getattr(usual, name) for name in steps}
    if "model_kwargs" not in given:
        plain["model_kwargs"] = frozen_kwargs(choice.layout, config.img_size)
    return replace(config, **plain, freeze=True, head="logistic")


def smallest(choice: Choice, given: Collection[str]) -> Choice | None:
    """The smallest model at the smallest image size, for a very short budget; None if that is chosen already.

    Settings given by the user are kept; these settings were not measured.
    """
    if choice.layout is not None:  # trained weights are of one size
        return None
    family = str(choice.rule.settings["model"]).rpartition("_")[0]
    settings = {**choice.rule.settings, "model": f"{family}_xs", "img_size": SIDES[0]}
    first = choice.config if "img_size" in given else replace(choice.config, img_size=None, img_size_start=None)
    config = replace(first, **completed(settings, first, given, choice.found))
    rule = replace(choice.rule, measured=None)
    return replace(choice, config=config, rule=rule) if config != choice.config else None


def completed(entry: Mapping[str, Any], config: RunConfig, given: Collection[str], found: Glance) -> dict[str, Any]:
    """Settings of a table entry for this data, without those that the user gave or that conflict with a given one."""
    values = dict(entry)
    with_tasks, model = values.pop("with_tasks", None), values.pop("model", None)
    if with_tasks and any(name in given for name in FOR_TASKS):
        model = with_tasks
    sizes = _sizes(values.pop("img_size"), config, given, found)
    side = max(sizes["img_size"])
    tasks = {name: TaskConfig(weight) for name, weight in values.pop("task", {}).items()}
    values |= {
        **sizes,
        "model": f"{model}_for_{min(SIDES, key=lambda known: abs(math.log(known / side)))}px"
        if model
        else config.model,
        "epochs": _epochs(values["epochs"], found.images) if "epochs" in values else config.epochs,
        "batch_size": _batch_size(values["batch_size"], found.images, config),
        "in_chans": found.channels,
        "tasks": config.tasks if "task" in given else tasks,
    }
    if config.fsdp and values.get("opt") == "muon":  # which needs whole weights
        values["opt"] = "adamw"
    if config.opt != values.get("opt") and "opt" in given:  # rates are those of an optimizer
        values = {key: value for key, value in values.items() if key not in ("lr", "weight_decay")}
    if "lr_base" in given:
        values.pop("lr", None)
    if not found.mirrored and "hflip" not in given:
        values["hflip"] = 0.0
    if values.get("hflip", config.hflip) == 0.0:
        values["tta"] = "none"
    if config.freeze:  # nothing is left whose rate could fall
        values.pop("layer_decay", None)
    if "minutes" in given or "cpu_minutes" in given:
        values.pop("epochs")
    return {key: value for key, value in values.items() if key not in given}


def _sizes(entry: int | str, config: RunConfig, given: Collection[str], found: Glance) -> dict[str, tuple[int, int]]:
    """Image size, and the first size of progressive resizing where it applies."""
    if config.img_size is not None:
        return {"img_size": config.img_size}
    first, _, last = str(entry).rpartition(":")
    sizes = {"img_size": (int(last), int(last))}
    resized = config.crop == "resized" if "crop" in given else config.aug == "standard" or "aug" not in given
    if first and resized and not found.streamed:
        sizes["img_size_start"] = (int(first), int(first))
    return sizes


def _epochs(table: Mapping[int, int], images: int) -> int:
    """Epochs for a number of images: log-linear interpolation in the table, constant beyond its ends."""
    known = sorted(table.items())
    below = [each for each in known if each[0] <= images] or known[:1]
    above = [each for each in known if each[0] >= images] or known[-1:]
    (low, first), (high, last) = below[-1], above[0]
    share = math.log(images / low) / math.log(high / low) if high > low else 0.0
    return round(first * math.pow(last / first, share))


def _batch_size(most: int, images: int, config: RunConfig) -> int:
    """Power of two that leaves several steps per epoch, rounded up to a multiple of micro-batches x processes."""
    fitting = min(most, max(STEPS, 1 << int(math.log2(max(1, images / STEPS)))))
    parts = config.grad_accum_steps * this_process().size
    return -(-fitting // parts) * parts
