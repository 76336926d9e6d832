"""Measure the accuracy of a run's best weights, on its own test images or on other data."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet evaluate", __doc__, example="vitlet evaluate runs/photos")
    parser.add_usual("run")
    parser.add_argument("data", metavar="DATA", nargs="?", help="folder of class folders (default: the run's own data)")
    about = "split of the run's own data (default: test if there is one, else val)"
    parser.add_argument("--split", choices=("val", "test"), help=about)
    parser.add_argument(
        "-b", "--batch-size", type=int, default=128, metavar="N", help="images per batch (default: 128)"
    )
    parser.add_argument(
        "-j", "--workers", type=int, default=0, metavar="N", help="processes that load images (default: 0)"
    )
    parser.add_usual("--data-dir", "--device", "--json")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    if chosen.data and chosen.split:
        raise VitletError("--split chooses among the run's own data; leave it out when DATA is given.")
    from vitlet.cli.summary import print_scores
    from vitlet.inference.predict import Predictor

    predictor = Predictor.load(Path(chosen.run), device=chosen.device)
    scores, what = predictor.evaluate(
        chosen.data, split=chosen.split, data_dir=chosen.data_dir, batch_size=chosen.batch_size, workers=chosen.workers
    )
    if chosen.json:
        print(json.dumps({"run": chosen.run, "data": what, **scores.to_dict()}))
    else:
        print_scores(what, scores)
    return 0
