"""Predictions of a run's model on the run's images, and explanations of a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlet.analysis.explain import Explainer, Explanation
from vitlet.analysis.report.record import RunRecord
from vitlet.data.images import Dataset, ImageSet
from vitlet.errors import VitletError
from vitlet.models.factory import patch_size
from vitlet.pictures import spaced
from vitlet.training.jobs import job_class
from vitlet.values import ImageSize

EXPLAINED = 8
"""Images that are explained, evenly spaced; attention distances are means over them."""

BATCH = 64


@dataclass(frozen=True)
class Predictions:
    """Probabilities on one part of the data.

    Attributes:
        images: the part.
        split: its name.
        indices: indices of the images that were looked at.
        labels: ``(n,)``, their classes.
        probabilities: ``(n, classes)``.
    """

    images: ImageSet
    split: str
    indices: list[int]
    labels: Any
    probabilities: Any

    @property
    def guesses(self) -> Any:
        """The most likely class of each image."""
        return self.probabilities.argmax(1)

    @property
    def confidence(self) -> Any:
        """Probability of the predicted class."""
        return self.probabilities.max(1)

    @property
    def right(self) -> Any:
        """Whether it is the class."""
        return self.guesses == self.labels

    def keys(self) -> list[str]:
        """Keys of the images within their source."""
        return [self.images.key(index) for index in self.indices]


@dataclass
class Examined:
    """Predictions and explanations of a run; ``left_out`` lists what is missing, with the reason.

    ``colour`` is the number of its colour in the report, ``patch`` the height and width of the model's patches.
    """

    record: RunRecord
    colour: int
    parameters: int | None = None
    patch: ImageSize | None = None
    dataset: Dataset | None = None
    predictions: Predictions | None = None
    explanations: list[Explanation] = field(default_factory=list)
    truths: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the run in the report."""
        return self.record.name


def examine(record: RunRecord, colour: int, *, most: int, device: str) -> Examined:
    """Load the model and the data of a run, as far as they are there.

    Args:
        record: the run.
        colour: the number of its colour in the report.
        most: images to predict at most, evenly spaced.
        device: to run the model on.
    """
    found = Examined(record, colour)
    explainer = None
    try:
        explainer = Explainer.load(record.path, device=device)
        found.parameters = sum(parameter.numel() for parameter in explainer.model.parameters())
        found.patch = patch_size(explainer.model)
    except VitletError as problem:
        found.left_out.append(str(problem))
    try:
        found.dataset = _dataset(record)
    except VitletError as problem:
        found.left_out.append(f"The data of this run could not be read, so there are no predictions: {problem}")
    if explainer is None or found.dataset is None:
        return found
    split, images = _part(record, found.dataset)
    try:
        if explainer.temperature != 1.0:
            found.left_out.append(
                f"Probabilities are calibrated: logits are divided by {explainer.temperature:.3f} (calibration.json)."
            )
        if explainer.classes:
            found.predictions = _predict(explainer, images, split, most, found.left_out)
        _explain(explainer, images, found)
    except VitletError as problem:
        found.left_out.append(f"The {split} images could not be predicted: {problem}")
    found.left_out += _doubts(record, found.predictions)
    return found


def _dataset(record: RunRecord) -> Dataset:
    """The data as the run saw it; nothing is downloaded."""
    config = replace(record.config, download=False)
    dataset = job_class(config).load_data(config)
    if record.classes and tuple(record.classes) != tuple(dataset.classes):
        raise VitletError(
            f"{config.data} now has the classes {_few(dataset.classes)}, the run was trained on {_few(record.classes)}."
        )
    return dataset


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _part(record: RunRecord, dataset: Dataset) -> tuple[str, ImageSet]:
    """Test images of a finished run; validation images while choices are still open; else the training images."""
    splits = dataset.splits()
    order = ("test", "val", "train") if record.state == "finished" else ("val", "test", "train")
    return next((name, splits[name]) for name in order if name in splits)


@torch.inference_mode()
def _predict(explainer: Explainer, images: ImageSet, split: str, most: int, notes: list[str]) -> Predictions:
    chosen = spaced(len(images), most)
    if len(chosen) < len(images):
        notes.append(f"Predictions are on {len(chosen):,} of the {len(images):,} {split} images, evenly spaced.")
    kept: list[int] = []
    parts: list[Tensor] = []
    waiting: list[Tensor] = []
    unreadable = ""
    device = next(explainer.model.parameters()).device
    for number, index in enumerate(chosen, start=1):
        try:
            waiting.append(explainer.preprocess(images.image(index, explainer.in_chans)))
            kept.append(index)
        except VitletError as problem:
            unreadable = unreadable or str(problem)
        if waiting and (len(waiting) == BATCH or number == len(chosen)):
            parts.append(explainer.probabilities(explainer.model(torch.stack(waiting).to(device))).cpu())
            waiting = []
    if not parts:
        raise VitletError(f"none of them could be read; the first: {unreadable}")
    if unreadable:
        notes.append(f"{len(chosen) - len(kept)} images could not be read and were left out; the first: {unreadable}")
    labels = np.asarray(images.labels)[kept]
    return Predictions(images, split, kept, labels, torch.cat(parts).numpy())


def _explain(explainer: Explainer, images: ImageSet, found: Examined) -> None:
    for index in spaced(len(images), EXPLAINED):
        try:
            found.explanations.append(explainer(images.image(index, explainer.in_chans)))
        except VitletError:  # counted among the unreadable ones
            continue
        found.truths.append(explainer.classes[images.labels[index]] if explainer.classes else "")


def _doubts(record: RunRecord, predictions: Predictions | None) -> list[str]:
    """A warning if the data gives other metrics than those recorded by the run."""
    recorded = record.result.get(predictions.split) if predictions is not None else None
    if predictions is None or not recorded or len(predictions.indices) != len(predictions.images):
        return []
    top1 = 100 * float(predictions.right.mean())
    if int(recorded["count"]) == len(predictions.indices) and abs(recorded["top1"] - top1) < 0.5:
        return []
    return [
        f"The {predictions.split} images now give {top1:.2f} % on {len(predictions.indices)} images, the run recorded"
        f" {recorded['top1']:.2f} % on {int(recorded['count'])}: the data or the weights have changed since."
    ]
