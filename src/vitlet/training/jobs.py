"""Which job a run of images is: the one place where the setting ``pretrain`` decides."""

from __future__ import annotations

from vitlet.config import RunConfig
from vitlet.data.images import Dataset
from vitlet.training.classifier import ClassifierJob
from vitlet.training.image_job import ImageJob
from vitlet.training.pretrain import PretrainJob


def job_class(config: RunConfig) -> type[ImageJob]:
    """`PretrainJob` for runs without labels, else `ClassifierJob`."""
    return PretrainJob if config.pretrain else ClassifierJob


def build_job(config: RunConfig, dataset: Dataset | None = None) -> ImageJob:
    """The job of these settings, ready to be trained."""
    return job_class(config).build(config, dataset)
