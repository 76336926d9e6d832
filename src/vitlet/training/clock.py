"""Progress of a run as the epoch that schedules see, and its adjustment to a time budget.

Learning rate, weights of tasks, image size and mixing are functions of the planned epoch, from 0 to ``epochs``. As long
as nothing goes wrong that is the epoch itself. A run with a budget on a machine that turned out slower or faster is
planned anew: from then on the planned epoch advances at another pace, and ends where it should.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitlet.config import BaseConfig
from vitlet.processes import STARTED

GROWTH = 0.7
"""Share of a run over which images grow from their first size to their last."""

MEMORY = 0.1
"""Share of a budget after which the pace hardly counts any more: a machine that others use is not always as fast."""


@dataclass
class Clock:
    """Maps trained epochs to planned epochs.

    Attributes:
        epochs: the length that schedules are made for.
        knots: (epoch, planned epoch) where the pace changes; the first is (0, 0).
        last: the epoch after which the run ends; of a run that was planned anew it may be a part of one.
        seconds: on the clock of the budget, before this process began.
        costs: seconds of a step by image size, as the speed test found them; empty without a budget.
        expected: seconds that the latest steps should have taken by that.
        trained: seconds that they took.
        validation: seconds of a validation, as the speed test found or as the last one took.
        test: seconds of the test, likewise.
    """

    epochs: int
    knots: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    last: float = 0.0
    seconds: float = 0.0
    costs: dict[tuple[int, int], float] = field(default_factory=dict)
    expected: float = 0.0
    trained: float = 0.0
    validation: float = 0.0
    test: float = 0.0

    def __post_init__(self) -> None:
        self.last = self.last or self.epochs

    def planned(self, epoch: float) -> float:
        """The planned epoch."""
        if len(self.knots) == 1:
            return epoch  # exactly: the same numbers as without a budget
        at, was = max((knot for knot in self.knots if knot[0] <= epoch), key=lambda knot: knot[0])
        following = min((knot for knot in self.knots if knot[0] > epoch), default=(self.last, float(self.epochs)))
        pace = (following[1] - was) / max(following[0] - at, 1e-9)
        return min(float(self.epochs), was + (epoch - at) * pace)

    def end_after(self, epoch: int, last: float) -> None:
        """From this epoch on, advance so that the run ends after epoch ``last``."""
        self.knots.append((float(epoch), self.planned(epoch)))
        self.last = last

    @property
    def pace(self) -> float:
        """Ratio of the step time to that of the speed test; early steps hardly count."""
        return self.trained / self.expected if self.expected else 1.0

    def expect(self, steps: Mapping[tuple[int, int], float], validation: float, test: float) -> None:
        """Take in what the speed test found: seconds of a step by image size, of a validation, and of the test."""
        self.costs, self.validation, self.test = dict(steps), validation, test

    def steps_in(self, epoch: int, steps: int) -> int:
        """How many of the steps of an epoch are trained: all of them, or a part of those of the last one."""
        return min(steps, max(1, round((self.last - epoch) * steps)))

    def count_steps(self, expected: float, trained: float, budget: float) -> None:
        """Take in the steps of an epoch: what they should have taken, what they took, and all seconds of the run."""
        remembered = math.exp(-trained / (MEMORY * budget))
        self.expected, self.trained = remembered * self.expected + expected, remembered * self.trained + trained

    def count_validation(self, seconds: float) -> None:
        """Take in how long a validation took: the test will differ from the speed test as much."""
        if self.validation:
            self.test *= seconds / self.validation
            self.validation = seconds

    def to_dict(self, used: float = 0.0) -> dict[str, Any]:
        """The clock as a dictionary for a checkpoint; ``used`` are the seconds of this process."""
        costs = [[*size, seconds] for size, seconds in self.costs.items()]
        knots = [list(knot) for knot in self.knots]
        paces = {name: getattr(self, name) for name in ("expected", "trained", "validation", "test")}
        return {"knots": knots, "last": self.last, "seconds": self.seconds + used, "costs": costs, **paces}

    def fill(self, found: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.knots = [(float(at), float(planned)) for at, planned in found["knots"]]
        self.last, self.seconds = float(found["last"]), float(found["seconds"])
        self.costs = {(int(height), int(width)): float(cost) for height, width, cost in found["costs"]}
        self.expected, self.trained = float(found["expected"]), float(found["trained"])
        # older checkpoints have neither
        self.validation, self.test = (float(found.get(name, 0.0)) for name in ("validation", "test"))


@dataclass(frozen=True)
class Sizes:
    """Image sizes of a run that grows its images, smallest first, in equal parts of the first 70 % of the run."""

    sizes: Sequence[tuple[int, int]]
    epochs: float

    def __call__(self, planned: float) -> tuple[int, int]:
        """The size at a planned epoch."""
        share = planned / (GROWTH * self.epochs) if self.epochs else 1.0
        return self.sizes[min(len(self.sizes) - 1, math.floor(share * (len(self.sizes) - 1) + 0.5))]

    def shares(self) -> dict[tuple[int, int], float]:
        """Fraction of the run that each image size has."""
        count, found = 1000, dict.fromkeys(self.sizes, 0.0)
        for number in range(count):
            found[self((number + 0.5) / count * self.epochs)] += 1 / count
        return found


def growing_sizes(first: tuple[int, int], last: tuple[int, int], stride: int = 8) -> list[tuple[int, int]]:
    """Image sizes from the first to the last in steps of ``stride`` pixels of the longer side."""
    steps = max(1, round(max(b - a for a, b in zip(first, last, strict=True)) / stride))
    found = []
    for number in range(steps + 1):
        sides = [a + (b - a) * number / steps for a, b in zip(first, last, strict=True)]
        found.append((round(sides[0] / stride) * stride, round(sides[1] / stride) * stride))
    return list(dict.fromkeys([first, *found[1:-1], last]))


class Time:
    """The clocks of this machine, in seconds."""

    def wall(self) -> float:
        """Wall-clock seconds since an arbitrary moment."""
        return time.monotonic()

    def cpu(self) -> float:
        """CPU time of this process."""
        return time.process_time()


@dataclass(frozen=True)
class Stopwatch:
    """Seconds since a moment: of the clock on the wall, or of the CPU time of this process.

    Attributes:
        wall: what the clock on the wall showed at that moment.
        cpu: the CPU time at that moment.
        time: where both are read; tests have a time of their own.
    """

    wall: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)
    time: Time = field(default_factory=Time)

    @staticmethod
    def of_process() -> Stopwatch:
        """Since this process began, its imports included."""
        return Stopwatch(STARTED, 0.0)

    def restarted(self) -> Stopwatch:
        """Since now, by the same clocks."""
        return Stopwatch(self.time.wall(), self.time.cpu(), self.time)

    def used(self, config: BaseConfig) -> float:
        """Seconds by the clock that the run's budget is meant in; 0 for a run without a budget."""
        return self.seconds(config) if budget_seconds(config) is not None else 0.0

    def seconds(self, config: BaseConfig) -> float:
        """The same, by the clock on the wall where there is no budget."""
        return self.time.cpu() - self.cpu if config.cpu_minutes is not None else self.time.wall() - self.wall


def budget_seconds(config: BaseConfig) -> float | None:
    """The budget of a run, if it has one."""
    minutes = config.minutes if config.minutes is not None else config.cpu_minutes
    return None if minutes is None else 60 * minutes
