"""The folder of a search: ``search.json``, and its members as ordinary runs under ``members/``.

==================  ==============================================================
search.json         settings, minutes, what was tried with scores and times, weights of the members that are used
members/1, 2, ...   the runs, the first that of the usual settings; 1.yaml and 1.log of those in a process of their own
val/, test/         each member's probabilities of the validation and the test images
search.png          accuracy against time
==================  ==============================================================
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitlet.errors import VitletError

SEARCH_FILE = "search.json"
"""In the folder of a search."""


@dataclass(frozen=True)
class Workers:
    """Processes that train members of a search at the same time.

    Attributes:
        count: number of processes.
        engine: this machine, or a Ray cluster.
        address: address of the cluster; None: the one this machine belongs to, or a new one on this machine.
    """

    count: int = 1
    engine: Literal["local", "ray"] = "local"
    address: str | None = None


@dataclass(frozen=True)
class SearchMember:
    """A run of a search: its folder within it, what it is, when it began and ended in seconds, what it reached.

    Attributes:
        asked: seconds that its answers to the validation and test images took, once it was trained.
        diverged: the error of a run whose loss was not finite, which is not used; empty for any other.
    """

    folder: str
    model: str
    tasks: dict[str, float]
    began: float
    ended: float
    val_top1: float
    asked: float = 0.0
    diverged: str = ""


@dataclass(frozen=True)
class SearchRecord:
    """Contents of ``search.json``.

    Attributes:
        settings: settings of the first member, as plain values, and those that the user named.
        minutes: promised.
        count: members that are planned.
        workers: processes that train members at the same time.
        seconds: used so far.
        members: that are finished.
        weights: weights of the members that are used, by folder; their sum is 1.
        val_top1: what these reach together on the validation images.
        test: scores on the test images, at the end.
        done: whether the search has come to its end.
    """

    settings: dict[str, Any]
    given: list[str]
    minutes: float
    count: int
    seconds: float = 0.0
    members: tuple[SearchMember, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    val_top1: float | None = None
    test: dict[str, float] | None = None
    done: bool = False
    workers: Workers = Workers()

    @property
    def usable(self) -> tuple[SearchMember, ...]:
        """The finished members that did not diverge."""
        return tuple(member for member in self.members if not member.diverged)

    def dump(self) -> str:
        """The record as JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)


def is_search(path: Path) -> bool:
    """Whether this is the folder of a search."""
    return (path / SEARCH_FILE).is_file()


def read_search(path: Path) -> SearchRecord:
    """Read the record of a search."""
    try:
        found = json.loads((path / SEARCH_FILE).read_text(encoding="utf-8"))
        members = tuple(SearchMember(**member) for member in found.pop("members"))
        workers = Workers(**found.pop("workers", {"count": found.pop("processes", 1)}))
        return SearchRecord(**found, members=members, workers=workers)
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise VitletError(f"{path / SEARCH_FILE} is not the record of a search: {problem}.") from problem


def used_members(path: Path) -> dict[Path, float]:
    """The runs that a search uses, with their weights: one run or an ensemble."""
    weights = read_search(path).weights or {"members/1": 1.0}
    return {path / folder: weight for folder, weight in weights.items()}


def best_member(path: Path) -> Path:
    """The best single run of a search; any other folder is itself."""
    if not is_search(path):
        return path
    members = read_search(path).usable
    return path / (max(members, key=lambda each: each.val_top1).folder if members else "members/1")
