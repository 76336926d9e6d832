"""A trained model, or one with fresh weights, as the backbone of a detector or segmenter: at any image size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlet.backbones import TimmBackbone
from vitlet.errors import VitletError
from vitlet.models.factory import build_model, data_statistics
from vitlet.models.initialise import load_weights
from vitlet.models.weight_files import read_description
from vitlet.tokens.features import GridShape, Needs
from vitlet.training.build import checkpoint_gradients, find_weights
from vitlet.transfer.common.settings import TransferConfig

PROBE = (128, 192)
"""An image to find the strides with; small, and not square."""

ANY_SIZE: tuple[dict[str, Any], ...] = (
    {"strict_img_size": False, "dynamic_mask": True},  # windows of timm's Swin
    {"dynamic_img_size": True},  # positions of timm's ViT, DeiT and EVA
    {},
)
"""How networks of timm are told to take images of any size: the first that a model understands."""


@dataclass(frozen=True)
class Opened:
    """A backbone and how to build it again.

    Attributes:
        grids: sizes of its grids over an image of ``probed`` pixels.
        fixed: the only image size it takes, if there is one.
        architecture: its name in timm's list.
        arguments: that timm built it with.
        note: what became of the weights it started from, in a sentence.
    """

    backbone: TimmBackbone
    grids: tuple[GridShape, ...]
    probed: tuple[int, int]
    fixed: tuple[int, int] | None
    architecture: str
    arguments: Mapping[str, Any]
    note: str = ""

    def statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of the pixels that it expects."""
        return data_statistics(self.backbone.model, 3)


def open_backbone(config: TransferConfig, canvas: tuple[int, int]) -> Opened:
    """The backbone that the settings name, with its weights.

    Args:
        config: the settings.
        canvas: size of the images if the model takes one size alone.
    """
    place = Path(config.backbone)
    if place.exists():
        opened = _trained(config, place, canvas)
    else:
        opened = build(config.backbone, config.model_kwargs, canvas, config.drop_path, pretrained=config.pretrained)
    if config.grad_checkpointing:
        checkpoint_gradients(opened.backbone.model, opened.architecture)
    return opened


def _trained(config: TransferConfig, place: Path, canvas: tuple[int, int]) -> Opened:
    """The backbone of a run, or of a folder or file of weights."""
    if config.pretrained or config.model_kwargs:
        raise VitletError(
            f"--backbone {place} is a trained model with its own settings; leave out --pretrained and --model-kwargs."
        )
    file = find_weights(place)
    described = read_description(file)
    architecture, arguments = described.get("architecture"), described.get("model_args")
    if not isinstance(architecture, str) or not isinstance(arguments, dict):
        raise VitletError(
            f"cannot determine the model of the weights {file}: there is no config.json beside them. Use a run"
            " folder, or a folder in timm's local-dir layout."
        )
    channels = arguments.get("in_chans", 3)
    if channels != 3:
        raise VitletError(f"the backbone {place} takes images of {channels} channels; it must take 3 (RGB).")
    opened = build(architecture, arguments, canvas, config.drop_path)
    return replace(opened, note=f"backbone from {file}: {load_weights(opened.backbone.model, file)}")


def build(
    architecture: str,
    arguments: Mapping[str, Any],
    canvas: tuple[int, int],
    drop_path: float = 0.0,
    *,
    pretrained: bool = False,
) -> Opened:
    """A model without classifier: for any image size if it can be had so, else for the canvas alone."""
    ours = ("in_chans", "img_size", "drop_path_rate")
    own = {key: value for key, value in arguments.items() if key not in ours}
    made_for = arguments.get("img_size")
    size = (int(made_for[0]), int(made_for[1])) if isinstance(made_for, (list, tuple)) else None
    problems: list[VitletError] = []
    for options, at, fixed in [*((extra, size, None) for extra in ANY_SIZE), ({}, canvas, canvas)]:
        try:
            model, built_with = build_model(
                architecture,
                num_classes=0,
                img_size=at,
                drop_path=drop_path,
                model_kwargs={**own, **options},
                pretrained=pretrained,
            )
            backbone = TimmBackbone(model, img_size=fixed or PROBE, in_chans=3)
            grids = backbone.shapes(Needs(every_grid=True)).every
        except VitletError as problem:
            problems.append(problem)
            continue
        return Opened(backbone, grids, backbone.img_size, fixed, architecture, built_with)
    raise problems[-1]
