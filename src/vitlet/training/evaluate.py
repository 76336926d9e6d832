"""Evaluation of a model on labelled images."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from vitlet.objective import Outcome
from vitlet.training.distributed import World


@dataclass(frozen=True)
class Scores:
    """Accuracies in percent and mean cross-entropy, exact over the set.

    Attributes:
        count: images.
        top1: share whose first guess is right.
        top5: share with the class among the first five guesses.
        balanced: mean of the classes' own accuracies; classes without images do not count.
        loss: mean cross-entropy.
        per_class: accuracy of each class, None where it has no image.
    """

    count: int
    top1: float
    top5: float
    balanced: float
    loss: float
    per_class: tuple[float | None, ...] = ()

    def to_dict(self) -> dict[str, float]:
        """The plain numbers."""
        return {name: getattr(self, name) for name in ("count", "top1", "top5", "balanced", "loss")}

    @classmethod
    def from_dict(cls, numbers: Mapping[str, float]) -> Scores:
        """Create from the values of `to_dict`."""
        top1, top5, balanced, loss = (numbers[name] for name in ("top1", "top5", "balanced", "loss"))
        return Scores(int(numbers["count"]), top1, top5, balanced, loss)


def averaged_over(classify: Callable[[Tensor], Tensor], images: Tensor, tta: str) -> Tensor:
    """Logits of images; with ``tta`` flip, of the mean probabilities of each image and its mirror image."""
    if tta != "flip":
        return classify(images)
    plain, mirrored = (classify(view).float().log_softmax(1) for view in (images, images.flip(3)))
    return torch.logaddexp(plain, mirrored) - math.log(2)


def nothing() -> None:
    """Callback between batches that does nothing."""


@torch.no_grad()  # not inference_mode: sharded weights are gathered into buffers that training then writes to
def evaluate(
    classify: Callable[[Tensor], Tensor],
    loader: DataLoader[Any],
    *,
    classes: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
    world: World = World(),
    between: Callable[[], None] = nothing,
) -> Scores:
    """Accuracies and loss of a model, exact over all images that the processes' loaders hold together.

    Args:
        classify: gives logits ``(B, classes)``; a model in evaluation mode.
        loader: this process's batches.
        classes: number of classes.
        device: device of the model.
        autocast: precision of the model.
        world: the processes that evaluate together; each calls this.
        between: called before every batch, by all processes equally often.
    """
    sums = torch.zeros(2 + 2 * classes, dtype=torch.float64)  # loss, top 5, then right and seen of each class
    for images, labels, counts in _rounds(loader, world, between):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        with autocast():
            logits = classify(images).float()
        if not counts:
            continue
        ranked = (logits.topk(min(5, logits.shape[1])).indices == labels[:, None]).cpu()
        sums[0] += float(F.cross_entropy(logits, labels, reduction="sum"))
        sums[1] += int(ranked.sum())
        labels = labels.cpu()
        sums.index_add_(0, 2 + labels, ranked[:, 0].double())
        sums.index_add_(0, 2 + classes + labels, torch.ones(len(labels), dtype=torch.float64))
    found: list[float] = world.sums(sums).tolist()
    loss, top5, right, seen = found[0], found[1], found[2 : 2 + classes], found[2 + classes :]
    count = int(sum(seen))
    per_class = tuple(100 * hit / of if of else None for hit, of in zip(right, seen, strict=True))
    known = [accuracy for accuracy in per_class if accuracy is not None]
    return Scores(count, 100 * sum(right) / count, 100 * top5 / count, sum(known) / len(known), loss / count, per_class)


def score_answers(probabilities: Tensor, labels: Tensor) -> Scores:
    """Scores of saved predictions: probabilities ``(images, classes)`` and labels ``(images,)``."""
    answers: Any = [(probabilities.clamp(min=1e-12).log(), labels)]  # a loader of one batch
    device, classes = probabilities.device, probabilities.shape[1]
    return evaluate(lambda logits: logits, answers, classes=classes, device=device, autocast=nullcontext)


@torch.no_grad()
def evaluate_tasks(
    objective: Callable[..., Outcome],
    loader: DataLoader[Any],
    *,
    weights: Mapping[str, float],
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
    world: World = World(),
    between: Callable[[], None] = nothing,
) -> dict[str, float]:
    """Mean loss and metrics of the tasks alone; what they sample is the same every time."""
    sums: dict[str, float] = defaultdict(float)
    count = 0
    for number, (images, _, counts) in enumerate(_rounds(loader, world, between)):
        torch.manual_seed(number * world.size + world.rank)
        with autocast():
            outcome = objective(images.to(device, non_blocking=True), None, weights)
        if not counts:
            continue
        found = {"loss": outcome.loss, **outcome.parts, **outcome.metrics}
        count += len(images)
        for name, value in found.items():
            sums[name] += float(value) * len(images)
    names = sorted(set().union(*world.gather(set(sums))))
    totals = world.sums(torch.tensor([count, *(sums[name] for name in names)], dtype=torch.float64)).tolist()
    return {name: total / totals[0] for name, total in zip(names, totals[1:], strict=True)}


def _rounds(
    loader: DataLoader[Any], world: World, between: Callable[[], None]
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """This process's batches, with ``between`` before each, and whether they count.

    A process that has fewer batches than another gets one that does not: a sharded network runs in all at once.
    """
    batches = iter(loader)
    for _ in range(int(world.largest([len(loader)])[0])):
        between()
        batch = next(batches, None)
        if batch is not None:
            yield *batch, True
        else:
            yield *loader.dataset.__getitems__([0]), False  # type: ignore[attr-defined]
