"""The jobs on labelled and unlabelled images: `ClassifierJob` and `PretrainJob`, side by side over what they share.

Which of them a run is, `job_class` decides: the one place where the setting ``pretrain`` is asked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn

from vitlet.config import RunConfig, TaskConfig
from vitlet.data.contents import content_print, image_parts
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.loading import EvaluationSet, evaluation_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import mix_seed
from vitlet.data.scan.quick import quick_findings
from vitlet.data.shards import ShardStream
from vitlet.data.sources import load_dataset, load_unlabelled
from vitlet.data.splits import fingerprint
from vitlet.errors import VitletError
from vitlet.models.factory import data_statistics, describe_for_timm
from vitlet.models.initialise import position_names
from vitlet.objective import Objective, Outcome
from vitlet.objective.schedules import Schedule
from vitlet.tasks.declared import load_task
from vitlet.training import logistic
from vitlet.training.build import build_backbone, find_device, load_first_weights, resolve_settings, training_sizes
from vitlet.training.choice import Choice
from vitlet.training.clock import Sizes
from vitlet.training.defaults import choose_tasks
from vitlet.training.distributed import World
from vitlet.training.evaluate import Scores, averaged_over, evaluate, evaluate_tasks, nothing
from vitlet.training.inputs import class_weights, data_request, decode_once
from vitlet.training.job import Batches, Job
from vitlet.training.loaders import training_batches
from vitlet.training.mixing import Mixing
from vitlet.training.optim import make_autocast, make_schedule
from vitlet.training.summaries import accuracy_verdict, few_images
from vitlet.training.terms import make_balance, make_terms


class ImageJob(Job):
    """Training of a model on the images of a dataset; subclasses define the objective.

    Attributes:
        labelled: whether the labels are learned.
        source: the data as it was read, before it was decoded; None where a dataset was handed in.
        asked: the settings before those left open were filled in.
        sizes: sizes of the training images by the planned epoch, where they grow.
        speed: what the speed test of a run with a budget found.
    """

    SCORES = Scores
    labelled: ClassVar[bool]
    config: RunConfig
    source: Dataset | None
    asked: RunConfig
    sizes: Sizes | None
    speed: Any = None

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        objective: Objective,
        preprocess: Preprocess,
        description: str,
        notes: list[str],
    ) -> None:
        self.config, self.dataset, self.objective, self.preprocess = config, dataset, objective, preprocess
        self.device = next(objective.parameters()).device
        self.description, self.notes = description, tuple(notes)
        self.model = objective.backbone.model
        self.classes, self.data_note, self.images = tuple(dataset.classes), dataset.note, len(dataset.train)
        self.validates, self.tests = dataset.val is not None, self.labelled and dataset.test is not None
        held = {"validation": dataset.val, "test": dataset.test if self.labelled else None}
        self.held_out = {name: len(images) for name, images in held.items() if images is not None}
        self.pixels, self.channels = config.img_size, config.in_chans
        self.watches_test = config.eval_on_test
        if self.watches_test and not self.tests:
            raise VitletError("eval_on_test requires labelled test images, found none. Leave it out.")
        if self.watches_test:
            self.notes += ("test/top1 of the epochs is of the test images: a curve, by which nothing was chosen",)

    @classmethod
    def build(
        cls,
        config: RunConfig,
        dataset: Dataset | None = None,
        *,
        open_tasks: bool = False,
        choice: Choice | None = None,
    ) -> Self:
        """Find the data, build the model and the objective, and resolve every setting left open.

        Args:
            config: the settings.
            dataset: images in place of ``config.data``.
            open_tasks: whether a run without tasks gets those that were measured to help on such data.
            choice: which the settings are from; it has read the data already.
        """
        source = (choice.source if choice else None) or (cls.load_data(config) if dataset is None else None)
        dataset = dataset or source
        assert dataset is not None
        brief, why = "", choice.lines if choice else ()
        if open_tasks:
            config, brief, reason = choose_tasks(config, dataset)
            why = (reason,)
        job = cls._assembled(cls.with_tasks(config), dataset, decoded=choice.decoded if choice else {})
        job.source, job.chosen_tasks, job.choices = source, brief, why
        job.announced = choice.lines if choice else ()
        return job

    def rebuilt(self, **settings: Any) -> Self:
        """Copy of the job with other settings, on the images that are already decoded."""
        job = self._assembled(replace(self.asked, **settings), self.dataset, decoded=None)
        job.source, job.chosen_tasks, job.choices = self.source, self.chosen_tasks, self.choices
        job.announced = self.announced
        return job

    @classmethod
    def _assembled(cls, config: RunConfig, dataset: Dataset, *, decoded: dict[str, Dataset] | None) -> Self:
        """Network, objective and images from settings whose tasks are known; ``decoded`` as in `decode_once`."""
        asked, device = config, find_device(config.device)
        num_classes = cls.num_classes(config, len(dataset.classes))
        torch.manual_seed(mix_seed(config.seed))
        backbone, arguments = build_backbone(config, num_classes)
        model = backbone.model
        config = resolve_settings(config, backbone, num_classes, device)
        config, notes = cls.settle_positions(config, model)
        notes = [*load_first_weights(model, config), *notes]
        criterion = cls.criterion(config, dataset, num_classes)
        balance = make_balance(config, labels=cls.labelled)
        names = [*dataset.classes, *(f"unused {index}" for index in range(len(dataset.classes), num_classes))]
        if config.channels_last:
            model.to(memory_format=torch.channels_last)
        terms = make_terms(config, backbone, names if cls.labelled else ())
        objective = Objective(backbone, terms, criterion, balance).to(device)
        mean, std = data_statistics(model, config.in_chans)
        crop_pct = config.crop_pct or 1.0
        preprocess = Preprocess(backbone.img_size, crop_pct=crop_pct, mean=mean, std=std)
        sizes = training_sizes(config, objective)
        dataset = dataset if decoded is None else decode_once(config, dataset, preprocess, decoded)
        description = describe_for_timm(
            model, arguments, img_size=backbone.img_size, crop_pct=crop_pct, mean=mean, std=std, classes=names
        )
        job = cls(config, dataset, objective, preprocess, description, notes)
        job.asked, job.sizes = asked, sizes
        return job

    @classmethod
    @abstractmethod
    def load_data(cls, config: RunConfig) -> Dataset:
        """The images of a run, not yet decoded."""

    @classmethod
    @abstractmethod
    def num_classes(cls, config: RunConfig, classes: int) -> int:
        """Outputs of the classifier for data with this number of classes."""

    @classmethod
    @abstractmethod
    def criterion(cls, config: RunConfig, dataset: Dataset, num_classes: int) -> nn.Module:
        """The loss on labels."""

    @classmethod
    def with_tasks(cls, config: RunConfig) -> RunConfig:
        """The settings with this job's usual tasks where it needs some and none are named."""
        return config

    @classmethod
    def settle_positions(cls, config: RunConfig, model: nn.Module) -> tuple[RunConfig, list[str]]:
        """The settings with the positional embedding on or off, and a note on it."""
        return replace(config, positions="on") if config.positions == "auto" else config, []

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of the images by split; those of a stream are unknown."""
        return {name: fingerprint(images) for name, images in self._known().items()}

    @cached_property
    def contents(self) -> dict[str, str]:
        """Fingerprint of the content of files and arrays by split."""
        return {name: content_print(image_parts(images)) for name, images in self._known().items()}

    def _known(self) -> dict[str, ImageSet]:
        return {name: each for name, each in self.dataset.splits().items() if not isinstance(each, ShardStream)}

    def batches(self, world: World) -> tuple[Batches, Any]:
        return training_batches(self.config, self.dataset, self.preprocess, self.device, world)

    def on_device(self, images: Tensor) -> Tensor:
        """Images where the model is, in its memory layout."""
        images = images.to(self.device, non_blocking=True)
        return images.contiguous(memory_format=torch.channels_last) if self.config.channels_last else images

    def example(self) -> tuple[Tensor, Tensor | None]:
        """Two images of noise, of the first class."""
        assert self.config.img_size is not None
        images = torch.randn(2, self.config.in_chans, *self.config.img_size, device=self.device)
        return images, self.labels(torch.zeros(2, dtype=torch.long, device=self.device))

    @classmethod
    @abstractmethod
    def labels(cls, labels: Tensor) -> Tensor | None:
        """Labels in the form that the objective expects."""

    def complaints(self) -> list[str]:
        return list(few_images(self.dataset))

    def learning_rate(self) -> Schedule:
        return make_schedule(self.config)

    @cached_property
    def autocast(self) -> Callable[[], AbstractContextManager[Any]]:
        """The precision of the model."""
        return make_autocast(self.config, self.device)

    @cached_property
    def _loaders(self) -> dict[str, Any]:
        return {}

    def validation_loader(self, world: World) -> Any:
        """The validation loader, created once, so that its processes persist."""
        if "val" not in self._loaders:
            assert self.dataset.val is not None
            self._loaders["val"] = self.evaluation_loader(self.dataset.val, world)
        return self._loaders["val"]

    def validation_batches(self, world: World) -> int:
        return int(world.largest([len(self.validation_loader(world))])[0])

    def evaluation_loader(self, images: ImageSet, world: World) -> Any:
        """This process's share of these images, as evaluation sees them."""
        dataset = EvaluationSet(images, self.preprocess, channels=self.config.in_chans)
        count = -(-self.config.batch_size // (world.size * self.config.grad_accum_steps))
        share, workers = slice(world.rank, None, world.size), self.config.workers or 0
        return evaluation_loader(dataset, batch_size=count, workers=workers, device=str(self.device), share=share)


class ClassifierJob(ImageJob):
    """A classifier, with any tasks beside the labels."""

    labelled = True

    @classmethod
    def load_data(cls, config: RunConfig) -> Dataset:
        return load_dataset(data_request(config))

    @classmethod
    def num_classes(cls, config: RunConfig, classes: int) -> int:
        if config.num_classes is not None and config.num_classes < classes:
            raise VitletError(
                f"the data has {classes} classes, but num_classes is {config.num_classes}: labels would exceed the"
                " outputs of"
                " the classifier. Leave --num-classes out."
            )
        return config.num_classes or classes

    @classmethod
    def criterion(cls, config: RunConfig, dataset: Dataset, num_classes: int) -> nn.Module:
        weights = class_weights(config, dataset, num_classes)
        return nn.CrossEntropyLoss(weights, label_smoothing=config.smoothing or 0.0)

    @classmethod
    def labels(cls, labels: Tensor) -> Tensor:
        return labels

    @cached_property
    def mixing(self) -> Mixing:
        """Mixup and cutmix of a batch."""
        return Mixing(self.config)

    def inputs(self, batch: Any, epoch: float) -> tuple[Tensor, Tensor]:
        return self.mixing(self.on_device(batch[0]), batch[1].to(self.device, non_blocking=True), epoch)

    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        return self._evaluate(self.validation_loader(world), world, between).to_dict()

    def test(self, world: World) -> Scores:
        assert self.dataset.test is not None
        return self._evaluate(self.evaluation_loader(self.dataset.test, world), world, nothing)

    def complaints(self) -> list[str]:
        return [*super().complaints(), *(quick_findings(self.source) if self.source is not None else [])]

    def verdict(self, scores: Scores, best_epoch: int, epochs: int) -> str:
        measured = self.dataset.val if self.dataset.test is None else self.dataset.test
        assert measured is not None
        found: dict[str, int] = {"best_epoch": best_epoch, "epochs": epochs, "images": self.images}
        return accuracy_verdict(scores, measured.labels, self.config, **found)

    def classify(self, images: Tensor) -> Tensor:
        """Class scores as the exported model gives them; a sharded model is called through the objective."""
        model: Any = self.model if not self.config.fsdp else lambda each: self.objective(each, None, {}).logits
        return averaged_over(model, images, self.config.tta)

    def _evaluate(self, loader: Any, world: World, between: Callable[[], None]) -> Scores:
        how: dict[str, Any] = {"device": self.device, "autocast": self.autocast, "world": world, "between": between}
        return evaluate(self.classify, loader, classes=len(self.classes), **how)


class LogisticJob(ClassifierJob):
    """Job that fits a logistic regression on the features of a frozen model."""

    @classmethod
    def with_tasks(cls, config: RunConfig) -> RunConfig:
        return logistic.in_one_step(config)

    def batches(self, world: World) -> tuple[Batches, Any]:
        logistic.require_linear(self.model, self.on_device(self.example()[0]), self.config.model)
        return logistic.all_at_once(self.dataset.train, self.config.seed), [None]

    def fit(self, between: Callable[[], None]) -> Outcome:
        weights = class_weights(self.config, self.dataset, self.config.num_classes or len(self.classes))
        known = self.features(self.dataset.train, between)
        held = self.features(self.dataset.val, between) if self.dataset.val is not None else None
        return logistic.fit_classifier(self.model, known, held, weights, between)

    def features(self, images: ImageSet, between: Callable[[], None]) -> logistic.FrozenFeatures:
        """Pooled features of these images, the input of the classifier."""
        batches = ((self.on_device(batch), labels) for batch, labels in self.evaluation_loader(images, World()))
        return logistic.extract_features(self.model, batches, self.config.tta, self.autocast, between)


class PretrainJob(ImageJob):
    """A model that learns from the tasks alone, by default from RelViT's two."""

    labelled = False

    @classmethod
    def load_data(cls, config: RunConfig) -> Dataset:
        return load_unlabelled(data_request(config))

    @classmethod
    def num_classes(cls, config: RunConfig, classes: int) -> int:
        return 0

    @classmethod
    def criterion(cls, config: RunConfig, dataset: Dataset, num_classes: int) -> nn.Module:
        """Never called: there are no labels."""
        return nn.CrossEntropyLoss(label_smoothing=config.smoothing or 0.0)

    @classmethod
    def with_tasks(cls, config: RunConfig) -> RunConfig:
        usual = {"sprel": TaskConfig(1.0), "position": TaskConfig(1.0)}
        return config if config.tasks else replace(config, tasks=usual)

    @classmethod
    def settle_positions(cls, config: RunConfig, model: nn.Module) -> tuple[RunConfig, list[str]]:
        """Switch the positional embedding off where it would reveal the targets of a task."""
        given_away = bool(position_names(model)) and any(
            load_task(name).asks_for_places and task.view != "shuffle" for name, task in config.tasks.items()
        )
        if config.positions == "auto":
            config = replace(config, positions="off" if given_away else "on")
        if config.positions == "off" or not given_away:
            return config, []
        return config, [
            "the positional embedding is on and the patches are not shuffled: it reveals the targets, so the model"
            " may learn nothing from the images. Use --positions off, or a shuffled view."
        ]

    @classmethod
    def labels(cls, labels: Tensor) -> None:
        return None

    def inputs(self, batch: Any, epoch: float) -> tuple[Tensor, None]:
        return self.on_device(batch[0]), None

    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        """The losses and metrics of the tasks."""
        how: dict[str, Any] = {"device": self.device, "autocast": self.autocast, "world": world, "between": between}
        return evaluate_tasks(
            self.objective, self.validation_loader(world), weights=self.objective.weights(epoch), **how
        )

    def test(self, world: World) -> NoReturn:
        """Frozen features are measured by `vitlet probe`."""
        raise AssertionError("a pre-training is not tested")


def job_class(config: RunConfig) -> type[ImageJob]:
    """`PretrainJob` without labels, `LogisticJob` for a classifier that is fitted at once, else `ClassifierJob`."""
    labelled = LogisticJob if config.head == "logistic" else ClassifierJob
    return PretrainJob if config.pretrain else labelled


def build_job(config: RunConfig, dataset: Dataset | None = None) -> ImageJob:
    """The job of these settings, ready to be trained."""
    return job_class(config).build(config, dataset)
