"""Schedules at the points that define them."""

from __future__ import annotations

import math

import pytest

from vitlet.errors import VitletError
from vitlet.objective.schedules import (
    Constant,
    Ramp,
    Schedule,
    WarmupCosine,
    WarmupLinear,
    WarmupQuarterCosine,
    WarmupStableDecay,
    WarmupSteps,
)


def test_constant() -> None:
    assert [Constant(0.5)(epoch) for epoch in (0, 7.3, 100)] == [0.5, 0.5, 0.5]


def test_ramp_goes_up_and_down_again() -> None:
    ramp = Ramp(0.5, epochs=100, warmup_epochs=20)
    assert [ramp(epoch) for epoch in (0, 10, 20, 60, 100, 120)] == pytest.approx([0, 0.25, 0.5, 0.25, 0, 0])


def test_a_ramp_may_be_all_but_one_step_of_its_warm_up() -> None:
    assert Ramp(1.0, epochs=10, warmup_epochs=0.5)(0.25) == 0.5
    assert Ramp(1.0, epochs=10, warmup_epochs=9.5)(9.75) == pytest.approx(0.5)


@pytest.mark.parametrize("warmup", [-1, 0, 10, 11])
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


def test_warmup_then_constant_then_down() -> None:
    rate = WarmupStableDecay(1.0, epochs=10, warmup_epochs=2, end=0.2, decay=0.4)
    assert [rate(epoch) for epoch in (0, 1, 2, 4, 6, 8, 10, 12)] == pytest.approx([0, 0.5, 1, 1, 1, 0.6, 0.2, 0.2])
    longer = WarmupStableDecay(1.0, epochs=20, warmup_epochs=2, end=0.2, decay=0.4)
    assert [rate(epoch) for epoch in (0.5, 3, 6)] == [longer(epoch) for epoch in (0.5, 3, 6)]
    usual = WarmupStableDecay(1.0, epochs=10)
    assert [usual(epoch) for epoch in (0, 7, 8.5, 10)] == pytest.approx([1, 1, 0.5, 0])
    all_decay = WarmupStableDecay(1.0, epochs=10, warmup_epochs=5, decay=0.9)  # no longer than what the warm-up leaves
    assert [all_decay(epoch) for epoch in (5, 7.5, 10)] == pytest.approx([1, 0.5, 0])


def test_warmup_then_a_line() -> None:
    rate = WarmupLinear(1.0, epochs=10, warmup_epochs=2, end=0.2)
    assert [rate(epoch) for epoch in (0, 1, 2, 6, 10, 12)] == pytest.approx([0, 0.5, 1, 0.6, 0.2, 0.2])
    assert [WarmupLinear(2.0, epochs=4)(epoch) for epoch in (0, 1, 4)] == pytest.approx([2, 1.5, 0])


def test_warmup_then_steps() -> None:
    rate = WarmupSteps(1.0, milestones=(4, 8), warmup_epochs=2)
    assert [rate(epoch) for epoch in (0, 1, 2, 3.9, 4, 7, 8, 9)] == pytest.approx([0, 0.5, 1, 1, 0.1, 0.1, 0.01, 0.01])
    assert WarmupSteps(1.0, milestones=(4,), rate=0.5)(4) == 0.5
    assert WarmupSteps(1.0, milestones=(4,))(0) == 1


@pytest.mark.parametrize("kind", [WarmupCosine, WarmupQuarterCosine, WarmupStableDecay, WarmupLinear])
def test_rates_from_peak_to_nothing(kind: type[WarmupCosine]) -> None:
    """Without a warm-up they begin at the peak and end at 0; with one as long as the run, they only rise."""
    rate: Schedule = kind(2.0, epochs=10)
    assert [rate(0), rate(10), rate(11)] == pytest.approx([2, 0, 0], abs=1e-9)
    rising = kind(2.0, epochs=10, warmup_epochs=10)
    assert [rising(0), rising(5)] == pytest.approx([0, 1])
    assert 0 <= rising(10) <= 2
    assert rising(11) == pytest.approx(0, abs=1e-9)


def test_a_cosine_at_a_third_of_its_way() -> None:
    assert WarmupCosine(1.0, epochs=9)(3) == pytest.approx(0.75)
    assert WarmupCosine(1.0, epochs=4, warmup_epochs=2)(1) == 0.5
    assert WarmupQuarterCosine(1.0, epochs=6)(4) == pytest.approx(0.5)
