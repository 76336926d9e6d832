"""Files of weights as tensors by name, whoever wrote them; nothing in a file is ever run."""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from vitlet.errors import VitletError, first_line

PICKLED = (".pth", ".pt", ".bin", ".tar", ".ckpt")
"""Ends of the names of files that torch.save has written."""

NESTED = ("state_dict_ema", "model_ema", "state_dict", "model", "module")
"""Where training scripts keep the weights among other things; averaged ones first."""

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
"""What wrappers (DDP, torch.compile, Lightning) put before every name."""

AGAIN = "Download or copy the file again"


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of one that torch.save has written, without wrappers around them."""
    if file.suffix == ".safetensors":
        try:
            found: Any = load_file(file)
        except Exception as problem:  # a file that is none fails in many ways
            raise VitletError(
                f"cannot read the weights {file}: {first_line(problem)}; it is truncated, or no safetensors file."
                f" {AGAIN}."
            ) from problem
    elif file.suffix in PICKLED:
        found = _unpickled(file)
    else:
        raise VitletError(
            f"cannot read the weights {file}: found a name that ends in {file.suffix or 'nothing'}, needed"
            f" .safetensors, {', '.join(PICKLED[:-1])} or {PICKLED[-1]}. Rename the file after what it is."
        )
    weights = _unwrapped(found, file)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise VitletError(
                f"the weights {file} are damaged: {name} holds {count} values that are not finite. {AGAIN}."
            )
    return weights


def read_shapes(file: Path) -> dict[str, Tensor]:
    """Tensors of a weight file without their values, on the device ``meta``."""
    if file.suffix != ".safetensors":
        return _unwrapped(_unpickled(file, values=False), file)
    try:
        with safe_open(file, "pt") as opened:
            shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    except Exception as problem:  # a file that is none fails in many ways
        raise VitletError(f"cannot read the weights {file}: {first_line(problem)}. {AGAIN}.") from problem
    return _unwrapped({name: torch.empty(shape, device="meta") for name, shape in shapes.items()}, file)


def read_description(file: Path) -> Mapping[str, Any]:
    """Contents of ``config.json`` beside the weights (timm's local-dir layout); empty without one."""
    try:
        found = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _unpickled(file: Path, *, values: bool = True) -> Any:
    """Load a file of torch.save: tensors and plain values only, everything else is refused before it is created."""
    try:
        if values and zipfile.is_zipfile(file):  # torch does not compare checksums
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
            if damaged is not None:
                raise VitletError(f"the weights {file} are damaged: the checksum of {damaged} is wrong. {AGAIN}.")
        with torch.serialization.safe_globals([argparse.Namespace]):  # settings beside the weights: names and values
            return torch.load(file, map_location="cpu" if values else "meta", weights_only=True)
    except VitletError:
        raise
    except Exception as problem:  # damaged pickles fail in many ways
        refused = re.search(r"(?:GLOBAL|global:?) `?([\w.]+\.[\w.]+)", str(problem))
        if refused is not None:
            raise VitletError(
                f"the weights {file} hold more than tensors: found {refused[1]}, which was not run. If you trust the"
                " file, load it where it was made and save model.state_dict() alone."
            ) from problem
        raise VitletError(
            f"cannot read the weights {file}: {first_line(problem)}; it is truncated, or not of torch.save. {AGAIN}."
        ) from problem


def _unwrapped(found: Any, file: Path) -> dict[str, Tensor]:
    """Tensors of a training script's checkpoint, under the model's parameter names."""
    while isinstance(found, Mapping):
        inner = next((found[key] for key in NESTED if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    weights: dict[str, Tensor] = {}
    if isinstance(found, Mapping):
        weights = {str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
    weights.pop("n_averaged", None)  # of torch's own moving average
    if not weights:
        shown = (
            f"the keys {', '.join(map(str, list(found)[:5]))}" if isinstance(found, Mapping) else type(found).__name__
        )
        raise VitletError(
            f"{file} holds no weights: found {shown}, needed tensors by name, perhaps under"
            f" {', '.join(NESTED[:-1])} or {NESTED[-1]}. Save model.state_dict()."
        )
    while prefix := next((one for one in PREFIXES if all(name.startswith(one) for name in weights)), None):
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights
