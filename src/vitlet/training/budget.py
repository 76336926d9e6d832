"""Training with a time budget: a speed test of a few seconds, and a plan in steps that follows from it.

The plan is made once, before anything is written. From then on the number of epochs is fixed and part of the settings:
resumed, or repeated from its file, the run trains the same steps. Only if the machine turns out slower or faster than
in the test does the loop plan again, see `Clock`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitlet.config import BaseConfig, RunConfig
from vitlet.errors import TooShortError
from vitlet.training.clock import Sizes, Stopwatch, budget_seconds
from vitlet.training.distributed import World
from vitlet.training.job import Job
from vitlet.training.jobs import ImageJob
from vitlet.training.optim import make_autocast, make_optimizer
from vitlet.training.progress import duration
from vitlet.training.run_folder import read_config
from vitlet.training.state import State
from vitlet.training.teachers import teacher_share

VALIDATION_SHARE = 0.05
"""Largest share of a budget for validation, without the final one."""
RESERVE = 0.01
"""Share of a budget reserved for checkpoints, logs and the result."""
OFF_TIME = 0.01
"""Expected deviation from the end of the budget, as a share of it, above which a run is planned again."""
PARTS = 50
"""Minimum number of epochs of a budget, if there are as many steps: a run can only end after an epoch."""
UNUSED = 0.005
"""Share of the steps that may be left out so that epochs are about as long as a pass over the images."""
SETTLED = 0.1
"""Share of a run after which its pace is known."""
TEST_SHARE = 0.04
"""Approximate largest share of a budget for the speed test."""


PLANNED = (
    *("amp", "channels_last", "epochs", "epoch_repeats", "planned_steps", "val_interval", "checkpoint_epochs"),
    *("mixup_off_epoch", "warmup_epochs"),
)
"""The settings that a speed test finds, or that follow from what it finds."""


@dataclass(frozen=True)
class Speed:
    """Result of the speed test.

    Attributes:
        settings: precision and memory layout, the fastest of those tried.
        steps: seconds of a training step by image size.
        validation: seconds of a validation.
        test: seconds of the test images.
    """

    settings: dict[str, bool]
    steps: dict[tuple[int, int], float]
    validation: float
    test: float


def planned_job(job: ImageJob, world: World, watch: Stopwatch) -> tuple[ImageJob, str]:
    """The job with precision, memory layout and number of epochs from a speed test; and a line that reports them."""
    config = job.config
    if not (job.asked.is_open or job.asked.autotune):
        return job, ""
    began = time.monotonic()
    speed = world.by_first(lambda: measure_speed(job, watch))
    took = f"; the test took {time.monotonic() - began:.1f} s"
    settings: dict[str, Any] = dict(speed.settings)
    line = f"{'bfloat16' if settings['amp'] else 'float32'}{', channels_last' * settings['channels_last']}"
    if job.asked.is_open:
        used = world.by_first(lambda: watch.used(config))
        settings |= plan_steps(job, world, speed, used)
        line = f"{duration(budget_seconds(config) or 0)} are {settings['planned_steps']:,} steps, in {line}"
    else:
        seconds, intervals = expected_seconds(job, world, speed)
        settings |= intervals
        line = f"about {duration(seconds)} from here, in {line}"
    planned = job.rebuilt(**settings, autotune=False)
    planned.speed = speed
    return planned, f"speed test: {line}{took}"


def left_open(job: Job) -> tuple[str, ...]:
    """The settings of a new run that its speed test will find."""
    return (*PLANNED, "autotune") if isinstance(job, ImageJob) and (job.asked.is_open or job.asked.autotune) else ()


def planned_settings(run: Path) -> dict[str, Any]:
    """Settings that the speed test of a run had found, read from the run's file."""
    stored = read_config(run)
    return {key: getattr(stored, key) for key in (*PLANNED, "autotune")}


