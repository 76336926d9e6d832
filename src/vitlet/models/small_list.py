"""The models for small images as a list: size, grid, speed, and what each is for."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from importlib.resources import files
from inspect import getdoc

import timm
import torch
from timm.models import model_entrypoint

from vitlet.backbones import TimmBackbone

SPEEDS = "small_speeds.csv"
"""Beside this file; written by ``benchmarks/small_models.py``."""


@dataclass(frozen=True)
class SmallModel:
    """A model for small images.

    Attributes:
        parameters: with ten classes.
        grid: rows and columns of its last token grid.
        images_per_second: in training, on one thread of the processor that `measured_on` names; None if not measured.
        in_bf16: the same with bfloat16 autocast and channels-last layout.
        use: when to take it, in a sentence.
    """

    name: str
    img_size: int
    parameters: int
    grid: tuple[int, int]
    images_per_second: float | None
    in_bf16: float | None
    use: str


def small_names() -> list[str]:
    """Names of the models for small images, by family and size."""
    names: list[str] = timm.list_models("*_for_*px", module="small")
    return names


def small_models() -> list[SmallModel]:
    """All of them, by family, image size and number of parameters."""
    speeds = measured_speeds()
    models = [_describe(name, speeds.get(name, (None, None))) for name in small_names()]
    return sorted(models, key=lambda model: (family(model.name), model.img_size, model.parameters))


def family(name: str) -> str:
    """A name without the sizes of model and images, such as ``hybrid_*_for_*px``."""
    return re.sub(r"(_(xs|s|m|l|xl))?_for_\d+px$", lambda found: f"{'_*' * bool(found[1])}_for_*px", name)


def measured_speeds() -> dict[str, tuple[float, float]]:
    """Images per second of a training step in 32 bits, and in bfloat16 with channels-last layout, by name."""
    rows = csv.DictReader(_speed_lines()[1:])
    return {row["name"]: (float(row["images_per_second"]), float(row["in_bf16"])) for row in rows}


def measured_on() -> str:
    """Description of the speed measurement; empty if there was none."""
    return "".join(_speed_lines()[:1]).lstrip("# ")


def _speed_lines() -> list[str]:
    file = files("vitlet.models") / SPEEDS
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _describe(name: str, speeds: tuple[float | None, float | None]) -> SmallModel:
    with torch.device("meta"):  # sizes alone: no weight is made
        model = timm.create_model(name)
    backbone = TimmBackbone(model)
    last = backbone.shapes().last
    parameters = sum(parameter.numel() for parameter in model.parameters())
    use = (getdoc(model_entrypoint(name)) or "").splitlines()[0]
    return SmallModel(name, backbone.img_size[0], parameters, (last.height, last.width), *speeds, use)
