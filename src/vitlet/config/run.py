"""Settings of a classifier's training run, and of its pre-training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from vitlet.config.augmentation import AugmentationSettings
from vitlet.config.base import BaseConfig, DataSettings, HardwareSettings, ModelSettings, OptimSettings
from vitlet.config.setting import COUNT, DATA, HARDWARE, MODEL, OPTIM, POSITIVE, POSITIVE_SHARE, TASK
from vitlet.errors import VitletError
from vitlet.values import ImageSize, Names

HELD = ("model", "model_kwargs", "pretrain", "init", "freeze", "head", "pretrained")
"""Settings that determine the model: where one of them is given, `vitlet train` does not choose a model."""


@dataclass(frozen=True)
class ClassifierData(DataSettings):
    """Labelled images, subsets and splits."""

    data_dir: str | None = DATA(None, "folder of named datasets (default: data), or of the images that a table lists")
    download: bool = DATA(False, "download a named dataset that is missing")
    class_list: str | None = DATA(None, "file with the class ids of imagenet100")
    partial: bool = DATA(False, "accept a named dataset that is not complete")
    classes: Names | None = DATA(None, "use only these classes")
    folds: int | None = DATA(None, "number of cross-validation folds")
    fold: int = DATA(1, "fold used for validation, counted from 1", COUNT)
    group_by: str | None = DATA(
        None, "regular expression on the path, or column of a table; a group is never split between train and val"
    )
    fraction: float = DATA(
        1.0, "fraction of the training images to use; smaller subsets are contained in larger ones", POSITIVE_SHARE
    )
    per_class: int | None = DATA(None, "number of training images of each class to use", COUNT)
    eval_on_test: bool = DATA(
        False, "also evaluate on the test images after every epoch, for curves; nothing is selected by it"
    )
    skip_unreadable: bool = DATA(False, "skip unreadable image files, and report their number")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fold != 1 and self.folds is None:
            raise VitletError(f"fold {self.fold} requires the number of folds. Add, for example, --folds 5.")


@dataclass(frozen=True)
class ClassifierModel(ModelSettings):
    """Model name, image size and initial weights."""

    model: str = MODEL("vit_tiny_patch16_224", "model name, of timm or vitlet, see `vitlet models`")
    pretrain: bool = MODEL(False, "pre-train with the tasks only, without labels, as `vitlet pretrain` does")
    positions: Literal["auto", "on", "off"] = MODEL(
        "auto", "positional embedding; auto: off in pre-training whose targets it would reveal"
    )
    init: str | None = MODEL(
        None, "run, folder or file of initial weights, without the classifier; auto: see `vitlet weights`"
    )
    freeze: bool = MODEL(False, "train only the classifier; requires init or pretrained")
    head: Literal["linear", "logistic"] = MODEL(
        "linear", "classifier; logistic: fitted in seconds on frozen features, requires freeze"
    )
    img_size: ImageSize | None = MODEL(
        None, "image size in pixels, a side or HEIGHTxWIDTH; 48:64 grows while training (default: the model's)"
    )
    img_size_start: ImageSize | None = MODEL(
        None, "progressive resizing: image size at the start; grows to img_size over the first 70 % of the run"
    )
    in_chans: int = MODEL(3, "image channels: 1 grey, 3 RGB, others as in the files", COUNT)
    num_classes: int | None = MODEL(None, "number of outputs of the classifier (default: the number of classes)", COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freeze and (self.pretrain or not (self.init or self.pretrained)):
            raise VitletError("freeze trains only the classifier and requires trained weights. Add --init RUN.")
        if self.img_size_start is not None:
            if self.img_size is None:
                raise VitletError("img_size_start requires img_size. Use, for example, --img-size 48:64.")
            if any(first > last for first, last in zip(self.img_size_start, self.img_size, strict=True)):
                raise VitletError(
                    f"img_size_start must be at most img_size {self.img_size}, got {self.img_size_start}."
                )
        if self.init is not None and self.pretrained:
            raise VitletError("init and pretrained both set the initial weights; leave one of them out.")

    @property
    def exported(self) -> tuple[str, str]:
        """Folders of a run's weights, the default first: best, or last for pre-training."""
        return ("last", "best") if self.pretrain else ("best", "last")

    @property
    def network(self) -> str:
        """The model's name."""
        return self.model


