"""Counts, broken files, duplicates across splits, suggestions."""

from __future__ import annotations

from pathlib import Path

from vitlet.cli.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet scan", __doc__)
    parser.add_argument("data", metavar="DATA", help="folder, archive, table, arrays, or a dataset's name")
    parser.add_argument("--data-dir", help="folder of named datasets, or of the images that a table lists")
    parser.add_argument("--in-chans", type=int, default=3, help="channels of the images [3]")
    parser.add_argument("--picture", metavar="FILE", type=Path, help="write a contact sheet of every class here")
    parser.add_argument("-j", "--workers", type=int, help="processes that read images (default: one per core)")
    parser.add_usual("--json")
    chosen = parser.parse_all(words)
    from vitlet.cli.summary import print_scan
    from vitlet.data.sources import Request, open_dataset

    dataset = open_dataset(Request(chosen.data, data_dir=chosen.data_dir), fewest_classes=1)
    scanned = {"data": chosen.data, "channels": chosen.in_chans, "workers": chosen.workers}
    print_scan(dataset, picture=chosen.picture, as_json=chosen.json, **scanned)
    return 0
