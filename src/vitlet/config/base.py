"""Settings of every training run in groups, and how they are read from and written to YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml

from vitlet.config.setting import (
    CHECKPOINTS,
    COUNT,
    DATA,
    HARDWARE,
    MODEL,
    NONNEGATIVE,
    OPTIM,
    POSITIVE,
    RUN,
    SHARE,
    TASK,
    Range,
    Settings,
)
from vitlet.config.task import TaskConfig
from vitlet.errors import VitletError, nearest
from vitlet.tasks import TASKS
from vitlet.tasks.declared import require_task
from vitlet.values import shown


@dataclass(frozen=True)
class DataSettings(Settings):
    """Images to learn from."""

    data: str = DATA("digits", "folder, zip or tar of class folders; CSV or Parquet table; .npz; dataset name")
    val_fraction: float = DATA(
        0.1,
        "fraction of the training images held out for validation where DATA has no val split; 0 for none",
        Range("at least 0 and less than 1, which would leave no training images", lambda value: 0 <= value < 1),
    )


@dataclass(frozen=True)
class ModelSettings(Settings):
    """Architecture options and initial weights."""

    model_kwargs: Mapping[str, Any] = MODEL({}, "further arguments of the model's constructor")
    layer_decay: float | None = MODEL(
        None, "layer-wise learning-rate decay: factor per layer, counted from the classifier", SHARE
    )
    pretrained: bool = MODEL(False, "start from timm's pretrained weights (downloaded from the hub)")
    drop_path: float = MODEL(0.0, "stochastic depth (drop path) rate", SHARE)


@dataclass(frozen=True)
class OptimSettings(Settings):
    """Training length, learning rate, and weight averaging."""

    epochs: int = OPTIM(100, "number of passes over the training images", COUNT)
    stop_epoch: int | None = OPTIM(None, "stop after this epoch; schedules still span all epochs", COUNT)
    batch_size: int = OPTIM(128, "images per optimizer step, over all processes", COUNT, flag="-b")
    grad_accum_steps: int = OPTIM(1, "gradient-accumulation micro-batches per step, to save memory", COUNT)
    lr: float = OPTIM(1e-3, "peak learning rate", POSITIVE)
    min_lr: float = OPTIM(1e-5, "learning rate at the end of the schedule", NONNEGATIVE)
    weight_decay: float = OPTIM(
        0.05, "weight decay; not applied to biases, norms and other 1-D parameters", NONNEGATIVE
    )
    warmup_epochs: float | None = OPTIM(
        None, "epochs of linear learning-rate warm-up (default: a twentieth of the run)", NONNEGATIVE
    )
    clip_grad: float | None = OPTIM(5.0, "maximum gradient norm; none for no clipping", NONNEGATIVE)
    model_ema: bool = OPTIM(False, "evaluate and export an exponential moving average (EMA) of the weights")
    model_ema_decay: float | None = OPTIM(
        None,
        "EMA decay, at step t at most (1+t)/(10+t) (default: 0.9998; less in short runs, about a fifth of the steps)",
        SHARE,
    )
    patience: int | None = OPTIM(None, "early stopping: epochs without a better validation result", COUNT)
    seed: int = OPTIM(0, "random seed for initialization, data split, shuffling and augmentation", NONNEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs is not None and self.warmup_epochs >= self.epochs:
            raise VitletError(f"warmup_epochs must be less than epochs ({self.epochs}), got {self.warmup_epochs:g}.")
        if self.stop_epoch is not None and self.stop_epoch > self.epochs:
            raise VitletError(f"stop_epoch must be at most epochs ({self.epochs}), got {self.stop_epoch}.")
        if self.batch_size % self.grad_accum_steps:
            raise VitletError(
                f"batch_size ({self.batch_size}) must be divisible by grad_accum_steps ({self.grad_accum_steps})."
            )

    @property
    def last_epoch(self) -> int:
        """The last epoch of the run, counted from 1."""
        return self.stop_epoch or self.epochs

    @property
    def learning_rate_rule(self) -> str:
        """The peak learning rate and how it was computed, as text."""
        return f"learning rate {self.lr:g}"


@dataclass(frozen=True)
class TaskSettings(Settings):
    """Auxiliary tasks by name; in a file, ``task`` maps names to weights, and each name to its options."""

    tasks: Mapping[str, TaskConfig] = field(default_factory=dict, metadata={"group": TASK, "free": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, task in self.tasks.items():
            task.check(name)


@dataclass(frozen=True)
class HardwareSettings(Settings):
    """Device, precision, and loading processes."""

    device: str = HARDWARE("auto", "device: auto, cpu, cuda, cuda:1 or mps", free=True)
    amp: bool | None = HARDWARE(None, "automatic mixed precision (default: off; with autotune, on where it is faster)")
    amp_dtype: Literal["bfloat16", "float16"] = HARDWARE("bfloat16", "data type of mixed precision")
    grad_checkpointing: bool = HARDWARE(False, "gradient checkpointing: recompute activations, less memory, more time")
    workers: int | None = HARDWARE(
        None, "processes that load images (default: 0 on a CPU, else up to 8)", NONNEGATIVE, flag="-j", free=True
    )


@dataclass(frozen=True)
class CheckpointSettings(Settings):
    """Checkpoint intervals and experiment trackers."""

    checkpoint_epochs: int | None = CHECKPOINTS(
        1, "epochs between checkpoints; none for no checkpoints by epoch", COUNT
    )
    checkpoint_steps: int | None = CHECKPOINTS(None, "steps between further checkpoints", COUNT)
    checkpoint_minutes: float | None = CHECKPOINTS(
        10.0, "minutes between further checkpoints; none for no checkpoints by time", NONNEGATIVE
    )
    checkpoint_hist: int = CHECKPOINTS(2, "number of most recent checkpoints to keep", COUNT)
    log_wandb: bool = CHECKPOINTS(False, "log to Weights & Biases")
    log_mlflow: bool = CHECKPOINTS(False, "log to MLflow")
    log_trackio: bool = CHECKPOINTS(False, "log to Trackio")


@dataclass(frozen=True)
class LocationSettings(Settings):
    """Run folder, processes and resuming; not written into the run's config.yaml."""

    nproc: int | None = RUN(None, "processes to start on this machine (for several machines: torchrun)", COUNT)
    output: str | None = RUN(None, "run folder (default: a new one in runs/)")
    overwrite: bool = RUN(False, "empty the run folder first if it exists")
    resume: str | None = RUN(None, "run folder to continue; auto: that of --output, or the latest of this command")


