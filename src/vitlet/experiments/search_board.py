"""Live table of a search: current member, best result so far, and remaining time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from vitlet.config import RunConfig
from vitlet.training.progress import duration
from vitlet.training.search_folder import SearchRecord


def search_board(record: SearchRecord, settings: Sequence[RunConfig], left: float) -> Table:
    """A row for each member, finished, in training or waiting.

    Args:
        record: what was found so far.
        settings: of all members.
        left: seconds.
    """
    best = f"best so far: {used_members_line(record)}" if record.weights else "no member is finished yet"
    table = Table(title=f"{best}; {duration(left)} left", title_justify="left", box=None, pad_edge=False)
    for column in ("member", "model", "tasks"):
        table.add_column(column)
    for column in ("minutes", "validation %", "weight"):
        table.add_column(column, justify="right")
    for number, config in enumerate(settings[: record.count]):
        tasks = ", ".join(f"{name}={task.weight:g}" for name, task in config.tasks.items()) or "none"
        numbers = ("in training" if number == len(record.members) else "", "", "")
        if number < len(record.members):
            member = record.members[number]
            weight = record.weights.get(member.folder, 0.0)
            score = "diverged" if member.diverged else f"{member.val_top1:.2f}"
            numbers = (f"{(member.ended - member.began) / 60:.1f}", score, f"{weight:.2f}")
        table.add_row(str(number + 1), member_name(config, settings[0]), tasks, *numbers)
    return table


def member_name(config: RunConfig, first: RunConfig) -> str:
    """The model of a member, and the settings by which it differs from a first member of the same model."""
    differing = [key for key in ("sched", "batch_size") if getattr(config, key) != getattr(first, key)]
    same = config.model == first.model
    return config.model + "".join(f", {key.replace('_', ' ')} {getattr(config, key)}" for key in differing if same)


def used_members_line(record: SearchRecord) -> str:
    """Such as ``0.67 x 1 + 0.33 x 2, 71.20 % of the validation images``."""
    shown = " + ".join(f"{weight:.2f} x {Path(name).name}" for name, weight in record.weights.items())
    return f"{shown}, {record.val_top1 or 0.0:.2f} % of the validation images"