def plan_steps(job: ImageJob, world: World, speed: Speed, used: float) -> dict[str, Any]:
    """Epochs, steps and validations that fit into what is left of the budget."""
    config, total = job.config, budget_seconds(job.config)
    assert total is not None
    order, _ = job.batches(world)
    whole_pass = order.steps  # of one pass: repeats are not asked for beside a budget
    step = mean_cost(speed.steps, job.sizes)
    ends = speed.validation + (speed.test if config.cpu_minutes is None else 0.0)
    left = total * (1 - RESERVE - teacher_share(job.objective, config)) - used - ends
    steps = int((1 - (VALIDATION_SHARE if speed.validation else 0)) * left / step)
    if steps < whole_pass:
        least = math.ceil((used + ends + whole_pass * step) / 60 * 1.1 * 10) / 10
        what = "cpu_minutes" if config.cpu_minutes is not None else "minutes"
        raise TooShortError(
            f"{what} is {total / 60:g}, but one pass over {job.images:,} images takes about"
            f" {duration(whole_pass * step)} here, and {duration(used + ends)} go to start and evaluation. Needed:"
            f" --{what.replace('_', '-')} {least:.1f} or more, a smaller --img-size or model, or --fraction."
        )
    epochs = max(round(steps / whole_pass), min(steps, PARTS))
    validations = max(1, min(epochs, int(VALIDATION_SHARE * left / speed.validation))) if speed.validation else 1
    interval = job.asked.val_interval or -(-epochs // validations)
    steps = int((left - ((epochs - 1) // interval) * speed.validation) / step)  # the last one is among the ends
    epochs = equal_epochs(max(1, steps), epochs)
    return {
        "epochs": epochs,
        "epoch_repeats": (steps // epochs) / whole_pass,
        "planned_steps": epochs * (steps // epochs),
        "val_interval": interval,
        "checkpoint_epochs": max(config.checkpoint_epochs or 1, epochs // 10),
    }


def equal_epochs(steps: int, about: int) -> int:
    """Number of epochs of equal length, near ``about``, that use nearly all of these steps."""

    def unused(count: int) -> float:
        return max(UNUSED, (steps % count) / steps)

    near = range(max(1, about // 2), min(steps, 2 * about) + 1)
    return min(near, key=lambda count: (unused(count), abs(count - about)))


def expected_seconds(job: ImageJob, world: World, speed: Speed) -> tuple[float, dict[str, int]]:
    """Expected seconds of a run; and validation and checkpoint intervals that take little of it."""
    config, asked = job.config, job.asked
    order, _ = job.batches(world)
    epoch = order.steps * mean_cost(speed.steps, job.sizes)
    interval = asked.val_interval or min(config.epochs, max(1, math.ceil(speed.validation / VALIDATION_SHARE / epoch)))
    validations = -(-config.last_epoch // interval)
    saved = RunConfig().checkpoint_epochs  # where the user asked for another interval, that is kept
    every = max(1, config.epochs // 10) if asked.checkpoint_epochs == saved else None
    intervals = {"val_interval": interval} | ({"checkpoint_epochs": every} if every else {})
    return config.last_epoch * epoch + validations * speed.validation + speed.test, intervals


def mean_cost(costs: dict[tuple[int, int], float], sizes: Sizes | None) -> float:
    """Mean seconds of a step over a run, with progressive resizing taken into account."""
    if sizes is None:
        return next(iter(costs.values()))
    return sum(share * costs[size] for size, share in sizes.shares().items())


def last_epoch_in_time(state: State, config: BaseConfig, sizes: Sizes | None, watch: Stopwatch) -> float:
    """Epoch, possibly fractional, after which a run with a budget ends: as planned unless steps take longer or less."""
    clock, total = state.clock, budget_seconds(config)
    done = clock.planned(state.epoch) / clock.epochs
    if total is None or not clock.costs or not SETTLED <= done < 1:
        return clock.last
    ends = clock.validation + (clock.test if config.cpu_minutes is None else 0.0)
    left = total * (1 - RESERVE) - clock.seconds - watch.used(config) - ends
    costs = (
        [clock.costs.get(sizes((done + (1 - done) * (part + 0.5) / 200) * clock.epochs), 0.0) for part in range(200)]
        if sizes
        else []
    )
    cost = clock.pace * (sum(costs) / len(costs) if costs else next(iter(clock.costs.values())))
    epoch = cost * state.steps + clock.validation / (config.val_interval or 1)
    if abs((clock.last - state.epoch) * epoch - left) <= OFF_TIME * total:
        return clock.last
    return state.epoch + max(1, round(left / epoch * state.steps)) / state.steps


def count_time(
    state: State,
    size: tuple[int, int],
    size_at: Callable[[float], tuple[int, int]] | None,
    first: int,
    seconds: float,
    budget: float | None,
) -> None:
    """Compare the time of an epoch's steps with what the speed test promised.

    Args:
        state: at the end of the epoch.
        size: of the images.
        size_at: their size by the epoch, where they grow.
        first: the step from which on the time was taken.
        seconds: that these steps took.
        budget: of the run, in seconds, if it has one.
    """
    clock, steps = state.clock, state.steps
    if clock.costs and budget is not None:
        sizes = (size_at(state.epoch + step / steps) if size_at else size for step in range(first, state.step))
        clock.count_steps(sum(clock.costs.get(each, 0.0) for each in sizes), seconds, budget)


def measure_speed(job: ImageJob, watch: Stopwatch | None = None) -> Speed:
    """Time a few steps in each precision and memory layout, and of each image size in the fastest one."""
    asked, size = job.asked, job.config.img_size
    assert size is not None
    limit, watch = TEST_SHARE * (budget_seconds(asked) or 600.0), (watch or Stopwatch()).restarted()
    best: tuple[float, TrialSteps] | None = None
    for layout, amp in _variants(job):
        if best is not None and watch.seconds(asked) > limit / 2:
            break  # a slow network: what was found so far has to do
        settings = {"pretrained": False, "init": None, "freeze": False}
        trial = TrialSteps(job.rebuilt(channels_last=layout, amp=amp, **settings), watch)
        seconds = trial.step_seconds(size)
        if best is None or seconds < best[0]:
            best = (seconds, trial)
    assert best is not None
    seconds, trial = best
    steps = {size: seconds}
    for other in job.sizes.sizes if job.sizes else ():
        if other != size and watch.seconds(asked) > limit:
            steps[other] = seconds * math.prod(other) / math.prod(size)  # about, and the run is planned again
        elif other != size:
            steps[other] = trial.step_seconds(other)
    chosen = {"amp": bool(trial.job.config.amp), "channels_last": bool(trial.job.config.channels_last)}
    return Speed(chosen, steps, trial.evaluation_seconds("val"), trial.evaluation_seconds("test"))


def _variants(job: ImageJob) -> Iterator[tuple[bool, bool]]:
    """Memory layouts and precisions to try; what the user gave is kept."""
    asked = job.asked
    if not asked.autotune:
        yield bool(asked.channels_last), bool(asked.amp)
        return
    layouts = [True, False] if asked.channels_last is None else [asked.channels_last]
    precisions = [True, False] if asked.amp is None else [asked.amp]
    for layout in layouts:
        for amp in precisions:
            yield layout, amp


class TrialSteps:
    """Training steps of a copy of the job that is discarded afterwards."""

    def __init__(self, job: ImageJob, watch: Stopwatch) -> None:
        self.job, self.world, self.watch = job, World(), watch
        self.objective = job.objective.train()
        self.optimizer = make_optimizer(self.objective, job.config)
        self.autocast = make_autocast(job.config, job.device)
        self.order, self.loader = job.batches(self.world)

    def step_seconds(self, size: tuple[int, int], at_least: float = 0.4) -> float:
        """Seconds of a training step on images of this size, loading included; the median of a few."""
        if self.job.sizes is not None:
            self.order.size_at = lambda epoch: size  # type: ignore[attr-defined]
        times: list[float] = []
        batches = iter(self.loader)
        for number in range(12):
            began = self._now()
            parts = list(islice(batches, len(self.order.mine)))
            if len(parts) < len(self.order.mine):  # few images: from the start again
                batches = iter(self.loader)
                parts = list(islice(batches, len(self.order.mine)))
            self._step(parts)
            if number:  # the first one allocates
                times.append(self._now() - began)
            if (sum(times) > at_least and len(times) >= 3) or sum(times) > 4 * at_least:
                break
        return sorted(times)[len(times) // 2]

    def _now(self) -> float:
        """Seconds on the budget's clock."""
        return self.watch.seconds(self.job.config)

    def _step(self, parts: list[Any]) -> None:
        self.optimizer.zero_grad()
        for part in parts:
            images, labels = self.job.inputs(part, 0.0)
            with self.autocast():
                outcome = self.objective(images, labels, self.objective.weights(0.5))
            outcome.loss.backward()
        nn.utils.clip_grad_norm_(self.objective.parameters(), 1e9)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.optimizer.step()
        _wait(self.job.device)

    def evaluation_seconds(self, split: str) -> float:
        """Seconds of an evaluation on a split, by one batch of it."""
        images = getattr(self.job.dataset, split)
        if images is None or not self.job.labelled or (split == "test" and self.job.config.cpu_minutes is not None):
            return 0.0
        loader = self.job.evaluation_loader(images, self.world)
        self.objective.eval()
        batches = iter(loader)
        with torch.inference_mode(), self.autocast():
            for _ in range(2):  # the first one allocates
                began = self._now()
                batch = (next(batches, None) or next(iter(loader)))[0]
                self.job.classify(self.job.on_device(batch))  # type: ignore[attr-defined]
                _wait(self.job.device)
                seconds = self._now() - began
        self.objective.train()
        return seconds * len(images) / len(batch)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
