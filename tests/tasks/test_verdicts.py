"""When a task says that it was not learned: just inside and just outside of its margin of the chance level."""

from __future__ import annotations

import pytest

import vitlet
from vitlet.tasks.task import Task

ERRORS = {"distance": vitlet.Distance(), "angle": vitlet.Angle(), "drloc": vitlet.DRLoc(hidden=4)}
ACCURACIES = {"sprel": vitlet.SpatialRelations(), "position": vitlet.Position(), "jigsaw": vitlet.Jigsaw()}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_below_95_percent_of_chance_is_learned(name: str) -> None:
    suffix = "_cells" if name == "drloc" else ""

    def verdict(error: float) -> str | None:
        return ERRORS[name].verdict({f"error{suffix}": error, f"chance{suffix}": 2.0})

    assert verdict(1.89) is None
    assert verdict(1.9) is not None  # no better than the margin
    sentence = verdict(1.97)
    shown = "2.0" if name == "angle" else "1.97"
    assert sentence is not None and f"its error of {shown}" in sentence and "2.0" in sentence


@pytest.mark.parametrize("name", ACCURACIES)
def test_an_accuracy_above_105_percent_of_chance_is_learned(name: str) -> None:
    task: Task = ACCURACIES[name]
    assert task.verdict({"accuracy": 10.6, "chance": 10.0}) is None
    sentence = task.verdict({"accuracy": 10.5, "chance": 10.0})
    assert sentence is not None and "10.5 %" in sentence and "10.0 %" in sentence
    assert sentence.startswith("was not learned: ")
