"""Schedules at the points that define them."""

from __future__ import annotations

import math

import pytest

from vitlet.errors import VitletError
from vitlet.objective.schedules import Constant, Ramp, WarmupCosine, WarmupQuarterCosine


def test_constant() -> None:
    assert [Constant(0.5)(epoch) for epoch in (0, 7.3, 100)] == [0.5, 0.5, 0.5]


def test_ramp_goes_up_and_down_again() -> None:
    ramp = Ramp(0.5, epochs=100, warmup_epochs=20)
    assert [ramp(epoch) for epoch in (0, 10, 20, 60, 100, 120)] == pytest.approx([0, 0.25, 0.5, 0.25, 0, 0])


@pytest.mark.parametrize("warmup", [0, 10, 11])
def test_ramp_needs_room(warmup: float) -> None:
    with pytest.raises(VitletError, match="warm-up between 0 and its 10 epochs"):
        Ramp(1.0, epochs=10, warmup_epochs=warmup)


def test_warmup_then_cosine() -> None:
    rate = WarmupCosine(1.0, epochs=10, warmup_epochs=2, start=0.1, end=0.01)
    assert [rate(epoch) for epoch in (0, 1, 2, 6, 10)] == pytest.approx([0.1, 0.55, 1.0, 0.505, 0.01])


def test_warmup_then_a_quarter_of_a_cosine() -> None:
    """RelViT's released curve: the angle is counted from the first step, so that the rate drops after the warm-up."""
    rate = WarmupQuarterCosine(5e-4, epochs=100, warmup_epochs=10, end=1.25e-6)
    assert rate(5) == pytest.approx(2.5e-4)
    for epoch in (10, 50, 90):
        bent = 1 - math.cos(epoch / 100 * math.pi / 2)
        assert rate(epoch) == pytest.approx(bent * 1.25e-6 + (1 - bent) * 5e-4)
    assert rate(100) == pytest.approx(1.25e-6)
