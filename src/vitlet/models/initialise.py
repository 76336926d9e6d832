"""Start a network from the weights of another run: all but a fresh classifier and fresh positions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from timm import optim
from timm.layers.pos_embed_rel import resize_rel_pos_bias_table
from torch import Tensor, nn

from vitlet.errors import VitletError, first_line

POSITIONS = ("pos_embed", "absolute_pos_embed", "pos_embed_window")
"""What networks call their absolute positional embedding: the one thing about them that no contract covers."""

RELATIVE = ("relative_position_bias_table", "rel_pos.relative_position_bias_table")


@dataclass(frozen=True)
class Loaded:
    """What became of each weight."""

    loaded: tuple[str, ...]
    resampled: tuple[str, ...]
    fresh: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{len(self.loaded)} weights loaded"
        if self.resampled:
            text += f", {len(self.resampled)} resampled ({self.resampled[0]} ...)"
        return text + (f", fresh: {', '.join(self.fresh)}" if self.fresh else "")


def position_names(model: nn.Module) -> list[str]:
    """Names of the absolute positional embeddings of a network, learned or fixed."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    return [name for name in names if name.rpartition(".")[2] in POSITIONS]


def switch_positions_off(model: nn.Module) -> None:
    """Make the positional embedding zero, and leave it so."""
    for name in position_names(model):
        tensor = model.get_parameter(name) if name in dict(model.named_parameters()) else model.get_buffer(name)
        tensor.requires_grad_(False)
        tensor.zero_()


def classifier_names(model: nn.Module) -> tuple[str, ...]:
    """Prefixes of the classifier's weights."""
    config: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    names = config.get("classifier") or "head"
    return tuple(names) if isinstance(names, (list, tuple)) else (str(names),)


def load_weights(model: nn.Module, file: Path) -> Loaded:
    """Load a safetensors file of the same architecture; refuses another one, naming keys and shapes."""
    try:
        weights = load_file(file)
    except Exception as problem:  # a file that is none fails in many ways
        raise VitletError(f"cannot read the weights {file}: {first_line(problem)}.") from problem
    own = model.state_dict()
    heads = classifier_names(model)
    fresh = {name for name in own if name.startswith(tuple(f"{head}." for head in heads))} | set(position_names(model))
    taken: dict[str, Tensor] = {}
    resampled = []
    problems = [f"{name} is missing" for name in own if name not in weights and name not in fresh]
    skipped = {name for name in weights if name.startswith(tuple(f"{head}." for head in heads))} | fresh
    for name, tensor in weights.items():
        if name in skipped:
            continue
        if name not in own:
            problems.append(f"{name} {tuple(tensor.shape)} is unknown")
        elif tensor.shape == own[name].shape:
            taken[name] = tensor
        elif name.endswith(RELATIVE):
            taken[name] = _resized(tensor, own[name])
            resampled.append(name)
        else:
            problems.append(f"{name} is {tuple(tensor.shape)}, needed {tuple(own[name].shape)}")
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise VitletError(
            f"the weights {file} are of another network: {'; '.join(problems[:3])}{more}."
            " Use the same --model and --model-kwargs as the run they come from."
        )
    model.load_state_dict(taken, strict=False)
    return Loaded(tuple(taken), tuple(resampled), tuple(sorted({name.split(".")[0] for name in fresh})))


def _resized(table: Tensor, own: Tensor) -> Tensor:
    """A table of relative positions for a window of another size."""
    side = round((own.shape[0] ** 0.5 + 1) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of timm's own tensors being non-contiguous
        resized: Tensor = resize_rel_pos_bias_table(table, new_window_size=(side, side), new_bias_shape=own.shape)
    return resized


def freeze_all_but_classifier(model: nn.Module) -> None:
    """Only the classifier learns."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    module: Any = model
    for parameter in module.get_classifier().parameters():
        parameter.requires_grad_(True)


def layer_decay_groups(model: nn.Module, *, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """Parameter groups whose learning rate falls by ``layer_decay`` with each layer away from the classifier."""
    module: Any = model
    excluded = module.no_weight_decay() if hasattr(module, "no_weight_decay") else ()
    groups: list[dict[str, Any]] = optim.param_groups_layer_decay(  # type: ignore[attr-defined]
        model, weight_decay=weight_decay, no_weight_decay_list=excluded, layer_decay=layer_decay
    )
    return [
        {"params": group["params"], "weight_decay": group["weight_decay"], "lr_scale": group["lr_scale"]}
        for group in groups
    ]


def pooled_features(model: nn.Module, images: Tensor) -> Tensor:
    """What the classifier would see: ``(B, features)``."""
    module: Any = model
    features: Tensor = module.forward_head(module.forward_features(images), pre_logits=True)
    return features if features.ndim == 2 else torch.flatten(features, 1)
