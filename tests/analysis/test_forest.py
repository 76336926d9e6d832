"""The forest plot: one axis for all, the right places on it, and a legend of what is there."""

from __future__ import annotations

import re

import pytest

from vitlet.analysis.report.forest import Difference, forest


def places(drawn: str, kind: str) -> list[float]:
    return [float(value) for value in re.findall(rf'class="{kind}" style="left:(-?[\d.]+)%', drawn)]


def test_one_axis_for_all_groups() -> None:
    groups = {
        "small, vit": [Difference("a", 4.0, 1.0), Difference("b", -2.0, 0.5)],
        "large, swin": [Difference("a", 0.5, 2.0), Difference("c", 1.0, None)],
    }
    drawn = forest(groups, "points")
    marks = [float(text) for text in re.findall(r'%">(-?[\d.]+)</span>', drawn)]
    axis, again = marks[: len(marks) // 2], marks[len(marks) // 2 :]
    assert axis == again  # above and below, and no other
    assert axis[0] <= -2.5
    assert axis[-1] >= 5
    whole = axis[-1] - axis[0]
    expected = [100 * (mean - axis[0]) / whole for mean in (4.0, -2.0, 0.5, 1.0)]
    assert places(drawn, "at") == pytest.approx(expected, abs=0.01)
    starts = [100 * (low - axis[0]) / whole for low in (3.0, -2.5, -1.5)]
    assert places(drawn, "span") == pytest.approx(starts, abs=0.01)  # none for one seed
    widths = [float(value) for value in re.findall(r"width:([\d.]+)%", drawn)]
    assert widths == pytest.approx([100 * wide / whole for wide in (2.0, 1.0, 4.0)], abs=0.01)
    zero = re.search(r"--zero:([\d.]+)%", drawn)
    assert zero is not None
    assert float(zero[1]) == pytest.approx(100 * -axis[0] / whole, abs=0.01)
    assert re.findall(r'class="effect (\w+)', drawn) == ["better", "worse", "unclear", "single"]
    assert [drawn.count(text) for text in ("small, vit", "large, swin", "+4.00 ± 1.00", "one seed")] == [1, 1, 1, 1]


def test_the_legend_names_what_is_drawn_and_text_is_escaped() -> None:
    drawn = forest({"<g>": [Difference("<a>", 2.0, 1.0, "<n>")]}, "<l>")
    assert "above zero" in drawn
    assert "below zero" not in drawn
    assert "beyond the axis" not in drawn
    for text in ("<g>", "<a>", "<n>", "<l>"):
        assert text not in drawn
    assert forest({}, "nothing") == ""


def test_a_huge_interval_does_not_hide_the_others() -> None:
    drawn = forest({"g": [Difference("a", 1.0, 0.2), Difference("b", 0.8, 40.0)]}, "points")
    assert "beyond the axis" in drawn
    assert re.findall(r'class="effect (\w+) ([\w ]*)"', drawn) == [("better", ""), ("unclear", "left right")]
    assert 0 < places(drawn, "span")[0] < places(drawn, "at")[0] < 100
    assert places(drawn, "span")[1] == 0
    assert "nan" not in forest({"g": [Difference("a", 0.0, 0.0)]}, "points")
