"""The settings of a classifier's run, and of its pre-training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from vitlet.config.augmentation import AugmentationSettings
from vitlet.config.base import BaseConfig, DataSettings, HardwareSettings, ModelSettings, OptimSettings
from vitlet.config.setting import COUNT, DATA, HARDWARE, MODEL, OPTIM, POSITIVE, POSITIVE_SHARE, TASK
from vitlet.errors import VitletError
from vitlet.values import ImageSize, Names

HELD = ("model", "model_kwargs", "pretrain", "init", "freeze", "head", "pretrained")
"""Settings that say, or follow from, what the network is: where one is given, `vitlet train` chooses none."""


@dataclass(frozen=True)
class ClassifierData(DataSettings):
    """Labelled images: which of them, and in which parts."""

    data_dir: str | None = DATA(None, "folder of named datasets [data], or of the images that a table lists")
    download: bool = DATA(False, "fetch a named dataset that is not there")
    class_list: str | None = DATA(None, "file with the class ids of imagenet100")
    partial: bool = DATA(False, "accept a named dataset that is not complete")
    classes: Names | None = DATA(None, "only these classes")
    folds: int | None = DATA(None, "cross-validation: split the training images into this many parts ...")
    fold: int = DATA(1, "... of which this one, from 1, validates", COUNT)
    group_by: str | None = DATA(None, "pattern on the path, or column of a table: its images stay on one side")
    fraction: float = DATA(
        1.0, "share of the training images to use; larger shares contain smaller ones", POSITIVE_SHARE
    )
    per_class: int | None = DATA(None, "number of training images of each class to use", COUNT)
    eval_on_test: bool = DATA(
        False, "measure the test images after every epoch: for the curves of a paper, nothing is chosen by them"
    )
    skip_unreadable: bool = DATA(False, "leave out files that cannot be read, and count them")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fold != 1 and self.folds is None:
            raise VitletError(f"fold is {self.fold}, but folds is not given: into how many parts? Add --folds 5.")


@dataclass(frozen=True)
class ClassifierModel(ModelSettings):
    """A network by its name, what it learns from, and the weights that it begins with."""

    model: str = MODEL("vit_tiny_patch16_224", "timm model name, see `vitlet models`")
    pretrain: bool = MODEL(False, "learn from the tasks alone, without labels, as `vitlet pretrain` does")
    positions: Literal["auto", "on", "off"] = MODEL(
        "auto", "positional embedding, absolute or relative; auto: off in pre-training whose answers it would give away"
    )
    init: str | None = MODEL(
        None, "start from the weights of a run, folder or file, all but the classifier; auto: see `vitlet weights`"
    )
    freeze: bool = MODEL(False, "with init: train the classifier alone")
    head: Literal["linear", "logistic"] = MODEL(
        "linear", "classifier; logistic, with freeze: fitted at once on the frozen features, in seconds"
    )
    img_size: ImageSize | None = MODEL(
        None, "side of the images or HEIGHTxWIDTH; 48:64 grows from 48 to 64 px while training (default: the model's)"
    )
    img_size_start: ImageSize | None = MODEL(
        None, "image size of the first steps; it grows to img_size over the first 70 % of the run"
    )
    in_chans: int = MODEL(3, "channels of the images: 1 grey, 3 RGB, other numbers as the files have them", COUNT)
    num_classes: int | None = MODEL(None, "size of the classifier (default: the number of classes)", COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freeze and (self.pretrain or not (self.init or self.pretrained)):
            raise VitletError("freeze trains the classifier alone, which needs learned weights: add --init RUN.")
        if self.img_size_start is not None:
            if self.img_size is None:
                raise VitletError("img_size_start is given, but img_size is not: to which size? Use --img-size 48:64.")
            if any(first > last for first, last in zip(self.img_size_start, self.img_size, strict=True)):
                raise VitletError(
                    f"img_size_start {self.img_size_start} must not be larger than img_size {self.img_size}."
                )
        if self.init is not None and self.pretrained:
            raise VitletError("init and pretrained both give the first weights; leave one of them out.")

    @property
    def exported(self) -> tuple[str, str]:
        """The folders of weights of a run, first the one that stands for it: its best, of a pre-training its last."""
        return ("last", "best") if self.pretrain else ("best", "last")

    @property
    def network(self) -> str:
        """The model's name."""
        return self.model


