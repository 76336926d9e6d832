"""Build models by name, with error messages instead of tracebacks, and describe them so that timm can load them."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import timm
from timm.layers.drop import DropPath
from torch import nn

from vitlet.errors import VitletError, first_line, nearest
from vitlet.models.attention_families import FAMILIES, has_attention_maps

RESERVED = {
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "scriptable"),
    *("num_classes", "in_chans", "img_size", "drop_path_rate"),
}
"""Arguments of timm that a settings file may not slip in among the model's own."""


def build_model(
    name: str,
    *,
    num_classes: int,
    in_chans: int = 3,
    img_size: tuple[int, int] | None = None,
    drop_path: float = 0.0,
    model_kwargs: Mapping[str, Any] | None = None,
    pretrained: bool | Path = False,
) -> tuple[nn.Module, dict[str, Any]]:
    """A timm model, and the arguments that make it again.

    Networks without a fixed image size take any: for them ``img_size`` is left out. With ``pretrained`` (timm's weights
    from the hub, or a file of them) the classifier is fresh, and timm adapts the stem to the number of channels.
    """
    reserved = RESERVED & set(model_kwargs or {})
    if reserved:
        raise VitletError(f"model_kwargs cannot hold {sorted(reserved)[0]!r}: it has its own setting, or none.")
    if name not in timm.list_models():
        raise VitletError(
            f"unknown model {name!r}.{nearest(name, timm.list_models())} `vitlet models PATTERN` lists them."
        )
    arguments = dict(model_kwargs or {}) | {"in_chans": in_chans}
    if drop_path:
        arguments["drop_path_rate"] = drop_path
    if img_size is not None:
        arguments["img_size"] = img_size
    weights: dict[str, Any] = {"pretrained": bool(pretrained), "num_classes": num_classes}
    if isinstance(pretrained, Path):
        weights["pretrained_cfg_overlay"] = {"file": str(pretrained), "source": "file"}
    try:
        with _one_message() if pretrained is True else nullcontext():
            try:
                model = timm.create_model(name, **weights, **arguments)
            except TypeError as problem:
                if "'img_size'" not in str(problem):
                    raise
                del arguments["img_size"]
                model = timm.create_model(name, **weights, **arguments)
    except Exception as problem:  # timm's models complain in many types
        if pretrained is True and isinstance(problem, OSError):
            raise VitletError(
                f"the pretrained weights of {name} could not be downloaded ({first_line(problem)}). Connect to the hub,"
                " or give a file of weights: --init FILE in place of --pretrained."
            ) from problem
        shown = ", ".join(f"{key}={value}" for key, value in arguments.items()) + (
            " and pretrained weights" * bool(pretrained)
        )
        raise VitletError(f"the model {name} cannot be built with {shown}: {first_line(problem)}.") from problem
    if not drop_path:
        for layer in model.modules():
            if isinstance(layer, DropPath):
                layer.drop_prob = 0.0  # Swin and others drop unasked
    return model, arguments


@contextmanager
def _one_message() -> Iterator[None]:
    """Inside, a hub that cannot be reached is not retried for minutes, and its retries are not printed."""
    from huggingface_hub import constants

    logger = logging.getLogger("huggingface_hub")
    level, offline = logger.level, constants.HF_HUB_OFFLINE
    logger.setLevel(logging.CRITICAL)
    try:
        if not getproxies():
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        constants.HF_HUB_OFFLINE = True  # what was downloaded before is still found
    try:
        yield
    finally:
        logger.setLevel(level)
        constants.HF_HUB_OFFLINE = offline


def data_statistics(model: nn.Module, in_chans: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel that the model's configuration names."""
    config: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    mean, std = config.get("mean", (0.5, 0.5, 0.5)), config.get("std", (0.5, 0.5, 0.5))
    if in_chans == len(mean):
        return list(mean), list(std)
    return [sum(mean) / len(mean)] * in_chans, [sum(std) / len(std)] * in_chans


def patch_size(model: Any) -> tuple[int, int] | None:
    """Height and width of the patches that a model cuts images into, whatever its name says; None without patches."""
    embed = getattr(model, "patch_embed", None)
    size, grid = getattr(embed, "img_size", None), getattr(embed, "grid_size", None)
    return None if not size or not grid else (size[0] // grid[0], size[1] // grid[1])


def describe_for_timm(
    model: nn.Module,
    arguments: Mapping[str, Any],
    *,
    img_size: tuple[int, int],
    crop_pct: float,
    mean: Sequence[float],
    std: Sequence[float],
    classes: Sequence[str],
) -> str:
    """The ``config.json`` with which ``timm.create_model("local-dir:...")`` builds this model again."""
    own: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    forget = ("architecture", "url", "file", "hf_hub_id", "hf_hub_filename", "source", "state_dict", "tag")
    settings = {key: value for key, value in own.items() if value is not None and key not in forget}
    settings |= {
        "input_size": [len(mean), *img_size],
        "interpolation": "bicubic",
        "crop_pct": crop_pct,
        "mean": list(mean),
        "std": list(std),
    }
    described = {
        "architecture": own.get("architecture"),
        "num_classes": len(classes),
        "num_features": getattr(model, "num_features", None),
        "label_names": list(classes),
        "model_args": dict(arguments),
        "pretrained_cfg": settings,
    }
    return json.dumps(described, indent=2, ensure_ascii=False)


def load_exported(folder: Path) -> nn.Module:
    """The model of a folder in timm's ``local-dir`` layout."""
    model: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
    return model


def rebuild(name: str, arguments: Mapping[str, Any], *, classes: int) -> nn.Module:
    """The model that `build_model` made with these arguments, which may have been through JSON; fresh weights."""
    rest = dict(arguments)
    size = rest.pop("img_size", None)
    img_size = None if size is None else (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    in_chans, drop_path = int(rest.pop("in_chans", 3)), float(rest.pop("drop_path_rate", 0.0))
    return build_model(
        name, num_classes=classes, in_chans=in_chans, img_size=img_size, drop_path=drop_path, model_kwargs=rest
    )[0]


def find_models(pattern: str = "", *, attention: bool = False) -> list[str]:
    """Names of models whose token grid can be read; a plain word as pattern matches anywhere in a name.

    Args:
        pattern: name pattern such as ``vit*`` or ``swin``.
        attention: only those known to have attention maps over their token grid.
    """
    wildcard = pattern if any(sign in pattern for sign in "*?[") or not pattern else f"*{pattern}*"
    names: list[str] = [name for name in timm.list_models(wildcard) if _shows_its_grid(name)]
    if attention:
        names = [name for name in names if has_attention_maps(name, _family(name))]
    if not names:
        which = " with attention maps" if attention else ""
        raise VitletError(f"no model{which} matches {pattern!r}.{nearest(pattern, timm.list_models())}")
    return names


def attention_families() -> dict[str, str]:
    """Families (modules of timm, and vitlet's own) with attention maps -> what the maps cover."""
    return {family: covered for family, (_, covered) in FAMILIES.items()}


def _shows_its_grid(name: str) -> bool:
    """Whether the module that makes this model has a class with ``forward_intermediates``, as a few have not."""
    module = sys.modules[timm.models.model_entrypoint(name).__module__]
    return any(isinstance(kind, type) and hasattr(kind, "forward_intermediates") for kind in vars(module).values())


def _family(name: str) -> str:
    return str(timm.models.model_entrypoint(name).__module__).rpartition(".")[2]
