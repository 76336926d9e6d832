"""Measure a run's frozen features by k-nearest neighbours and a linear classifier, with few and all labels."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet probe", __doc__, example="vitlet probe runs/first photos --baselines")
    parser.add_usual("run")
    parser.add_argument("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own data)")
    parser.add_argument(
        "--fractions",
        default="0.01,0.05,0.1,1",
        metavar="X,X,...",
        help="fractions of the labels to use (default: 0.01,0.05,0.1,1)",
    )
    parser.add_argument(
        "-k", type=int, default=20, dest="neighbours", metavar="K", help="number of nearest neighbours (default: 20)"
    )
    parser.add_argument("--per-class", type=int, metavar="N", help="number of training images of each class to use")
    about = "block whose tokens are used, for a pre-trained run (default: the best)"
    parser.add_argument("--layer", type=int, metavar="N", help=about)
    parser.add_argument("--baselines", action="store_true", help="also measure random weights and raw pixels")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed for the choice of labels (default: 0)"
    )
    parser.add_usual("--data-dir", "--device", "--json")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = vars(parser().parse_all(words))
    from vitlet.analysis.probes import parse_fractions, probe
    from vitlet.cli.summary import print_probes

    as_json, fractions = chosen.pop("json"), parse_fractions(chosen.pop("fractions"))
    # the other flags are keywords of the function
    results = probe(Path(chosen.pop("run")), chosen.pop("data"), fractions=fractions, **chosen)
    if as_json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        print_probes(results)
    return 0
