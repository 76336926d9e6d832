"""How good a run's frozen features are."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet probe", __doc__)
    parser.add_usual("run")
    parser.add_argument("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own data)")
    parser.add_argument("--fractions", default="0.01,0.05,0.1,1", help="shares of the labels [0.01,0.05,0.1,1]")
    parser.add_argument("-k", type=int, default=20, dest="neighbours", metavar="K", help="nearest neighbours [20]")
    parser.add_argument("--per-class", type=int, help="use so many training images of each class")
    about = "of a pre-trained run: take this block's tokens (default: the best one)"
    parser.add_argument("--layer", type=int, help=about)
    parser.add_argument("--baselines", action="store_true", help="also random weights and raw pixels")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of labels [0]")
    parser.add_usual("--data-dir", "--device", "--json")
    chosen = vars(parser.parse_all(words))
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
