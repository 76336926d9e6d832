"""Everything that defines a run, as one frozen record.

The same keys are flags (``--batch-size``), YAML keys (``batch_size``) and fields here. This module does not import
torch: a mistyped key must be answered at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_type_hints

import yaml

from vitlet.errors import VitletError, nearest
from vitlet.tasks.declared import Option, declared_options, require_task
from vitlet.values import ImageSize, Names, coerce

AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "none": {"crop": "none", "hflip": 0.0, "smoothing": 0.0},
    "light": {"crop": "auto", "scale": 0.35, "smoothing": 0.1},
    "drloc": {
        "crop": "auto",
        "aa": "rand-m9-mstd0.5-inc1",
        "reprob": 0.25,
        "smoothing": 0.1,
        "mixup": 0.8,
        "cutmix": 1.0,
    },
    "relvit": {"crop": "auto", "smoothing": 0.0},
}
"""What each preset sets; the rest is as in ``_PLAIN``. drloc: the Swin and DeiT recipe; relvit: crop and flip alone."""

_PLAIN = {
    "scale": 0.08,
    "hflip": 0.5,
    "aa": "off",
    "color_jitter": 0.0,
    "reprob": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
}

PRESET = frozenset(_PLAIN).union(*AUGMENTATIONS.values())
"""The settings that a preset fills in."""

TERM_OPTIONS = {
    "schedule": Option(
        Literal["constant", "ramp"] | None, None, "of the weight; ramp: up from 0, then down to 0 (default: by preset)"
    ),
    "warmup_epochs": Option(
        float | None, None, "of a ramp: epochs until the full weight (default: 20, at most a fifth of the run)"
    ),
    "view": Option(
        Literal["plain", "shuffle", "mega", "rotate"] | None,
        None,
        "what the task looks at; shuffle: patches moved; mega: joined; rotate: quarter turns (default: by task)",
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
    view: Literal["plain", "shuffle", "mega", "rotate"] | None = None
    patch_augment: bool = False
    mega_side: int = 5
    mega_coords: Literal["index", "image"] = "index"
    options: Mapping[str, Any] = field(default_factory=dict)


def setting(default: Any, help_text: str, *flags: str, where: bool = False, free: bool = False) -> Any:
    """A field with its help and further flags.

    ``where``: it says only where a run lies or how it is started. ``free``: a continued run may change it, for it has
    no say in the weights.
    """
    metadata = {"help": help_text, "flags": flags, "where": where, "free": free or where}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class RunConfig:
    """A training run. Names are those of timm's training script where it has them.

    A job of another kind (`vitlet.transfer.common.settings`) adds fields, and names those that mean nothing to it in
    ``UNUSED``: they are no flags or keys of it.
    """

    JOB: ClassVar[str] = "train"
    UNUSED: ClassVar[frozenset[str]] = frozenset()

    data: str = setting("digits", "folder, zip or tar of class folders; CSV or Parquet table; .npz; dataset name")
    data_dir: str | None = setting(None, "folder of named datasets [data], or of the images that a table lists")
    download: bool = setting(False, "fetch a named dataset that is not there")
    class_list: str | None = setting(None, "file with the class ids of imagenet100")
    partial: bool = setting(False, "accept a named dataset that is not complete")
    classes: Names | None = setting(None, "only these classes")
    val_fraction: float = setting(0.1, "share of the training images held out where DATA has no val; 0 for none")
    folds: int | None = setting(None, "cross-validation: split the training images into this many parts ...")
    fold: int = setting(1, "... of which this one, from 1, validates")
    group_by: str | None = setting(None, "pattern on the path, or column of a table: its images stay on one side")
    fraction: float = setting(1.0, "share of the training images to use; larger shares contain smaller ones")
    per_class: int | None = setting(None, "number of training images of each class to use")
    skip_unreadable: bool = setting(False, "leave out files that cannot be read, and count them")
    model: str = setting("vit_tiny_patch16_224", "timm model name, see `vitlet models`")
    model_kwargs: Mapping[str, Any] = setting({}, "further arguments of the model, NAME=VALUE")
    pretrain: bool = setting(False, "learn from the tasks alone, without labels, as `vitlet pretrain` does")
    positions: Literal["auto", "on", "off"] = setting(
        "auto", "positional embedding; auto: off in pre-training whose answers it would give away"
    )
    init: str | None = setting(None, "start from the weights of a run, folder or file: all but the classifier")
    freeze: bool = setting(False, "with init: train the classifier alone")
    layer_decay: float | None = setting(None, "learning rate falls by this factor with each layer from the classifier")
    pretrained: bool = setting(False, "start from timm's pretrained weights (fetched from the hub)")
    img_size: ImageSize | None = setting(None, "side of the images or HEIGHTxWIDTH (default: the model's)")
    in_chans: int = setting(3, "channels of the images: 1 grey, 3 RGB, other numbers as the files have them")
    num_classes: int | None = setting(None, "size of the classifier (default: the number of classes)")
    drop_path: float = setting(0.0, "drop path rate")
    epochs: int = setting(100, "passes over the training images")
    batch_size: int = setting(128, "images per step, of all processes together", "-b")
    grad_accum_steps: int = setting(1, "take a step's images in so many parts, to need less memory")
    lr: float = setting(1e-3, "peak learning rate of AdamW")
    lr_base: float | None = setting(
        None, "instead of lr: the rate for lr_base_size images a step, scaled to batch_size"
    )
    lr_base_size: int = setting(256, "images a step that lr_base is meant for")
    lr_base_scale: Literal["linear", "sqrt"] = setting("linear", "how lr_base grows with the images a step")
    min_lr: float = setting(1e-5, "learning rate at the end of the cosine")
    weight_decay: float = setting(0.05, "weight decay; none on biases, norms and other 1-D parameters")
    warmup_epochs: float | None = setting(None, "epochs of linear warm-up (default: a twentieth of the run)")
    clip_grad: float | None = setting(5.0, "largest norm of the gradient; none to leave it")
    model_ema: bool = setting(False, "evaluate and export a moving average of the weights")
    model_ema_decay: float = setting(
        0.9998, "share of the average that stays at each step; at step t at most (1+t)/(10+t)"
    )
    patience: int | None = setting(None, "stop after so many epochs without a better validation result")
    aug: Literal["light", "none", "drloc", "relvit"] = setting("light", "augmentation preset; the parts below override")
    crop: Literal["auto", "resized", "padded", "none"] | None = setting(
        None, "resized: a random part; padded: moved by a few pixels; auto: padded up to 64 px (default: by preset)"
    )
    scale: float | None = setting(None, "smallest share of the area that a resized crop keeps (default: by preset)")
    hflip: float | None = setting(None, "probability of a horizontal flip; 0 for digits, text (default: by preset)")
    aa: str | None = setting(None, "RandAugment such as rand-m9-mstd0.5-inc1, or off (default: by preset)")
    color_jitter: float | None = setting(None, "brightness, contrast and saturation (default: by preset)")
    reprob: float | None = setting(None, "probability of random erasing (default: by preset)")
    smoothing: float | None = setting(None, "label smoothing (default: by preset)")
    mixup: float | None = setting(None, "mixup alpha, 0 for none (default: by preset)")
    cutmix: float | None = setting(None, "cutmix alpha, 0 for none (default: by preset)")
    balance: Literal["none", "sampler", "weights"] = setting(
        "none", "imbalanced classes: draw each equally often, or weigh the loss"
    )
    class_weights: str | None = setting(None, "of balance weights, such as 1,2.5,1 (default: by how rare a class is)")
    crop_pct: float | None = setting(
        None, "share of the side that evaluation's centre crop keeps (default: 0.875 after resized crops, else 1)"
    )
    seed: int = setting(0, "of weights, split, order and augmentation")
    tasks: Mapping[str, TaskConfig] = field(default_factory=dict, metadata={"where": False, "free": False})
    balance_tasks: Literal["fixed", "uncertainty", "gradients"] = setting(
        "fixed", "weights of tasks; uncertainty: divided by learned spreads; gradients: by how hard each pulls"
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps", free=True)
    amp: bool = setting(False, "mixed precision")
    amp_dtype: Literal["bfloat16", "float16"] = setting("bfloat16", "of mixed precision")
    compile: bool = setting(False, "compile the network and its tasks with torch.compile")
    grad_checkpointing: bool = setting(False, "recompute activations in the backward pass: less memory, more time")
    fsdp: bool = setting(False, "spread weights, gradients and optimizer over the processes (FSDP2)")
    workers: int | None = setting(
        None, "processes that load images (default: none on a CPU, else up to 8)", "-j", free=True
    )
    cache: Literal["auto", "none"] = setting(
        "auto", "keep decoded images that do not fit into memory on disk", free=True
    )
    cache_dir: str | None = setting(None, "of that cache (default: vitlet in the user's cache folder)", free=True)
    checkpoint_epochs: int | None = setting(1, "save the state every so many epochs; none for not", free=True)
    checkpoint_steps: int | None = setting(None, "also every so many steps", free=True)
    checkpoint_minutes: float | None = setting(10.0, "also every so many minutes; none for not", free=True)
    checkpoint_hist: int = setting(2, "checkpoints to keep", free=True)
    log_wandb: bool = setting(False, "also log to Weights & Biases", free=True)
    log_mlflow: bool = setting(False, "also log to MLflow", free=True)
    log_trackio: bool = setting(False, "also log to Trackio", free=True)
    nproc: int | None = setting(None, "processes to start on this machine (several machines: torchrun)", where=True)
    output: str | None = setting(None, "the run's folder (default: a new one under runs/)", where=True)
    overwrite: bool = setting(False, "empty an existing run folder first", where=True)
    resume: str | None = setting(
        None, "continue this run folder; auto: --output, or this command's last run, if it is there", where=True
    )

    def __post_init__(self) -> None:
        _check(self)

    @property
    def network(self) -> str:
        """What the network is called in the name of a run's folder."""
        return self.model

    @classmethod
    def settings(cls) -> list[Field[Any]]:
        """The fields that are flags and keys, without the tasks."""
        return [item for item in fields(cls) if item.name != "tasks" and item.name not in cls.UNUSED]

    def resolved(self, **settings: Any) -> Self:
        """The same run with the preset's augmentation, and ``settings``, filled in."""
        preset = {**_PLAIN, **AUGMENTATIONS[self.aug]}
        chosen = {name: value for name, value in preset.items() if getattr(self, name) is None}
        return replace(self, **chosen, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the keys of a YAML file; without where the run lies."""
        plain: dict[str, Any] = {} if self.JOB == "train" else {"job": self.JOB}
        for item in self.settings():
            if item.metadata["where"]:
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "settings") -> Self:
        """Checked settings from plain values; unknown keys are refused with the nearest known one."""
        values = dict(values)
        job = values.pop("job", cls.JOB)
        if job != cls.JOB:
            raise VitletError(f"{source} is of `vitlet {job}`; needed settings of `vitlet {cls.JOB}`.")
        hints = get_type_hints(cls)
        known = [item.name for item in cls.settings()]
        weights = values.get("task") or {}
        if not isinstance(weights, Mapping):
            raise VitletError(f"{source}: 'task' needs to map task names to weights, found {weights!r}.")
        for name in weights:
            require_task(str(name))
            if name in known:
                raise VitletError(
                    f"{source}: {name!r} is a setting and, by an installed package, a task. Rename the task."
                )
        settings: dict[str, Any] = {}
        for key, value in values.items():
            if key == "task" or key in weights:
                continue
            if key not in known:
                raise VitletError(_unknown_key(source, str(key), [*known, "task", *weights]))
            settings[key] = coerce(value, hints[key], f"{source}: {key}")
        tasks = {name: _task_config(name, weight, values.get(name), source) for name, weight in weights.items()}
        return cls(**settings, tasks=tasks)

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


def _check(config: RunConfig) -> None:
    """Ranges that no type says."""
    at_least_one = (
        *("epochs", "batch_size", "grad_accum_steps", "lr_base_size", "in_chans", "num_classes", "per_class", "fold"),
        *("patience", "checkpoint_epochs", "checkpoint_steps", "checkpoint_hist", "nproc"),
    )
    at_least_zero = (
        *(
            "lr",
            "lr_base",
            "min_lr",
            "weight_decay",
            "warmup_epochs",
            "mixup",
            "cutmix",
            "workers",
            "clip_grad",
            "seed",
        ),
        "checkpoint_minutes",
    )
    shares = (
        "drop_path",
        "smoothing",
        "hflip",
        "scale",
        "crop_pct",
        "val_fraction",
        "fraction",
        "color_jitter",
        "reprob",
        "layer_decay",
        "model_ema_decay",
    )
    for names, low, high, words in (
        (at_least_one, 1, None, "1 or more"),
        (at_least_zero, 0, None, "0 or more"),
        (shares, 0, 1, "between 0 and 1"),
    ):
        for name in names:
            value = getattr(config, name)
            if value is not None and not (low <= value and (high is None or value <= high)):
                raise VitletError(f"{name} is {value}; it needs to be {words}.")
    for name in ("scale", "crop_pct", "lr", "lr_base", "fraction"):
        if getattr(config, name) == 0:
            raise VitletError(f"{name} is 0; it needs to be more.")
    if config.val_fraction == 1:
        raise VitletError("val_fraction is 1, which leaves nothing to train on; it needs to be below 1.")
    if config.fold != 1 and config.folds is None:
        raise VitletError(f"fold is {config.fold}, but folds is not given: into how many parts? Add --folds 5.")
    if config.warmup_epochs is not None and config.warmup_epochs >= config.epochs:
        raise VitletError(f"warmup_epochs is {config.warmup_epochs:g}; it needs to be below epochs ({config.epochs}).")
    if config.batch_size % config.grad_accum_steps:
        raise VitletError(
            f"batch_size is {config.batch_size}, which {config.grad_accum_steps} equal parts (grad_accum_steps) do not"
            " divide; make it a multiple."
        )
    if config.fsdp and config.amp and config.amp_dtype == "float16":
        raise VitletError("fsdp does not work with float16; leave out --fsdp, or use --amp-dtype bfloat16.")
    if config.balance_tasks == "gradients":
        _check_gradients(config)
    if config.freeze and (config.pretrain or not (config.init or config.pretrained)):
        raise VitletError("freeze trains the classifier alone, which needs learned weights: add --init RUN.")
    if config.init is not None and config.pretrained:
        raise VitletError("init and pretrained both give the first weights; leave one of them out.")
    if config.pretrain and config.balance != "none":
        raise VitletError(f"balance is {config.balance!r}, but pre-training looks at no labels. Leave it out.")
    if config.class_weights is not None and config.balance != "weights":
        raise VitletError("class_weights are given, but balance is not 'weights'. Add --balance weights.")
    for name, task in config.tasks.items():
        if not 0 <= task.weight < float("inf"):
            raise VitletError(f"the weight of task {name!r} is {task.weight:g}; it needs to be 0 or more.")
        of_mega = [key for key in ("mega_side", "mega_coords") if getattr(task, key) != TERM_OPTIONS[key].default]
        if of_mega and task.view != "mega":
            raise VitletError(f"{name}.{of_mega[0]} is given, but its view is not mega. Add --{name}.view mega.")


def _check_gradients(config: RunConfig) -> None:
    """Each loss is differentiated by itself, which some ways to run a step do not allow."""
    half = config.amp and config.amp_dtype == "float16"
    for name, chosen in (
        ("compile", config.compile),
        ("fsdp", config.fsdp),
        ("grad_checkpointing", config.grad_checkpointing),
        ("amp_dtype float16", half),
    ):
        if chosen:
            raise VitletError(f"balance_tasks gradients does not work with {name}; use uncertainty, or leave it out.")
