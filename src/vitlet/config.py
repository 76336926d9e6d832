"""Everything that defines a run, as one frozen record.

The same keys are flags (``--batch-size``), YAML keys (``batch_size``) and fields here. This module does not import
torch: a mistyped key must be answered at once.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from vitlet.errors import VitletError, nearest
from vitlet.tasks.declared import Option, declared_options, require_task

ImageSize = tuple[int, int]  # height, width

TERM_OPTIONS = {
    "schedule": Option(
        Literal["constant", "ramp"] | None, None, "of the weight; ramp: up from 0, then down to 0 (default: by preset)"
    ),
    "warmup_epochs": Option(
        float | None, None, "of a ramp: epochs until the full weight (default: 20, at most a fifth of the run)"
    ),
    "view": Option(
        Literal["plain", "shuffle", "mega"], "plain", "what the task looks at; shuffle: patches moved; mega: joined"
    ),
    "patch_augment": Option(bool, False, "crop, jitter and grey every patch by itself"),
    "mega_side": Option(int, 5, "of view mega: joined patches along a side"),
    "mega_coords": Option(
        Literal["index", "image"], "index", "of view mega: places by index, or by the centre in the original image"
    ),
}
"""What every task can be told besides its own options."""


@dataclass(frozen=True)
class TaskConfig:
    """A task of a run: its weight and schedule, the view it looks at, and the task's own options."""

    weight: float
    schedule: Literal["constant", "ramp"] | None = None
    warmup_epochs: float | None = None
    view: Literal["plain", "shuffle", "mega"] = "plain"
    patch_augment: bool = False
    mega_side: int = 5
    mega_coords: Literal["index", "image"] = "index"
    options: Mapping[str, Any] = field(default_factory=dict)


