"""Start a model from learned weights: all but a fresh classifier, at another image size or number of channels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm import optim
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.models.fitting import OFFSETS, POSITIONS, RELATIVE, adapted, resampled
from vitlet.models.layouts import Layout, nearest_layout, recognize, without_differing
from vitlet.models.released import under_own_names
from vitlet.models.weight_files import read_description, read_weights

ROTARY = "rope"
"""What timm's models call their rotary positions, which turn queries and keys: zero would erase both."""

UNSWITCHABLE = re.compile(r"^Rotary|RotaryEmbedding|PosConv$|PosEnc$")
"""Classes of positions that have no table: rotary ones, and convolutions that see the border."""

RELATIVE_POSITIONS = re.compile(
    r"(^|\.)("
    r"relative_position_bias_table|attention_biases|rel_pos_[hw]|(height|width)_rel"  # tables
    r"|(cpb_mlp|meta_mlp|\w*rel_pos\.mlp)\..+"  # tables made by a model from the offsets
    r"|(pos_proj|pos_embe?d\.token_projection)\.(weight|bias)"  # ConViT; sinusoids of XCiT and EdgeNeXt
    r")$"
)
"""What networks call weights that know offsets; all zero, they are the same for every pair of tokens."""

KEYS_SHOWN = 4
"""Number of names that an error message lists before it only counts them."""


@dataclass(frozen=True)
class Loaded:
    """Result of loading weights, by parameter name.

    Attributes:
        loaded: taken from the file, fitted or as they are.
        resampled: of these, interpolated for another image, window or patch size.
        adapted: of these, changed for another number of channels.
        fresh: left as they were initialised.
        unused: unused weights of the file, left out.
        layout: the known release that the file is, if it is one.
    """

    loaded: tuple[str, ...]
    resampled: tuple[str, ...]
    adapted: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    layout: Layout | None = None

    def __str__(self) -> str:
        of_layout = f"{self.layout}: " if self.layout else ""
        parts = [f"{of_layout}{len(self.loaded)} weights loaded"]
        for what in ("resampled", "adapted", "fresh", "unused"):
            names = getattr(self, what)
            if names:
                parts.append(f"{len(names)} {what} ({_listed(names)})")
        return ", ".join(parts)


def _listed(names: Sequence[str], sign: str = ", ") -> str:
    more = f" and {len(names) - KEYS_SHOWN} more" if len(names) > KEYS_SHOWN else ""
    return sign.join(names[:KEYS_SHOWN]) + more


def position_names(model: nn.Module) -> list[str]:
    """Names of the absolute positional embeddings of a model, learned or fixed."""
    return [name for name in _tensors(model) if name.rpartition(".")[2] in POSITIONS and ROTARY not in name.split(".")]


def relative_position_names(model: nn.Module) -> list[str]:
    """Names of what a model adds to attention scores, or takes them from, by the offset of two tokens alone."""
    return [name for name in _tensors(model) if RELATIVE_POSITIONS.search(name)]


def switch_positions_off(model: nn.Module) -> str:
    """Make the positional embeddings zero, absolute and relative ones, and leave them so; what was done, in words."""
    for path, module in model.named_modules():
        if ROTARY in path.split(".") or UNSWITCHABLE.search(type(module).__name__):
            raise VitletError(
                f"the positions of {type(model).__name__} cannot be switched off: its layer {path} is a"
                f" {type(module).__name__}, which has no table to make zero. Leave out --positions off (in pre-training"
                " use --positions on), or use another model, such as vit_tiny_patch16_224."
            )
    names = [*position_names(model), *relative_position_names(model)]
    if not names:
        raise VitletError(
            f"{type(model).__name__} has no positional embedding known to vitlet, absolute or relative, so there is"
            " nothing to switch off. Leave out --positions off."
        )
    tensors = _tensors(model)
    for name in names:
        tensors[name].requires_grad_(False)
        tensors[name].zero_()
    return f"positional embedding off: {_listed(names)}"


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict((*model.named_parameters(), *model.named_buffers()))


def classifier_names(model: nn.Module) -> tuple[str, ...]:
    """Prefixes of the classifier's weights."""
    config: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    names = config.get("classifier") or "head"
    return tuple(names) if isinstance(names, (list, tuple)) else (str(names),)


