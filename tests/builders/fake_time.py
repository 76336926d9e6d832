"""A clock that moves only when the parts of a run are charged for: the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from vitlet.inference.predict import Predictor
from vitlet.training import finish, inputs, jobs
from vitlet.training.clock import Stopwatch, Time
from vitlet.training.jobs import ClassifierJob
from vitlet.training.saver import Saver

STEP_SIDE = 32
"""Pixels a side of the images that a step has its full price for; smaller ones cost less by their area."""


class FakeTime(Time):
    """Seconds that others charge.

    Args:
        slower: how many times as long everything takes, by the moment.
        began: seconds that imports have taken before anything was asked.
    """

    def __init__(self, slower: Callable[[float], float] = lambda now: 1.0, *, began: float = 5.0) -> None:
        self.now, self.slower = began, slower

    def wall(self) -> float:
        return self.now

    def cpu(self) -> float:
        return self.now

    def watch(self) -> Stopwatch:
        """From the beginning of the process."""
        return Stopwatch(0.0, 0.0, self)

    def charge(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds * self.slower(self.now)

    def charged(self, function: Any, seconds: float | Callable[..., float]) -> Any:
        """The function, which takes so many seconds from now on."""

        @wraps(function)
        def called(*words: Any, **named: Any) -> Any:
            self.charge(seconds(*words) if callable(seconds) else seconds)
            return function(*words, **named)

        return called


def charge_for_everything(time: FakeTime, monkeypatch: pytest.MonkeyPatch, *, step: float, image: float) -> None:
    """Let each part of a run take time: a step, an image of an evaluation, and so much for each of the others."""

    def step_seconds(job: Any, batch: Any, epoch: float) -> float:
        return step * (batch[0].shape[-1] / STEP_SIDE) ** 2

    def charge(place: Any, name: str, seconds: Any) -> None:
        monkeypatch.setattr(place, name, time.charged(getattr(place, name), seconds))

    charge(ClassifierJob, "inputs", step_seconds)
    charge(ClassifierJob, "classify", lambda job, images: image * len(images))
    charge(Predictor, "_classify", lambda predictor, images: 2 * image * len(images))
    charge(inputs, "decode_splits", 3.0)
    charge(jobs, "build_backbone", 0.05)
    charge(Saver, "_write_weights", 0.1)
    charge(Saver, "save", 0.1)
    charge(finish, "draw_run_curves", 0.4)
