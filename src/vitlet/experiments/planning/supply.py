"""Number of training images of a run, from known sizes where possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlet.config import RunConfig
from vitlet.data.glance import Glance, glance
from vitlet.data.named import OFFICIAL, Official
from vitlet.data.sources import load_dataset
from vitlet.experiments.planning.request import PlanRequest
from vitlet.models.layouts import layout_of
from vitlet.training.build import find_device, find_weights
from vitlet.training.choice import Choice, choose_for
from vitlet.training.inputs import data_request
from vitlet.training.jobs import job_class
from vitlet.training.knowledge import DeviceKind

ASSUMED_CLASSES = 1000
"""Where only a number of images is given: the size of the classifier hardly matters to a plan."""


@dataclass(frozen=True)
class Supply:
    """Images to train on and to validate on in every epoch, the size of the classifier, and what they are."""

    train: int
    val: int
    classes: int
    note: str


def find_supply(config: RunConfig, images: int | None) -> Supply:
    """Number of images: as given, from the official sizes of a named dataset, or by reading the data."""
    if images is not None:
        found = Supply(images, 0, config.num_classes or ASSUMED_CLASSES, f"{images:,} training images, none held out")
    elif config.data in OFFICIAL and not Path(config.data).exists():
        found = _official(OFFICIAL[config.data], config)
    else:
        dataset = job_class(config).load_data(config)
        val = 0 if dataset.val is None else len(dataset.val)
        found = Supply(len(dataset.train), val, len(dataset.classes), dataset.note)
    job = job_class(config)
    return replace(found, classes=job.num_classes(config, found.classes)) if job.labelled else found


def planned_choice(config: RunConfig, given: Mapping[str, Any], request: PlanRequest) -> Choice:
    """The choice of `vitlet train` for this data on the given device."""
    name = "auto" if config.device == "this" else config.device
    known = name.partition(":")[0] in ("auto", "cpu", "cuda", "mps", "xpu") and request.tflops is None
    device: DeviceKind = "cpu" if known and find_device(name).type == "cpu" else "accelerator"
    layout = layout_of(find_weights(Path(config.init))) if config.init is not None else None
    if request.images is None and (config.data not in OFFICIAL or Path(config.data).exists()):
        return choose_for(config, given, glance(load_dataset(data_request(config))), device, layout)
    supply = find_supply(config, request.images)
    side = None if request.images is not None else OFFICIAL[config.data].side
    return choose_for(config, given, Glance(supply.train, supply.classes, side, channels=3), device, layout)


def _official(official: Official, config: RunConfig) -> Supply:
    """The published sizes, split as the run would split them (to the image or two that rounding by class moves)."""
    train, val = official.train, official.val or 0
    if config.folds or not val:
        val = round((1 / config.folds if config.folds else config.val_fraction) * train)
        train -= val
    train = round(config.fraction * train)
    if config.per_class is not None:
        train = min(train, config.per_class * official.classes)
    note = f"{official.name}: {official.train:,} official training images, {val:,} of them for validation"
    return Supply(train, val, official.classes, note)
