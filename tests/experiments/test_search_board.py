"""The table of a search on a terminal, above the bar of the run that is trained."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from vitlet.config import RunConfig, TaskConfig
from vitlet.experiments.search_board import search_board
from vitlet.training.progress import Reporter
from vitlet.training.search_folder import SearchMember, SearchRecord

SETTINGS = [
    RunConfig(model="resnet_s_for_64px"),
    RunConfig(model="hybrid_s_for_64px", tasks={"sprel": TaskConfig(0.3)}),
]
RECORD = SearchRecord({}, [], 30.0, 2)


def shown(record: SearchRecord, left: float) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    console.print(search_board(record, [*SETTINGS, RunConfig(model="not planned")], left))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_what_is_tried_the_best_so_far_and_the_time_left() -> None:
    first = shown(RECORD, 1700.0)
    assert first[0] == "no member is finished yet; 28:20 left"
    assert "resnet_s_for_64px" in first[2] and first[2].endswith("in training")
    assert first[3].split() == ["2", "hybrid_s_for_64px", "sprel=0.3"] and len(first) == 4
    member = SearchMember("members/1", "resnet_s_for_64px", {}, 0.0, 840.0, 71.5)
    second = shown(replace(RECORD, members=(member,), weights={"members/1": 1.0}, val_top1=71.5), 860.0)
    assert second[0] == "best so far: 1.00 x 1, 71.50 % of the validation images; 14:20 left"
    assert second[2].split() == ["1", "resnet_s_for_64px", "none", "14.0", "71.50", "1.00"]
    assert second[3].endswith("in training")


def test_it_is_above_the_bar_of_a_terminal_alone() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
        with Reporter(
            "member 1", epochs=2, steps=2, console=console, above=lambda: search_board(RECORD, SETTINGS, 60.0)
        ) as reporter:
            reporter.step(1.0)
            reporter.say("a line")
        written = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("hybrid_s_for_64px" in written) == terminal
        assert "member 1: a line" in written
