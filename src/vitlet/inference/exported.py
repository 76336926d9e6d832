"""An export folder: what lies in it, and how it becomes a network again without running any code that it brings.

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

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file
from torch import nn

from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError, first_line
from vitlet.inference.runtimes import Dtype, OnnxNetwork, OpenVinoNetwork, TorchNetwork
from vitlet.models.factory import rebuild
from vitlet.values import is_number

Format = Literal["safetensors", "timm", "torch", "onnx", "openvino"]
MANIFEST, WEIGHTS, CARD = "vitlet.json", "model.safetensors", "README.md"
READ = {"safetensors": WEIGHTS, "timm": WEIGHTS, "torch": WEIGHTS, "onnx": "model.onnx", "openvino": "model.xml"}
"""The file that is read again, by format: a ``.pt2`` may hold pickles, so the weights beside it are read instead."""


@dataclass(frozen=True)
class Exported:
    """What an export knows of itself.

    Attributes:
        architecture: name of the network.
        arguments: with which timm builds it.
        classes: names, in the order of the logits.
        settings: size, crop and normalisation, under timm's names (``input_size``, ``crop_pct``, ``mean``, ``std``).
        temperature: that the logits are divided by before they become probabilities.
    """

    format: Format
    dtype: Dtype
    architecture: str
    arguments: Mapping[str, Any]
    classes: tuple[str, ...]
    settings: Mapping[str, Any]
    temperature: float = 1.0

    @property
    def preprocess(self) -> Preprocess:
        """The way of an image into the network."""
        own = self.settings
        return Preprocess(tuple(own["input_size"][1:]), crop_pct=own["crop_pct"], mean=own["mean"], std=own["std"])

    @property
    def channels(self) -> int:
        """Of the images."""
        return int(self.settings["input_size"][0])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        kept = ("input_size", "crop_pct", "interpolation", "mean", "std")
        return {
            "format": self.format,
            "dtype": self.dtype,
            "architecture": self.architecture,
            "model_args": dict(self.arguments),
            "preprocessing": {name: self.settings[name] for name in kept},
            "temperature": self.temperature,
            "label_names": list(self.classes),
        }


def is_export(folder: Path) -> bool:
    """Whether a folder says that it is one."""
    return (folder / MANIFEST).is_file()


def read_export(folder: Path) -> Exported:
    """The manifest of an export; every file that it names must be as it was written."""
    file = folder / MANIFEST
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        kind, dtype = found["format"], found["dtype"]
        if kind not in get_args(Format) or dtype not in get_args(Dtype):
            raise ValueError(f"its format is {kind!r} of {dtype!r}")
        sums = {str(name): str(value) for name, value in found["sha256"].items()}
        about = Exported(
            kind,
            dtype,
            str(found["architecture"]),
            dict(found["model_args"]),
            tuple(str(name) for name in found["label_names"]),
            dict(found["preprocessing"]),
            float(found["temperature"]),
        )
        _check(about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as problem:
        raise VitletError(f"{file} is not the manifest of an export: {first_line(problem)}.") from problem
    for name, expected in sums.items():
        path = folder / Path(name).name  # a name, never a way out of the folder
        if not path.is_file() or checksum(path) != expected:
            state = "is missing" if not path.is_file() else "is not as it was exported"
            raise VitletError(f"{path} {state}: the export is damaged. Export the run again.")
    return about


MOST = 1e30
"""Means and spreads beyond it are not finite as float32."""


def _check(about: Exported) -> None:
    """Refuse values with which no image could be prepared and no probability computed."""
    own = about.settings
    size, crop, mean, std = own["input_size"], own["crop_pct"], own["mean"], own["std"]
    if not isinstance(size, list) or len(size) != 3 or not all(type(side) is int and side > 0 for side in size):
        raise ValueError(f"input_size is {size!r}; it needs to be channels, height and width")
    for name, values in (("mean", mean), ("std", std)):
        if (
            not isinstance(values, list)
            or len(values) != size[0]
            or not all(is_number(value, MOST) for value in values)
        ):
            raise ValueError(f"{name} is {values!r}; it needs a number for each of {size[0]} channels")
    if min(std) <= 0:
        raise ValueError(f"std is {std!r}; it needs to be more than 0")
    if not is_number(crop) or not 0 < crop <= 1:
        raise ValueError(f"crop_pct is {crop!r}; it needs to be more than 0 and at most 1")
    if not 0 < about.temperature < math.inf:
        raise ValueError(f"temperature is {about.temperature!r}; it needs to be more than 0")


def load_network(folder: Path, about: Exported) -> nn.Module:
    """The network of an export, which answers with logits and embeddings; asked once, for as many logits as names."""
    file = folder / READ[about.format]
    if not file.is_file():
        raise VitletError(f"{file} is missing: the export is damaged. Export the run again.")
    try:
        network = _open_network(file, about).eval()
        with torch.inference_mode():
            logits = network(torch.zeros(1, *about.settings["input_size"]))[0].shape[-1]
    except VitletError:
        raise
    except Exception as problem:  # damaged files fail in many ways
        raise VitletError(f"cannot load the network in {folder}: {first_line(problem)}.") from problem
    if logits != len(about.classes):
        raise VitletError(
            f"cannot load the network in {folder}: it has {logits} logits, and {MANIFEST} names {len(about.classes)}"
            " classes. Export the run again."
        )
    return network


def _open_network(file: Path, about: Exported) -> nn.Module:
    if about.format == "onnx":
        return OnnxNetwork(file)
    if about.format == "openvino":
        return OpenVinoNetwork(file, about.dtype)
    model = rebuild(about.architecture, about.arguments, classes=len(about.classes))
    model.load_state_dict(load_file(file))
    return TorchNetwork(model, about.dtype if about.format == "torch" else "float32")


def checksum(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
