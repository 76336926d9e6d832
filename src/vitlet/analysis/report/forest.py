"""A forest plot: differences with their intervals on one common axis, in groups. HTML, so that it fits any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from vitlet.analysis.report.charts import short, ticks
from vitlet.analysis.report.rendering import render

REACH = 3.0
"""The axis goes at most this many times as far as the largest difference: intervals of two seeds can be huge."""

Verdict = Literal["better", "worse", "unclear", "single"]

VERDICTS: dict[Verdict, str] = {
    "better": "better: the 95 % interval is above zero",
    "worse": "worse: the 95 % interval is below zero",
    "unclear": "no difference shown: the interval includes zero",
    "single": "one seed: no interval",
}


@dataclass(frozen=True)
class Difference:
    """A mean difference and the half width of its interval; None where there is no interval."""

    name: str
    mean: float
    half: float | None
    note: str = ""

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + (self.half or 0.0)

    @property
    def verdict(self) -> Verdict:
        """Verdict of the interval: better, worse, or no difference shown."""
        if self.half is None:
            return "single"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "unclear"

    @property
    def shown(self) -> str:
        """Text such as ``+1.20 ± 0.50``."""
        return f"{self.mean:+.2f}" + ("" if self.half is None else f" ± {self.half:.2f}")


def forest(groups: Mapping[str, Sequence[Difference]], label: str) -> Markup:
    """Forest plot of all groups on one axis with zero, and a legend; ``label`` is the axis label."""
    drawn = [each for group in groups.values() for each in group]
    if not drawn:
        return Markup("")
    reach = REACH * max(abs(each.mean) for each in drawn) or max(each.high for each in drawn) or 1.0
    low, high = max(-reach, min(each.low for each in drawn)), min(reach, max(each.high for each in drawn))
    marks = ticks(min(0.0, low), max(0.0, high), about=8)

    def across(value: float) -> float:
        inside = min(max(value, marks[0]), marks[-1])
        return 100 * (inside - marks[0]) / (marks[-1] - marks[0])

    def placed(each: Difference) -> dict[str, Any]:
        start, end = across(each.low), across(each.high)
        cut = " ".join(
            side for side, is_cut in (("left", each.low < marks[0]), ("right", each.high > marks[-1])) if is_cut
        )
        return {"of": each, "at": across(each.mean), "start": start, "wide": end - start, "cut": cut}

    found = {name: [placed(each) for each in group] for name, group in groups.items()}
    return render(
        "forest_chart.html",
        label=label,
        groups=found,
        marks=[(across(value), short(value)) for value in marks],
        zero=across(0.0),
        legend={key: text for key, text in VERDICTS.items() if any(each.verdict == key for each in drawn)},
        cut=any(row["cut"] for group in found.values() for row in group),
    )