@dataclass(frozen=True)
class ClassifierOptim(OptimSettings):
    """A budget in minutes, the optimizer, and a learning rate that grows with the batch."""

    minutes: float | None = OPTIM(
        None, "train for so many minutes: a speed test in the first seconds finds the number of epochs", POSITIVE
    )
    cpu_minutes: float | None = OPTIM(
        None, "the same in CPU time of this process, imports included, which a busy machine does not change", POSITIVE
    )
    planned_steps: int | None = OPTIM(None, "what the speed test found, written by the run itself", COUNT)
    epoch_repeats: float = OPTIM(1.0, "passes over the training images per epoch; may be a fraction", POSITIVE)
    val_interval: int | None = OPTIM(
        None,
        "epochs between two validations (default: 1; with minutes or autotune, so that they cost about a twentieth)",
        COUNT,
    )
    opt: str = OPTIM("adamw", "optimizer by timm's name: adamw, muon, sgd, lion, ...")
    opt_betas: str | None = OPTIM(None, "betas of the optimizer, such as 0.9,0.99 (default: the optimizer's)")
    lr_base: float | None = OPTIM(
        None, "instead of lr: the rate for lr_base_size images a step, scaled to batch_size", POSITIVE
    )
    lr_base_size: int = OPTIM(256, "images a step that lr_base is meant for", COUNT)
    lr_base_scale: Literal["linear", "sqrt"] = OPTIM("linear", "how lr_base grows with the images a step")

    sched: Literal["cosine", "wsd", "quarter-cosine"] = OPTIM(
        "cosine",
        "learning rate after the warm-up; wsd: constant, linear decay in the last 30 %; quarter-cosine: RelViT's",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes is not None and self.cpu_minutes is not None:
            raise VitletError("minutes and cpu_minutes both limit the run; leave one of them out.")
        self.betas()

    @property
    def is_open(self) -> bool:
        """Whether the number of epochs is still to be found by a speed test."""
        return (self.minutes is not None or self.cpu_minutes is not None) and self.planned_steps is None

    def betas(self) -> tuple[float, ...] | None:
        """The numbers of ``opt_betas``."""
        if self.opt_betas is None:
            return None
        try:
            found = tuple(float(word) for word in self.opt_betas.split(","))
        except ValueError:
            found = ()
        if len(found) < 2 or not all(0 <= beta < 1 for beta in found):
            raise VitletError(
                f"opt_betas is {self.opt_betas!r}; it must be numbers from 0 to below 1 such as 0.9,0.99."
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
    """Ways to run a step, and a cache of decoded images."""

    channels_last: bool | None = HARDWARE(
        None, "channels_last memory layout (default: off, with autotune where it is faster)"
    )
    autotune: bool = HARDWARE(
        False,
        "measure channels_last and bfloat16 in the first seconds and take the fastest, unless they are given",
        free=True,
    )
    compile: bool = HARDWARE(False, "compile the network and its tasks with torch.compile")
    fsdp: bool = HARDWARE(False, "spread weights, gradients and optimizer over the processes (FSDP2)")
    cache: Literal["auto", "none"] = HARDWARE(
        "auto", "of decoded images beyond 1 GiB a split: keep on disk, or decode anew; fewer stay in memory", free=True
    )
    cache_dir: str | None = HARDWARE(None, "of that cache (default: vitlet in the user's cache folder)", free=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fsdp and getattr(self, "opt", "adamw") == "muon":
            raise VitletError("fsdp splits the weights that muon needs whole; leave out --fsdp, or use --opt adamw.")
        if self.fsdp and self.amp and self.amp_dtype == "float16":
            raise VitletError("fsdp does not work with float16; leave out --fsdp, or use --amp-dtype bfloat16.")


@dataclass(frozen=True)
class RunConfig(ClassifierHardware, AugmentationSettings, ClassifierOptim, ClassifierModel, ClassifierData, BaseConfig):
    """A training run of a classifier. Names are those of timm's training script where it has them."""

    JOB: ClassVar[str] = "train"

    balance_tasks: Literal["fixed", "uncertainty", "gradients"] = TASK(
        "fixed", "weights of tasks; uncertainty: divided by learned spreads; gradients: by how hard each pulls"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrain and self.balance != "none":
            raise VitletError(f"balance is {self.balance!r}, but pre-training looks at no labels. Leave it out.")
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
        """As of any run with a budget; a classifier that is fitted at once takes no steps."""
        return super().is_open and self.head != "logistic"

    @property
    def learning_rate_rule(self) -> str:
        """The peak learning rate and where it comes from, in words."""
        return "classifier by logistic regression" if self.head == "logistic" else super().learning_rate_rule

    def resolved(self, **settings: Any) -> Self:
        """The same run with the preset's augmentation, and ``settings``, filled in."""
        return replace(self, **self.preset(), **settings)
