"""Interface of what the loop trains: classifier, pre-training, detector and segmenter implement `Job`.

`ClassifierJob` and `PretrainJob` are in this room, `DetectionJob` and `SegmentationJob` in `vitlet.transfer`. The loop,
its checkpoints, its processes and its signals are the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import nn

from vitlet.config import BaseConfig
from vitlet.objective import Objective, Outcome
from vitlet.objective.schedules import Schedule
from vitlet.training.distributed import World
from vitlet.training.teachers import teachers_of


class Measured(Protocol):
    """The numbers of an evaluation, exact over all images of a set."""

    @property
    def per_class(self) -> tuple[float | None, ...]:
        """The main number of each class, None where it has no image."""
        ...

    def to_dict(self) -> dict[str, float]:
        """The plain numbers."""
        ...

    @classmethod
    def from_dict(cls, numbers: Mapping[str, float]) -> Self:
        """Create from the values of `to_dict`."""
        ...


class Batches(Protocol):
    """The training batches of one process, and their order.

    Attributes:
        epoch: to be set before an epoch begins.
        start: the step to begin with, to be set likewise.
        batch_size: images of a step, of all processes together.
        parts: micro-batches of a step, of all processes together.
        mine: those of them that this process computes.
    """

    epoch: int
    start: int
    batch_size: int
    parts: int
    mine: range

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        ...

    def images(self, step: int, part: int) -> list[int]:
        """The training images of a micro-batch."""
        ...


class Job(ABC):
    """Everything that a run needs, checked before anything is written.

    Attributes:
        SCORES: what an evaluation gives.
        config: the settings, none left open.
        objective: what is trained; called with a batch and the weights of the tasks.
        model: what is averaged, evaluated and exported: the model without the heads of tasks.
        device: where it is trained.
        description: the ``config.json`` beside exported weights.
        notes: sentences for the end of a run.
        choices: sentences on what was chosen for the user and why, for the run folder.
        chosen_tasks: the tasks that were chosen for the user, and why in a few words.
        announced: sentences for the start of a run on what was chosen for the user.
        classes: their names.
        data_note: what the data is, in a sentence.
        images: number of training images.
        held_out: number of the others, by ``validation`` and ``test``.
        pixels: height and width of the images, where all have the same.
        channels: channels of the images.
        validates: whether there are validation images.
        tests: whether there are test images to be measured on at the end.
        watches_test: whether they are measured on after every epoch, for curves alone.
    """

    SCORES: ClassVar[type[Measured]]

    config: BaseConfig
    objective: Objective
    model: nn.Module
    device: torch.device
    description: str
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    chosen_tasks: str = ""
    announced: tuple[str, ...] = ()
    classes: Sequence[str]
    data_note: str
    images: int
    held_out: Mapping[str, int]
    pixels: tuple[int, int] | None = None
    channels: int = 3
    validates: bool
    tests: bool
    watches_test: bool = False

    @classmethod
    @abstractmethod
    def build(cls, *args: Any, **options: Any) -> Self:
        """Build a job from settings; all checks are done here."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Fingerprint of the images by split; splits without a known one are left out."""
        return {}

    @property
    def contents(self) -> Mapping[str, str]:
        """Fingerprint of the files' content by split; see `vitlet.data.contents`."""
        return {}

    def complaints(self) -> list[str]:
        """Warnings on the data from a quick check."""
        return []

    def verdict(self, scores: Any, best_epoch: int, epochs: int) -> str:
        """Assessment of a run's scores as text; may be empty."""
        return ""

    @abstractmethod
    def batches(self, world: World) -> tuple[Batches, Any]:
        """The order of this process's training batches, and an iterable of the batches themselves."""

    @abstractmethod
    def inputs(self, batch: Any, epoch: float) -> tuple[Any, Any]:
        """A batch of the loader on the device, as the objective takes it: images, and what is known of them.

        Args:
            batch: from the loader.
            epoch: which may be fractional; augmentation may end at one.
        """

    def fit(self, between: Callable[[], None]) -> Outcome | None:
        """The one step of a job that is fitted without gradients; None for all others.

        Args:
            between: to be called often; it raises where someone wants the run to stop.
        """
        return None

    @abstractmethod
    def example(self) -> tuple[Any, Any]:
        """Inputs of two images, to try the objective on."""

    @abstractmethod
    def learning_rate(self) -> Schedule:
        """Learning rate at an epoch, which may be fractional."""

    @abstractmethod
    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        """The numbers of the validation images; all processes call this, each has a share of the images."""

    @abstractmethod
    def validation_batches(self, world: World) -> int:
        """Number of calls of ``between`` in `validate`."""

    @abstractmethod
    def test(self, world: World) -> Any:
        """The `SCORES` of the test images."""


def learned_from(job: Job) -> str:
    """Description of the training data; shows a folder that was read in an unintended way."""
    classes = [name if name.isprintable() else repr(name) for name in job.classes]
    shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
    return f"{job.images:,} training images" + (f" of {len(classes)} classes ({shown})" if classes else "")


def data_of(job: Job) -> dict[str, Any]:
    """Fingerprints of the data that a checkpoint stores."""
    known = {"fingerprints": dict(job.fingerprints), "contents": dict(job.contents)}
    if teachers := teachers_of(job.objective):
        known["teachers"] = {name: teacher.sha256 for name, teacher in teachers.items()}
    return {"images": job.images, "classes": list(job.classes), **known}


def other_data(kept: Mapping[str, Any], job: Job) -> str:
    """Message on how a job's data differs from the stored fingerprints; empty if it does not."""
    has = data_of(job)
    for key, name in (("classes", "classes"), ("images", "training images")):
        if kept[key] != has[key]:
            return f"its {name} were {kept[key]}, the data now has {has[key]}."
    happened = {"fingerprints": "Files were added, removed or renamed", "contents": "The content of files has changed"}
    for kind, what in happened.items():
        for split, print_then in kept.get(kind, {}).items():  # older checkpoints have none
            if has[kind].get(split) != print_then:
                return f"its {split} images are not those that it began with. {what}; undo that, or start another run."
    for name, sha256 in kept.get("teachers", {}).items():
        if has.get("teachers", {}).get(name) != sha256:
            return f"the teacher of {name} has other weights than when it began. Put those back, or start another run."
    return ""