def load_weights(model: nn.Module, file: Path, *, keep_classifier: bool = False) -> Loaded:
    """Load weights of the same architecture; refuses those of another, naming keys and shapes.

    Positions and tables of relative positions are resampled to the model's size, its first convolution is adapted to
    its channels. The classifier stays fresh, and so do positions that were switched off (all zero).

    Args:
        model: the model.
        file: safetensors, or of torch.save (tensors alone: nothing in it is run).
        keep_classifier: load the classifier too; it has to be of the same size.
    """
    own, description = model.state_dict(), read_description(file)
    positions = [name for name in position_names(model) if name in own]
    read = read_weights(file)
    relative = [name for name in relative_position_names(model) if name in read]
    fixed = dict(model.named_buffers())
    off = {name for name in positions if name in read and (name in fixed or not read[name].any())}
    off |= set() if any(read[name].any() for name in relative) else set(relative)
    found = {name: one for name, one in read.items() if name not in off}
    layout = recognize(read)
    weights = under_own_names(found | _positions(found, positions, model, description), model)
    differing = without_differing(weights, layout, own)
    weights = {name: one for name, one in weights.items() if name not in differing}
    heads = () if keep_classifier else tuple(f"{head}." for head in classifier_names(model))
    unused = [name for name in weights if name.startswith(heads)]
    taken, problems = _fitted({name: one for name, one in weights.items() if name not in unused}, model)
    without = {*positions, *off, *differing} - weights.keys()
    fresh = [name for name in own if name.startswith(heads) or name in without]
    optional = {name for name in own if name.endswith("num_batches_tracked")}  # old files lack these counters
    problems += [f"{name} is missing" for name in own if name not in {*weights, *fresh, *optional}]
    if problems:
        advice = _advice(read, model, description, layout)
        raise VitletError(f"the weights {file} are of another model: {_shown_problems(problems)}. {advice}")
    model.load_state_dict(taken, strict=False)
    before = {name: found.get(name, weights[name]) for name in taken}
    size, channels = _changes(before, taken)
    return Loaded(tuple(taken), tuple(size), tuple(channels), tuple(fresh), tuple(unused), layout)


def _shown_problems(problems: Sequence[str]) -> str:
    """The first of each kind, and how many there are."""
    kinds = {"extra": " is unknown", "missing": " is missing", "of another shape": ", needed "}
    groups = {kind: [each for each in problems if mark in each] for kind, mark in kinds.items()}
    return "; ".join(f"{len(found)} {kind}: {_listed(found, '; ')}" for kind, found in groups.items() if found)


def _positions(
    found: Mapping[str, Tensor], names: Sequence[str], model: nn.Module, description: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Positions at the model's size, where the grid is known that they were learned on: timm takes all for square."""
    size = (description.get("pretrained_cfg") or {}).get("input_size")
    if not size:
        return {}
    fitted = {name: resampled(name, found[name], model, size[1] / size[2]) for name in names if name in found}
    return {name: tensor for name, tensor in fitted.items() if tensor is not None}


def _fitted(weights: Mapping[str, Tensor], model: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """The weights at the model's sizes, and what is wrong with those that cannot be had so."""
    own = model.state_dict()
    taken: dict[str, Tensor] = {}
    problems = []
    for name, tensor in weights.items():
        if name not in own:
            problems.append(f"{name} {tuple(tensor.shape)} is unknown")
            continue
        fitted = tensor
        for fit in (resampled, adapted):
            if fitted.shape != own[name].shape:
                better = fit(name, fitted, model)
                fitted = fitted if better is None else better
        if fitted.shape == own[name].shape:
            taken[name] = fitted
        else:
            problems.append(f"{name} is {tuple(tensor.shape)}, needed {tuple(own[name].shape)}")
    return taken, problems


def _changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """Names of the weights that were changed for another size, and for other channels."""
    size, channels = [], []
    for name, new in after.items():
        old = before[name]
        if name.rpartition(".")[2] in (*POSITIONS, RELATIVE, OFFSETS):
            if not torch.equal(old, new):
                size.append(name)
        elif old.shape != new.shape:
            if old.shape[2:] != new.shape[2:]:
                size.append(name)
            if old.shape[:2] != new.shape[:2]:
                channels.append(name)
    return size, channels


def _advice(
    found: Mapping[str, Tensor], model: nn.Module, description: Mapping[str, Any], layout: Layout | None
) -> str:
    """Advice for weights that do not fit the model."""
    if layout is not None:
        return f"They are {layout.name}'s: use --model {layout.model}, without --model-kwargs, or leave out --model."
    own = model.state_dict()
    differing = [name for name in found if name in own and found[name].shape != own[name].shape]
    if found.keys() <= own.keys() and all(name.rpartition(".")[2] in POSITIONS for name in differing):
        return "Use the --img-size that they were trained with, or put the config.json of that model beside the file."
    if found.keys() <= own.keys() and len(differing) == 1 and found[differing[0]].ndim == 4:
        return f"Use --in-chans {found[differing[0]].shape[1]}, as they were learned with."
    architecture = description.get("architecture")
    if not architecture:
        same = "Use the same --model and --model-kwargs as the run they come from."
        alike = sum(name in own for name in found) > len(own) / 2
        return same if alike else f"{same} {nearest_layout(found)}"
    ours = ("in_chans", "img_size", "drop_path_rate")
    options = [f"{key}={value}" for key, value in (description.get("model_args") or {}).items() if key not in ours]
    return f"They are of --model {architecture}" + (f" --model-kwargs {' '.join(options)}." if options else ".")


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
    """Inputs of the classifier: ``(B, features)``."""
    module: Any = model
    features: Tensor = module.forward_head(module.forward_features(images), pre_logits=True)
    return features if features.ndim == 2 else torch.flatten(features, 1)
