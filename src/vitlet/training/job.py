"""What the loop needs to know of what it trains: a classifier, a detector, a segmenter.

`classifier.Prepared` is the one for classification and pre-training, `transfer.common.job.TransferJob` that for
detection and segmentation. The loop, its checkpoints, its processes and its signals are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import torch
from torch import nn

from vitlet.config import BaseConfig
from vitlet.objective import Objective
from vitlet.objective.schedules import Schedule
from vitlet.training.distributed import World


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
        """From the numbers of `to_dict`."""
        ...


class Job(Protocol):
    """Everything a run needs, checked, before anything is written."""

    @property
    def config(self) -> BaseConfig:
        """The settings, none left open."""
        ...

    @property
    def objective(self) -> Objective:
        """What is trained; called with a batch and the tasks' weights."""
        ...

    @property
    def model(self) -> nn.Module:
        """What is averaged, evaluated and exported: the network without the heads of tasks."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        ...

    @property
    def description(self) -> str:
        """The ``config.json`` beside exported weights."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences worth saying."""
        ...

    @property
    def classes(self) -> Sequence[str]:
        """Their names."""
        ...

    @property
    def images(self) -> int:
        """Number of training images."""
        ...

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """By split, what tells its choice of images from another; splits of which that is not known are left out."""
        ...

    @property
    def data_note(self) -> str:
        """What the data is, in a sentence."""
        ...

    @property
    def validates(self) -> bool:
        """Whether there are validation images."""
        ...

    @property
    def tests(self) -> bool:
        """Whether there are test images to be measured on at the end."""
        ...

    def inputs(self, batch: Any) -> tuple[Any, Any]:
        """A batch of the loader on the device, as the objective takes it: images, and what is known of them."""
        ...

    def example(self) -> tuple[Any, Any]:
        """The same of noise."""
        ...

    def learning_rate(self) -> Schedule:
        """By the epoch, which may be fractional."""
        ...

    def validate(self, world: World, between: Callable[[], None], epoch: float) -> dict[str, float]:
        """The numbers of the validation images; all processes call this, each has a share of the images."""
        ...

    def test(self, world: World) -> Measured:
        """The same of the test images."""
        ...


def learned_from(job: Job) -> str:
    """In words; a folder that was read in another way than it was meant shows here."""
    classes = [name if name.isprintable() else repr(name) for name in job.classes]
    shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
    return f"{job.images:,} training images" + (f" of {len(classes)} classes ({shown})" if classes else "")


def data_of(job: Job) -> dict[str, Any]:
    """What a checkpoint keeps of the data, to know it again."""
    return {"images": job.images, "classes": list(job.classes), "fingerprints": dict(job.fingerprints)}


def other_data(kept: Mapping[str, Any], job: Job) -> str:
    """How a job's data differs from what was kept of it, in a sentence; nothing where it does not."""
    has = data_of(job)
    for key, name in (("classes", "classes"), ("images", "training images")):
        if kept[key] != has[key]:
            return f"its {name} were {kept[key]}, the data now has {has[key]}."
    for split, print_then in kept.get("fingerprints", {}).items():  # older checkpoints have none
        if has["fingerprints"].get(split) != print_then:
            return (
                f"its {split} images are not those that it began with. Files were added, removed or renamed; undo that,"
                " or start another run."
            )
    return ""
