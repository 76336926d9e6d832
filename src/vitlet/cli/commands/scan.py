"""Check a dataset: counts, broken files, duplicates across splits; and suggest how to train on it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlet.cli.flags import Parser

if TYPE_CHECKING:
    from vitlet.data.scan.findings import ScanReport


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet scan", __doc__, example="vitlet scan photos --picture classes.png")
    parser.add_argument("data", metavar="DATA", help="folder, archive, table, arrays, or name of a dataset")
    parser.add_usual("--data-dir")
    parser.add_argument("--in-chans", type=int, default=3, metavar="N", help="channels of the images (default: 3)")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="write a contact sheet with images of every class")
    parser.add_argument(
        "-j", "--workers", type=int, metavar="N", help="processes that read images (default: one per core)"
    )
    parser.add_usual("--json")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    from vitlet.cli.summary import print_scan, scan
    from vitlet.data.scan.contact_sheet import picture_grid
    from vitlet.data.sources import Request, open_dataset

    dataset = open_dataset(Request(chosen.data, data_dir=chosen.data_dir), fewest_classes=1)
    report = scan(dataset, channels=chosen.in_chans, workers=chosen.workers)
    if chosen.picture is not None:
        picture_grid(dataset, chosen.picture, channels=chosen.in_chans)
    print_scan(report, suggestion(report, chosen), picture=chosen.picture, as_json=chosen.json)
    return 0


def suggestion(report: ScanReport, chosen: argparse.Namespace) -> dict[str, Any] | None:
    """The command to train with, and what it would choose; None where no image could be read."""
    if report.sizes is None or len(report.classes) < 2:
        return None
    from vitlet.config import RunConfig
    from vitlet.data.glance import Glance
    from vitlet.data.scan.hints import flip_hint
    from vitlet.training.build import find_device
    from vitlet.training.choice import choose_for

    words, given = f"vitlet train {shlex.quote(chosen.data)}", {}
    if chosen.data_dir:
        words += f" --data-dir {shlex.quote(chosen.data_dir)}"
    if chosen.in_chans != 3:
        words, given = f"{words} --in-chans {chosen.in_chans}", {"in_chans": chosen.in_chans}
    images, mirrored = sum(report.counts["train"]), flip_hint(report.classes) is None
    found = Glance(images, len(report.classes), report.sizes.side, 1 if report.grey else 3, mirrored)
    device = "cpu" if find_device("auto").type == "cpu" else "accelerator"
    choice = choose_for(RunConfig(data=chosen.data, **given), given, found, device)  # type: ignore[arg-type]
    measured = choice.rule.measured is not None
    return {"command": words, "model": choice.config.model, "chosen": list(choice.lines), "measured": measured}