@dataclass(frozen=True)
class BaseConfig(
    LocationSettings,
    CheckpointSettings,
    HardwareSettings,
    TaskSettings,
    OptimSettings,
    ModelSettings,
    DataSettings,
):
    """Settings that all runs share: those of classifiers, detectors and segmenters."""

    JOB: ClassVar[str]
    """The command that starts such a run."""

    ORDER: ClassVar[str] = """
        data data_dir download class_list partial classes val_fraction folds fold group_by fraction per_class
        skip_unreadable model model_kwargs pretrain positions init freeze layer_decay pretrained img_size
        img_size_start in_chans num_classes drop_path minutes cpu_minutes epochs planned_steps epoch_repeats
        val_interval batch_size opt opt_betas grad_accum_steps lr lr_base lr_base_size lr_base_scale min_lr
        weight_decay warmup_epochs clip_grad model_ema model_ema_decay patience aug crop scale hflip aa color_jitter
        grayscale_prob reprob smoothing mixup cutmix mixup_prob mixup_off_epoch tta balance class_weights crop_pct
        seed balance_tasks device amp amp_dtype channels_last autotune compile grad_checkpointing fsdp workers cache
        cache_dir checkpoint_epochs checkpoint_steps checkpoint_minutes checkpoint_hist log_wandb log_mlflow
        log_trackio nproc output overwrite resume"""
    """Order of the keys in config.yaml and of the flags, as older versions wrote them."""

    # Settings that only a classifier has; other runs use these values.
    freeze = compile = fsdp = channels_last = False
    minutes = cpu_minutes = None
    epoch_repeats, val_interval, opt = 1.0, 1, "adamw"

    @property
    def network(self) -> str:
        """Name of the model in the name of a run folder."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the keys of a YAML file, without the settings of the run folder."""
        plain: dict[str, Any] = {} if self.JOB == "train" else {"job": self.JOB}
        for item in self.settings():
            if item.metadata["group"] is not RUN:
                value = getattr(self, item.name)
                value = list(value) if isinstance(value, tuple) else value
                plain[item.name] = dict(value) if isinstance(value, Mapping) else value
        plain["task"] = {name: task.weight for name, task in self.tasks.items()}
        return plain | {name: chosen for name, task in self.tasks.items() if (chosen := task.chosen())}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "settings") -> Self:
        """Checked settings from plain values; unknown keys are refused with the nearest known one."""
        values = dict(values)
        job = values.pop("job", cls.JOB)
        if job != cls.JOB:
            raise VitletError(f"{source} holds settings of `vitlet {job}`; needed are settings of `vitlet {cls.JOB}`.")
        known = [item.name for item in cls.settings()]
        weights = values.pop("task", None) or {}
        if weights == "none":  # in a study: over tasks, and their options, that are set elsewhere
            weights, values = {}, {key: value for key, value in values.items() if key not in TASKS}
        if not isinstance(weights, Mapping):
            raise VitletError(f"{source}: 'task' must map task names to weights, got {shown(weights)}.")
        for name in weights:
            require_task(str(name))
            if name in known:
                raise VitletError(
                    f"{source}: {name!r} is a setting and, by an installed package, a task. Rename the task."
                )
        options = {name: values.pop(name, None) for name in weights}
        unknown = next((str(key) for key in values if key not in known), "")
        if unknown in TASKS:
            needed = f"Add the task: --task {unknown}=0.5."
            raise VitletError(f"{source}: options for {unknown!r} were given, but no weight. {needed}")
        if unknown:
            raise VitletError(f"{source}: unknown key {unknown!r}.{nearest(unknown, [*known, 'task', *weights])}")
        tasks = {name: TaskConfig.from_values(name, weights[name], options[name], source) for name in weights}
        return cls(**cls.coerced(values, source), tasks=tasks)

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """The plain values of a YAML file; tags that would make objects are refused."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            values = yaml.safe_load(text) or {}
        except OSError as problem:
            raise VitletError(f"cannot read the configuration {path}: {problem.strerror}.") from problem
        except Exception as problem:  # beside its own errors those of numbers and dates, and of too deep a nesting
            reason = " ".join(str(problem).split())[:300]
            raise VitletError(f"{path} is not a plain YAML file: {reason}.") from problem
        if not isinstance(values, dict):
            raise VitletError(f"{path} must contain 'key: value' lines, got {type(values).__name__}.")
        return values

    def dump(self) -> str:
        """YAML text that starts the same run again."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