def _setting(default: Any, help_text: str, *flags: str, where: bool = False) -> Any:
    """A field with its help, further flags, and whether it says only *where* a run lies, not what it is."""
    metadata = {"help": help_text, "flags": flags, "where": where}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class RunConfig:
    """A training run. Names are those of timm's training script where it has them."""

    data: str = _setting("digits", "folder of class folders, with or without train/val/test; or 'digits'")
    model: str = _setting("vit_tiny_patch16_224", "timm model name, see `vitlet models`")
    model_kwargs: Mapping[str, Any] = _setting({}, "further arguments of the model, NAME=VALUE")
    img_size: ImageSize | None = _setting(None, "side of the images or HEIGHTxWIDTH (default: the model's)")
    in_chans: int = _setting(3, "channels of the images: 1 or 3")
    num_classes: int | None = _setting(None, "size of the classifier (default: the number of classes)")
    drop_path: float = _setting(0.0, "drop path rate")
    epochs: int = _setting(100, "passes over the training images")
    batch_size: int = _setting(128, "images per step", "-b")
    lr: float = _setting(1e-3, "peak learning rate of AdamW")
    min_lr: float = _setting(1e-5, "learning rate at the end of the cosine")
    weight_decay: float = _setting(0.05, "weight decay; none on biases, norms and other 1-D parameters")
    warmup_epochs: float | None = _setting(None, "epochs of linear warm-up (default: a twentieth of the run)")
    clip_grad: float | None = _setting(5.0, "largest norm of the gradient; none to leave it")
    smoothing: float = _setting(0.1, "label smoothing")
    mixup: float = _setting(0.0, "mixup alpha, 0 for none")
    cutmix: float = _setting(0.0, "cutmix alpha, 0 for none")
    hflip: float = _setting(0.5, "probability of a horizontal flip (0 for digits and text)")
    scale: float = _setting(0.35, "smallest share of the area that a random crop keeps; 1 for no crop")
    crop_pct: float = _setting(0.875, "share of the side that the centre crop keeps in evaluation")
    val_fraction: float = _setting(0.1, "share of the training images held out when DATA has no val folder")
    seed: int = _setting(0, "of weights, split, order and augmentation")
    tasks: Mapping[str, TaskConfig] = field(default_factory=dict, metadata={"where": False})
    device: str = _setting("auto", "auto, cpu, cuda, cuda:1, mps")
    amp: bool = _setting(False, "mixed precision")
    amp_dtype: Literal["bfloat16", "float16"] = _setting("bfloat16", "of mixed precision")
    workers: int = _setting(2, "processes that load images", "-j")
    output: str | None = _setting(None, "the run's folder (default: a new one under runs/)", where=True)
    overwrite: bool = _setting(False, "empty an existing run folder first", where=True)
    resume: str | None = _setting(None, "continue this run folder after its last whole epoch", where=True)

    def __post_init__(self) -> None:
        _check(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the keys of a YAML file; without where the run lies."""
        plain: dict[str, Any] = {}
        for item in fields(self):
            if item.name == "tasks" or item.metadata["where"]:
                continue
            value = getattr(self, item.name)
            if isinstance(value, tuple):
                value = list(value)
            plain[item.name] = dict(value) if isinstance(value, Mapping) else value
        plain["task"] = {name: task.weight for name, task in self.tasks.items()}
        for name, task in self.tasks.items():
            term = {key: getattr(task, key) for key in TERM_OPTIONS}
            chosen = {key: value for key, value in term.items() if value != TERM_OPTIONS[key].default}
            chosen |= task.options
            if chosen:
                plain[name] = chosen
        return plain

    @staticmethod
    def from_dict(values: Mapping[str, Any], *, source: str = "settings") -> RunConfig:
        """Checked settings from plain values; unknown keys are refused with the nearest known one."""
        hints = get_type_hints(RunConfig)
        known = [item.name for item in fields(RunConfig) if item.name != "tasks"]
        weights = values.get("task") or {}
        if not isinstance(weights, Mapping):
            raise VitletError(f"{source}: 'task' needs to map task names to weights, found {weights!r}.")
        for name in weights:
            require_task(str(name))
        settings: dict[str, Any] = {}
        for key, value in values.items():
            if key == "task" or key in weights:
                continue
            if key not in known:
                raise VitletError(_unknown_key(source, str(key), [*known, "task", *weights]))
            settings[key] = coerce(value, hints[key], f"{source}: {key}")
        tasks = {name: _task_config(name, weight, values.get(name), source) for name, weight in weights.items()}
        return RunConfig(**settings, tasks=tasks)

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """The plain values of a YAML file; tags that would make objects are refused."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            values = yaml.safe_load(text) or {}
        except OSError as problem:
            raise VitletError(f"cannot read the configuration {path}: {problem.strerror}.") from problem
        except (yaml.YAMLError, UnicodeDecodeError) as problem:
            reason = " ".join(str(problem).split())
            raise VitletError(f"{path} is not a plain YAML file: {reason}.") from problem
        if not isinstance(values, dict):
            raise VitletError(f"{path} needs to hold 'key: value' lines, found {type(values).__name__}.")
        return values

    def dump(self) -> str:
        """YAML text that starts the same run again."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def _unknown_key(source: str, key: str, known: list[str]) -> str:
    from vitlet.tasks import TASKS

    if key in TASKS:
        return f"{source}: options for {key!r} were given, but no weight. Add the task: --task {key}=0.5."
    return f"{source}: unknown key {key!r}.{nearest(key, known)}"


def _task_config(name: str, weight: Any, chosen: Any, source: str) -> TaskConfig:
    chosen = {} if chosen is None else chosen
    if not isinstance(chosen, Mapping):
        raise VitletError(f"{source}: {name!r} needs to map its options to values, found {chosen!r}.")
    declared = declared_options(name)
    values = {}
    for key, value in chosen.items():
        option = TERM_OPTIONS.get(key) or declared.get(key)
        if option is None:
            hint = nearest(str(key), [*TERM_OPTIONS, *declared])
            raise VitletError(f"{source}: task {name!r} has no option {str(key)!r}.{hint}")
        values[key] = coerce(value, option.hint, f"{source}: {name}.{key}")
    term = {key: values.pop(key) for key in TERM_OPTIONS if key in values}
    return TaskConfig(weight=coerce(weight, float, f"{source}: task {name}"), options=values, **term)


def coerce(value: Any, hint: Any, where: str) -> Any:
    """The value as the type that is wanted, from a flag's text or a YAML value; a sentence if it is neither."""
    if get_origin(hint) in (Union, types.UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        if value is None or value == "none":
            return None
        return coerce(value, choices[0], where)
    if get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
        raise VitletError(f"{where} is {value!r}; it needs to be one of {', '.join(map(str, get_args(hint)))}.")
    if hint == ImageSize:
        return _image_size(value, where)
    if get_origin(hint) is Mapping or hint is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise VitletError(f"{where} is {value!r}; it needs to be NAME: VALUE pairs.")
    try:
        return _scalar(value, hint)
    except (TypeError, ValueError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
        raise VitletError(f"{where} is {value!r}; it needs to be {wanted}.") from None


def _scalar(value: Any, hint: type) -> Any:
    if hint is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise TypeError
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError
    if hint is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return hint(value)


def _image_size(value: Any, where: str) -> ImageSize:
    parts = str(value).lower().split("x") if isinstance(value, (str, int)) else value
    try:
        sides = [int(part) for part in parts]
        if 1 <= len(sides) <= 2 and min(sides) > 0:
            return sides[0], sides[-1]
    except (TypeError, ValueError):
        pass
    raise VitletError(f"{where} is {value!r}; it needs to be a side such as 64, or HEIGHTxWIDTH such as 64x96.")


def _check(config: RunConfig) -> None:
    """Ranges that no type says."""
    at_least_one = ("epochs", "batch_size", "in_chans", "num_classes")
    at_least_zero = ("lr", "min_lr", "weight_decay", "warmup_epochs", "mixup", "cutmix", "workers", "clip_grad", "seed")
    shares = ("drop_path", "smoothing", "hflip", "scale", "crop_pct", "val_fraction")
    for names, low, high, words in (
        (at_least_one, 1, None, "1 or more"),
        (at_least_zero, 0, None, "0 or more"),
        (shares, 0, 1, "between 0 and 1"),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None and not (low <= value and (high is None or value <= high)):
                raise VitletError(f"{name} is {value}; it needs to be {words}.")
    for name in ("scale", "crop_pct", "lr"):
        if getattr(config, name) == 0:
            raise VitletError(f"{name} is 0; it needs to be more.")
    if config.warmup_epochs is not None and config.warmup_epochs >= config.epochs:
        raise VitletError(f"warmup_epochs is {config.warmup_epochs:g}; it needs to be below epochs ({config.epochs}).")
    if config.in_chans not in (1, 3):
        raise VitletError(f"in_chans is {config.in_chans}; images are read with 1 channel (grey) or 3 (RGB).")
    for name, task in config.tasks.items():
        if not 0 <= task.weight < float("inf"):
            raise VitletError(f"the weight of task {name!r} is {task.weight:g}; it needs to be 0 or more.")
        of_mega = [key for key in ("mega_side", "mega_coords") if getattr(task, key) != TERM_OPTIONS[key].default]
        if of_mega and task.view != "mega":
            raise VitletError(f"{name}.{of_mega[0]} is given, but its view is {task.view!r}. Add --{name}.view mega.")
