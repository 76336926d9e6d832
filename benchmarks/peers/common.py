"""What the scripts of other libraries share: the table of images, the clock of the budget, and the line at the end."""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from pathlib import Path
from typing import Any

STARTED = time.monotonic()


class Budget:
    """Seconds since this process began: CPU time of one thread, or by the clock on all cores."""

    def __init__(self, seconds: float, *, wall: bool) -> None:
        self.seconds, self.wall = seconds, wall

    def used(self) -> float:
        """So far, imports included."""
        return time.monotonic() - STARTED if self.wall else time.process_time()


def arguments(about: str | None) -> argparse.Namespace:
    """The command line that all of these scripts have; one thread, unless the clock on the wall counts."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="a table with the columns path, label and split (train or test)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of training, imports and loading included")
    parser.add_argument("--wall", action="store_true", help="by the clock and on all cores, not CPU time on one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=64, help="pixels a side")
    chosen = parser.parse_args()
    if not chosen.wall:
        os.environ["OMP_NUM_THREADS"] = "1"
    return chosen


def rows(table: Path, split: str) -> list[tuple[str, str]]:
    """Path and label of the images of a split."""
    with table.open(newline="", encoding="utf-8") as file:
        return [(row["path"], row["label"]) for row in csv.DictReader(file) if row["split"] == split]


def link_folders(table: Path, folder: Path, names: dict[str, str]) -> None:
    """The same images as class folders of links, for libraries that take folders alone; ``names`` by split."""
    for split, name in names.items():
        for number, (path, label) in enumerate(rows(table, split)):
            place = folder / name / label / f"{number}{Path(path).suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.is_symlink():
                place.symlink_to(path)


def report(top1: float, epochs: float, seconds: float, **more: Any) -> None:
    """One line of JSON: accuracy in percent, passes over the training images, and seconds used before the test."""
    print(json.dumps({"top1": top1, "epochs": epochs, "seconds": seconds, **more}), flush=True)
