"""``vitlet probe``."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser(prog="vitlet probe", description="How good a run's frozen features are.")
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own data)")
    parser.add_argument("--data-dir", help="of DATA: folder of named datasets, or of the images that a table lists")
    parser.add_argument("--fractions", default="0.01,0.05,0.1,1", help="shares of the labels [0.01,0.05,0.1,1]")
    parser.add_argument("-k", type=int, default=20, help="nearest neighbours [20]")
    parser.add_argument("--per-class", type=int, help="use so many training images of each class")
    parser.add_argument(
        "--layer", type=int, help="of a pre-trained run: take this block's tokens (default: the best one)"
    )
    parser.add_argument("--baselines", action="store_true", help="also random weights and raw pixels")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of labels [0]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_all(words)
    from vitlet.analysis.probes import parse_fractions, probe
    from vitlet.cli.summary import print_probes

    results = probe(
        Path(chosen.run),
        chosen.data,
        data_dir=chosen.data_dir,
        fractions=parse_fractions(chosen.fractions),
        neighbours=chosen.k,
        per_class=chosen.per_class,
        baselines=chosen.baselines,
        layer=chosen.layer,
        seed=chosen.seed,
        device=chosen.device,
    )
    if chosen.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        print_probes(results)
    return 0
