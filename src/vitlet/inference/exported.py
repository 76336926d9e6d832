"""Export folder: its files, and loading it as a model without running code from it.

==================  ==============================================================
vitlet.json         format, preprocessing, class names, temperature, parity, checksums
README.md           the model card
model.safetensors   weights (safetensors, timm, torch)
config.json         for ``timm.create_model("local-dir:...")`` and the hub (timm)
model.pt2           a ``torch.export`` program for others; nothing here ever opens one (torch)
model.onnx          for onnxruntime (onnx)
model.xml/.bin      for OpenVINO (openvino)
==================  ==============================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file
from torch import nn

from vitlet.data.preprocess import MAX_SIDE, Preprocess
from vitlet.errors import VitletError, first_line
from vitlet.inference.mixture import ENSEMBLE, rebuild_mixture
from vitlet.inference.runtimes import Dtype, OnnxNetwork, OpenVinoNetwork, TorchNetwork
from vitlet.models.factory import rebuild
from vitlet.training.files import checksum
from vitlet.values import is_number

Format = Literal["safetensors", "timm", "torch", "onnx", "openvino"]
EXPORT_MANIFEST, EXPORT_WEIGHTS, CARD = "vitlet.json", "model.safetensors", "README.md"
READ = {
    **dict.fromkeys(("safetensors", "timm", "torch"), EXPORT_WEIGHTS),
    "onnx": "model.onnx",
    "openvino": "model.xml",
}
"""The file that is read again, by format: a ``.pt2`` may hold pickles, so the weights beside it are read instead."""


LARGEST_PIXEL = 1e30
"""Means and standard deviations beyond it are not finite as float32."""


@dataclass(frozen=True)
class Exported:
    """Manifest of an export.

    Attributes:
        architecture: name of the model, or ``ensemble``.
        model_args: with which timm builds it; of an ensemble the same of each member, and their weights.
        preprocessing: under timm's names: ``input_size``, ``crop_pct``, ``interpolation``, ``mean``, ``std``.
        temperature: that the logits are divided by before they become probabilities.
        label_names: the classes, in the order of the logits.
    """

    format: Format
    dtype: Dtype
    architecture: str
    model_args: dict[str, Any]
    preprocessing: dict[str, Any]
    temperature: float
    label_names: tuple[str, ...]


def timm_preprocess(settings: Mapping[str, Any]) -> Preprocess:
    """The way of an image into a model, from timm's names for it."""
    size, crop_pct = tuple(settings["input_size"][1:]), settings["crop_pct"]
    return Preprocess(size, crop_pct=crop_pct, mean=settings["mean"], std=settings["std"])


_KINDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("format", "dtype", "architecture"), str),
    **dict.fromkeys(("model_args", "preprocessing"), dict),
    "temperature": float,
    "label_names": lambda names: tuple(map(str, names)),
}


def is_export(folder: Path) -> bool:
    """Whether a folder is an export."""
    return (folder / EXPORT_MANIFEST).is_file()


def read_export(folder: Path) -> Exported:
    """The manifest of an export; every file that it names must be as it was written."""
    file = folder / EXPORT_MANIFEST
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        sums = {str(name): str(value) for name, value in found["sha256"].items()}
        about = Exported(**{name: kind(found[name]) for name, kind in _KINDS.items()})
        _check(about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise VitletError(f"{file} is not the manifest of an export: {first_line(problem)}.") from problem
    for name, expected in sums.items():
        path = folder / Path(name).name  # a name, never a way out of the folder
        if not path.is_file() or checksum(path) != expected:
            state = "is missing" if not path.is_file() else "is not as it was exported"
            raise VitletError(f"{path} {state}: the export is damaged. Export the run again.")
    return about


def _check(about: Exported) -> None:
    """Refuse values with which no image could be prepared and no probability computed."""
    if about.format not in get_args(Format) or about.dtype not in get_args(Dtype):
        raise ValueError(f"its format is {about.format!r} of {about.dtype!r}")
    own = about.preprocessing
    size, crop = own["input_size"], own["crop_pct"]
    if not isinstance(size, list) or len(size) != 3 or not all(type(side) is int and side > 0 for side in size):
        raise ValueError(f"input_size must be channels, height and width, got {size!r}")
    if max(size) > MAX_SIDE:
        raise ValueError(f"input_size is {size!r}; at most {MAX_SIDE} pixels a side are taken")
    for name in ("mean", "std"):
        numbers = isinstance(own[name], list) and all(is_number(value, LARGEST_PIXEL) for value in own[name])
        if not numbers or len(own[name]) != size[0]:
            raise ValueError(f"{name} is {own[name]!r}; it needs a number for each of {size[0]} channels")
    if min(own["std"]) <= 0:
        raise ValueError(f"std must be greater than 0, got {own['std']!r}")
    if not is_number(crop) or not 0 < crop <= 1:
        raise ValueError(f"crop_pct must be greater than 0 and at most 1, got {crop!r}")
    if not 0 < about.temperature < math.inf:
        raise ValueError(f"temperature must be finite and greater than 0, got {about.temperature!r}")


def _build(about: Exported) -> nn.Module:
    """The model with a random initialization."""
    classes = len(about.label_names)
    if about.architecture == ENSEMBLE:
        return rebuild_mixture(about.model_args["members"], about.model_args["weights"], classes=classes)
    return rebuild(about.architecture, about.model_args, classes=classes)


def load_network(folder: Path, about: Exported) -> nn.Module:
    """Model of an export that returns logits and embeddings; checked once for one logit per class name."""
    file = folder / READ[about.format]
    if not file.is_file():
        raise VitletError(f"{file} is missing: the export is damaged. Export the run again.")
    try:
        if about.format == "onnx":
            network: nn.Module = OnnxNetwork(file)
        elif about.format == "openvino":
            network = OpenVinoNetwork(file, about.dtype)
        else:
            model = _build(about)
            model.load_state_dict(load_file(file))
            network = TorchNetwork(model, about.dtype if about.format == "torch" else "float32")
        network.eval()
        with torch.inference_mode():
            logits = network(torch.zeros(1, *about.preprocessing["input_size"]))[0].shape[-1]
    except VitletError:
        raise
    except Exception as problem:  # damaged files fail in many ways
        raise VitletError(f"cannot load the model in {folder}: {first_line(problem)}.") from problem
    if logits != (count := len(about.label_names)):
        known = f"it has {logits} logits, and {EXPORT_MANIFEST} names {count} classes"
        raise VitletError(f"cannot load the model in {folder}: {known}. Export the run again.")
    return network
