"""List trained weights on this machine for --init, and the released files that vitlet knows."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet weights", __doc__, example="vitlet weights downloads")
    about = "folder to search beside the caches (default: the working folder)"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help=about)
    parser.add_usual("--json")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
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
