"""The networks for small images as a list: size, grid, speed, and what each is for."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files
from inspect import getdoc

import timm
from timm.models import model_entrypoint

from vitlet.backbones import TimmBackbone

SPEEDS = "small_speeds.csv"
"""Beside this file; written by ``benchmarks/small_models.py``."""


@dataclass(frozen=True)
class SmallModel:
    """A network for small images.

    Attributes:
        parameters: with ten classes.
        grid: rows and columns of its last token grid.
        images_per_second: in training, on one thread of the processor that `measured_on` names; None if not measured.
        use: when to take it, in a sentence.
    """

    name: str
    img_size: int
    parameters: int
    grid: tuple[int, int]
    images_per_second: float | None
    use: str


def small_names() -> list[str]:
    """Names of the networks for small images, by family and size."""
    names: list[str] = timm.list_models("*_for_*px", module="small")
    return names


def small_models() -> list[SmallModel]:
    """All of them, built one after another."""
    speeds = measured_speeds()
    return [_describe(name, speeds.get(name)) for name in small_names()]


def measured_speeds() -> dict[str, float]:
    """Images per second of a training step, by name."""
    rows = csv.DictReader(_speed_lines()[1:])
    return {row["name"]: float(row["images_per_second"]) for row in rows}


def measured_on() -> str:
    """How and on what the speeds were measured; empty if they were not."""
    return "".join(_speed_lines()[:1]).lstrip("# ")


def _speed_lines() -> list[str]:
    file = files("vitlet.models") / SPEEDS
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _describe(name: str, speed: float | None) -> SmallModel:
    model = timm.create_model(name)
    backbone = TimmBackbone(model)
    last = backbone.shapes().last
    parameters = sum(parameter.numel() for parameter in model.parameters())
    use = (getdoc(model_entrypoint(name)) or "").splitlines()[0]
    return SmallModel(name, backbone.img_size[0], parameters, (last.height, last.width), speed, use)