@dataclass(frozen=True)
class ClassifierOptim(OptimSettings):
    """Time budget, optimizer, and learning rate scaled with the batch size."""

    minutes: float | None = OPTIM(
        None, "time budget in minutes; the number of epochs follows from a speed test of seconds", POSITIVE
    )
    cpu_minutes: float | None = OPTIM(
        None, "time budget in minutes of CPU time of this process, imports included", POSITIVE
    )
    planned_steps: int | None = OPTIM(None, "number of steps found by the speed test; written by the run itself", COUNT)
    epoch_repeats: float = OPTIM(1.0, "passes over the training images per epoch, may be fractional", POSITIVE)
    val_interval: int | None = OPTIM(
        None,
        "epochs between validations (default: 1; with minutes or autotune, about a twentieth of the time)",
        COUNT,
    )
    opt: str = OPTIM("adamw", "optimizer, by timm's name, such as adamw, muon, sgd or lion")
    opt_betas: str | None = OPTIM(None, "betas of the optimizer, such as 0.9,0.99 (default: the optimizer's)")
    lr_base: float | None = OPTIM(
        None, "instead of lr: learning rate for lr_base_size images per step, scaled to batch_size", POSITIVE
    )
    lr_base_size: int = OPTIM(256, "reference batch size of lr_base", COUNT)
    lr_base_scale: Literal["linear", "sqrt"] = OPTIM("linear", "scaling of lr_base with the batch size")

    sched: Literal["cosine", "wsd", "quarter-cosine"] = OPTIM(
        "cosine",
        "learning-rate schedule; wsd: constant, linear decay in the last 30 %; quarter-cosine: RelViT's",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes is not None and self.cpu_minutes is not None:
            raise VitletError("minutes and cpu_minutes both limit the run; give one of them.")
        self.betas()

    @property
    def is_open(self) -> bool:
        """Whether the number of epochs has still to be determined by a speed test."""
        return (self.minutes is not None or self.cpu_minutes is not None) and self.planned_steps is None

    def betas(self) -> tuple[float, ...] | None:
        """``opt_betas`` as numbers."""
        if self.opt_betas is None:
            return None
        try:
            found = tuple(float(word) for word in self.opt_betas.split(","))
        except ValueError:
            found = ()
        if len(found) < 2 or not all(0 <= beta < 1 for beta in found):
            raise VitletError(
                f"opt_betas must be numbers of at least 0 and less than 1, such as 0.9,0.99, got {self.opt_betas!r}."
            )
        return found

    @property
    def learning_rate_rule(self) -> str:
        """The peak learning rate and where it comes from, in words."""
        if self.lr_base is None:
            return super().learning_rate_rule
        ratio = f"{self.batch_size} / {self.lr_base_size}"
        scaled = ratio if self.lr_base_scale == "linear" else f"sqrt({ratio})"
        return f"{super().learning_rate_rule} = {self.lr_base:g} x {scaled}"


@dataclass(frozen=True)
class ClassifierHardware(HardwareSettings):
    """Memory layout, compilation, sharding, and the cache of decoded images."""

    channels_last: bool | None = HARDWARE(
        None, "channels-last memory layout (default: off; with autotune, on where it is faster)"
    )
    autotune: bool = HARDWARE(
        False,
        "time channels_last and bfloat16 in the first seconds and use the fastest",
        free=True,
    )
    compile: bool = HARDWARE(False, "compile model and tasks with torch.compile")
    fsdp: bool = HARDWARE(False, "shard weights, gradients and optimizer state over the processes (FSDP2)")
    cache: Literal["auto", "none"] = HARDWARE(
        "auto", "disk cache of decoded images for splits over 1 GiB; smaller ones stay in memory", free=True
    )
    cache_dir: str | None = HARDWARE(
        None, "folder of the image cache (default: vitlet in the user's cache folder)", free=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fsdp and getattr(self, "opt", "adamw") == "muon":
            raise VitletError(
                "fsdp shards the weights, but muon needs them unsharded; leave out --fsdp, or use --opt adamw."
            )
        if self.fsdp and self.amp and self.amp_dtype == "float16":
            raise VitletError("fsdp does not work with float16; leave out --fsdp, or use --amp-dtype bfloat16.")


@dataclass(frozen=True)
class RunConfig(ClassifierHardware, AugmentationSettings, ClassifierOptim, ClassifierModel, ClassifierData, BaseConfig):
    """Settings of a classifier's training run, with the names of timm's training script where it has them.

    Example:
        >>> config = vitlet.RunConfig(data="photos", model="resnet18", img_size=(64, 64), epochs=50)
        >>> result = vitlet.train(config)
    """

    JOB: ClassVar[str] = "train"

    balance_tasks: Literal["fixed", "uncertainty", "gradients"] = TASK(
        "fixed",
        "weighting of the task losses; uncertainty: learned (Kendall et al.); gradients: by gradient norm (GradNorm)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrain and self.balance != "none":
            raise VitletError(
                f"balance {self.balance!r} requires labels, which pre-training does not use. Leave it out."
            )
        if self.head == "logistic":
            self._require_fit()
        if self.balance_tasks == "gradients":  # differentiates each loss by itself, which some ways of a step forbid
            half = self.amp and self.amp_dtype == "float16"
            ways = {"compile": self.compile, "fsdp": self.fsdp, "grad_checkpointing": self.grad_checkpointing}
            barred = [name for name, chosen in (ways | {"amp_dtype float16": half}).items() if chosen]
            if barred:
                raise VitletError(
                    f"balance_tasks gradients does not work with {barred[0]}; use uncertainty, or leave it out."
                )

    def _require_fit(self) -> None:
        """Refuse what means nothing to a classifier that is fitted on features of the images as they are."""
        if not self.freeze:
            raise VitletError("head logistic is fitted on frozen features: add --freeze, and --init FILE.")
        changes = ("mixup", "cutmix", "hflip", "reprob", "color_jitter", "grayscale_prob", "smoothing")
        barred = {
            "task": bool(self.tasks),
            f"aug {self.aug}": self.aug not in ("light", "none"),  # the first is the default, and becomes none
            f"crop {self.crop}": self.crop not in (None, "none"),
            f"aa {self.aa}": self.aa not in (None, "off"),
            **{name: bool(getattr(self, name)) for name in changes},
            "balance sampler": self.balance == "sampler",
            **{name: bool(getattr(self, name)) for name in ("model_ema", "compile", "fsdp", "layer_decay")},
            "img_size_start": self.img_size_start is not None,
        }
        if found := [name for name, given in barred.items() if given]:
            raise VitletError(
                f"head logistic takes no training steps, and each image as it is: {found[0]} does not work with it."
                " Leave it out, or use --head linear."
            )

    @property
    def is_open(self) -> bool:
        """Whether the number of epochs is still to be planned; a logistic regression on frozen features has none."""
        return super().is_open and self.head != "logistic"

    @property
    def learning_rate_rule(self) -> str:
        """The peak learning rate and where it comes from, in words."""
        return "classifier by logistic regression" if self.head == "logistic" else super().learning_rate_rule

    def resolved(self, **settings: Any) -> Self:
        """A copy with the preset's augmentation and ``settings`` filled in."""
        return replace(self, **self.preset(), **settings)
