"""Which runs a learning curve is made of, and how long each may be.

Every size is trained as `vitlet train` would train so many images: with its epochs, which fall as the images grow,
times one factor that is the same for all sizes and makes everything fit into the minutes. Equal time for each run would
train small subsets to their end and cut large ones short; the curve would then show time instead of images.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitlet.config import RunConfig
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.shards import ShardStream
from vitlet.errors import VitletError
from vitlet.experiments.learn_curve.record import PlannedRun
from vitlet.experiments.portfolio import SIZES
from vitlet.models.small_list import small_names
from vitlet.pictures import spaced
from vitlet.training.budget import Speed, mean_cost
from vitlet.training.choice import Choice, completed
from vitlet.training.jobs import ImageJob
from vitlet.training.progress import duration

SUBSETS = 4
LEAST_SHARE = 0.1
"""Of the usual epochs: below, a curve shows short training rather than few images."""

LEAST_EPOCHS = 2
LEAST_IN_CLASS = 8
"""Training images of the smallest class, 2 of which are in the smallest subset."""

LARGER_COST = 2.5
"""Times the seconds of a run that one with the next larger model is planned to take."""

MORE_EPOCHS = 2
EPOCH_SECONDS = 0.1
"""Of an epoch beside its steps: numbers and weights are written."""

START_SECONDS = 1.0
READ_IMAGES = 32
"""Images that are read to see how long that takes."""


@dataclass(frozen=True)
class Length:
    """Epochs and images per step for a number of images."""

    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Costs:
    """Seconds of a training image, of reading one, and of what each run needs beside: start and evaluation."""

    image: float
    reading: float
    each: float

    def of(self, images: int, epochs: float, factor: float = 1.0) -> float:
        """Seconds of a run; a larger model costs ``factor`` times as much."""
        return epochs * (factor * images * self.image + EPOCH_SECONDS) + images * self.reading + self.each


def subset_shares(images: ImageSet, classes: tuple[str, ...]) -> tuple[float, ...]:
    """Four shares up to all images, each about twice the one before; closer together where classes are small.

    Refuses data whose classes are too small to be cut, and streams, which cannot be.
    """
    if isinstance(images, ShardStream):
        raise VitletError("learn-curve picks subsets of the images, which a stream of shards does not allow.")
    counts = Counter(images.labels)
    if len(counts) < 2:
        named = classes[next(iter(counts))] if counts else "none"
        raise VitletError(f"found training images of one class ({named}); a classifier needs two or more.")
    label, fewest = min(counts.items(), key=lambda each: each[1])
    if fewest < LEAST_IN_CLASS:
        raise VitletError(
            f"class {classes[label]!r} has {fewest} training images; four nested subsets need {LEAST_IN_CLASS} or more"
            " of each class. Add images, or leave that class out with --classes."
        )
    first = max(2.0 ** (1 - SUBSETS), 2 / fewest)
    return tuple(first ** (1 - number / (SUBSETS - 1)) for number in range(SUBSETS))


def lengths(config: RunConfig, choice: Choice | None, given: Mapping[str, Any], images: int) -> Length:
    """Epochs that `vitlet train` chooses for this number of images; a model named by the user has the same for all."""
    if choice is None:
        return Length(config.epochs, config.batch_size)
    named = {key: value for key, value in given.items() if key != "minutes"}
    values = completed(choice.rule.settings, config, named, replace(choice.found, images=images))
    return Length(int(values.get("epochs", config.epochs)), int(values.get("batch_size", config.batch_size)))


def larger_model(name: str) -> str | None:
    """The next larger model of the library's families, such as resnet_m_for_64px for resnet_s_for_64px."""
    match = re.fullmatch(rf"(.+_)({'|'.join(SIZES)})(_for_\d+px)", name)
    if match is None or match[2] == SIZES[-1]:
        return None
    larger = f"{match[1]}{SIZES[SIZES.index(match[2]) + 1]}{match[3]}"
    return larger if larger in small_names() else None


def measured_costs(job: ImageJob, speed: Speed, dataset: Dataset) -> Costs:
    """Cost model from a speed test on all images, and from the time to read some of them."""
    sample, began = spaced(len(dataset.train), READ_IMAGES), time.monotonic()
    for index in sample:
        dataset.train.image(index, job.config.in_chans)
    reading = (time.monotonic() - began) / len(sample)
    held = sum(job.held_out.values())
    return Costs(
        image=mean_cost(speed.steps, job.sizes) / job.config.batch_size,
        reading=reading,
        each=START_SECONDS + held * reading + speed.validation + speed.test,
    )


def planned_runs(
    sizes: Mapping[float, int], usual: Mapping[float, Length], config: RunConfig, seeds: int, costs: Costs, share: float
) -> tuple[PlannedRun, ...]:
    """All runs at a share of the usual epochs: each seed's subsets, and after the first seed's the two others."""

    def run(kind: Any, part: float, seed: int, factor: float = 1.0, **changes: Any) -> PlannedRun:
        length = usual[part]
        epochs = max(min(LEAST_EPOCHS, length.epochs), round(share * length.epochs))
        epochs *= MORE_EPOCHS if kind == "epochs" else 1
        seconds = costs.of(sizes[part], epochs, factor)
        values: dict[str, Any] = {
            "epochs": epochs,
            "batch_size": length.batch_size,
            "model": config.model,
            "seconds": seconds,
        }
        return PlannedRun(kind, part, config.seed + seed, **values | changes)

    found = []
    for seed in range(seeds):
        found += [run("size", part, seed) for part in sizes]
        if seed == 0:
            found.append(run("epochs", 1.0, seed))
            if (larger := larger_model(config.model)) is not None:
                found.append(run("model", 1.0, seed, LARGER_COST, model=larger))
    return tuple(found)


def fit_into(
    minutes: float, used: float, config: RunConfig, images: int, plan: Callable[[float], tuple[PlannedRun, ...]]
) -> tuple[float, tuple[PlannedRun, ...]]:
    """The largest share of the usual epochs whose runs end in time, and these runs.

    Args:
        minutes: of the whole command.
        used: seconds of them that are gone.
        config: the settings.
        images: to train on.
        plan: makes the runs of a share.
    """
    left = 60 * minutes - used

    def seconds(share: float) -> float:
        return sum(run.seconds for run in plan(share))

    if (least := seconds(LEAST_SHARE)) > left:
        part = config.fraction * max(0.01, left / least)
        needed = 1.1 * (used + least) / 60
        raise VitletError(
            f"minutes is {minutes:g}, but runs on {SUBSETS} sizes up to {images:,} images take about"
            f" {duration(used + least)} here, even with {LEAST_SHARE:.0%} of the usual epochs. What fits: --minutes"
            f" {needed:.1f}, --fraction {part:.2f} (a curve of fewer images), or a smaller --img-size."
        )
    low, high = LEAST_SHARE, 1.0
    if seconds(high) <= left:
        return high, plan(high)
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) <= left else (low, middle)
    return low, plan(low)
