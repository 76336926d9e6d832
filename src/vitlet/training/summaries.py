"""Summary lines of a run: its settings at the start, and an assessment of its accuracy at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from vitlet.config import RunConfig
from vitlet.data.images import Dataset
from vitlet.training.evaluate import Scores
from vitlet.training.job import Batches, Job, learned_from

FEWEST_PER_CLASS, USUAL_CLASSES = 5, 10
"""Training images of a class, below which a run says how few there are; and classes of images without labels."""

GOOD = 95.0
"""Accuracy from which on nothing further is advised."""

FEWEST_PER_CLASS, USUAL_CLASSES = 5, 10
"""Training images of a class, below which a run says how few there are; and classes of images without labels."""


def opening_lines(job: Job, order: Batches, processes: int) -> list[str]:
    """Lines on the choice, data, model, epochs and tasks of a run."""
    config, size = job.config, order.batch_size
    held = ", ".join(f"{count:,} {name}" for name, count in job.held_out.items())
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    channels = "" if job.channels == 3 else f" in {job.channels} channel{'s' * (job.channels != 1)}"
    pixels = f", images of {job.pixels[0]} x {job.pixels[1]} px{channels}" if job.pixels else ""
    parts = f"{processes} x {config.grad_accum_steps} x {size // order.parts}"
    shared = f" (processes x micro-batches x images: {parts})" if order.parts > 1 else ""
    tasks = ", ".join(f"{name} (weight {task.weight:g})" for name, task in config.tasks.items()) or "none"
    return [
        *job.announced,
        learned_from(job) + (f", {held} images" if held else ""),
        f"{config.network} with {parameters / 1e6:.{2 if parameters < 1e6 else 1}f} M parameters{pixels}",
        f"{config.epochs} epoch{'s' * (config.epochs != 1)} of {order.steps} steps, {size} images per step{shared},"
        f" {config.learning_rate_rule}",
        f"tasks: {job.chosen_tasks or tasks}",
    ]


def few_images(dataset: Dataset) -> tuple[str, ...]:
    """Note on too few images; images without labels count as `USUAL_CLASSES` classes."""
    images, classes = len(dataset.train), len(dataset.classes) or USUAL_CLASSES
    if images >= FEWEST_PER_CLASS * classes:
        return ()
    of_classes = f" of {classes} classes: fewer than {FEWEST_PER_CLASS} per class" * bool(dataset.classes)
    return (f"only {images} training images{of_classes}. Check the data, --fraction and --per-class.",)


def accuracy_verdict(
    scores: Scores, labels: Sequence[int], config: RunConfig, *, best_epoch: int, epochs: int, images: int
) -> str:
    """Comparison of an accuracy with chance, and what to try next.

    Args:
        scores: scores of the test images, or else of the validation images.
        labels: labels of these images.
        config: settings of the run.
        best_epoch: best epoch, counted from 1.
        epochs: that were trained.
        images: that were trained on.
    """
    chance = max(Counter(labels).values()) / max(1, len(labels))
    noise = 200 * math.sqrt(chance * (1 - chance) / max(1, len(labels)))  # two standard errors, in points
    above = scores.top1 - 100 * chance
    found = f"accuracy {scores.top1:.1f} %, chance (always the most frequent class) {100 * chance:.1f} %: "
    found += f"{above:+.1f} points" if above > noise else f"not above chance by more than noise (± {noise:.1f} points)"
    if scores.top1 >= GOOD:
        return f"{found}."
    advice = []
    if config.freeze:
        advice.append("training the whole network (without --freeze)")
    if best_epoch > 0.9 * epochs and config.head != "logistic":
        advice.append(f"longer (--epochs {2 * config.epochs}), as the last epochs were the best")
    if not (config.init or config.pretrained):
        advice.append("trained weights (--pretrained, or vitlet pretrain and --init RUN)")
    advice.append(f"more labels than {images:,}")
    if images >= 10_000:
        advice.append("a larger model (vitlet models)")
    return f"{found}. To try next: {'; '.join(advice)}."
