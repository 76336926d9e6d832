"""Trained weights on this machine that --init takes, and the released files whose names are known."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet weights", __doc__)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="where to look beside the caches [.]")
    parser.add_usual("--json")
    chosen = parser.parse_all(words)
    folder = Path(chosen.folder)
    if not folder.is_dir():
        raise VitletError(f"no such folder: {folder}. `vitlet weights FOLDER` lists the files of weights in it.")
    from vitlet.cli.summary import print_weights
    from vitlet.models.layouts import LAYOUTS
    from vitlet.models.weight_cache import find_weights_here

    found = find_weights_here(folder)
    if chosen.json:
        known = [layout.to_dict() for layout in LAYOUTS]
        print(json.dumps({"found": [each.to_dict() for each in found], "layouts": known}, indent=2))
    else:
        print_weights(found, LAYOUTS)
    return 0
