"""Names of networks; timm's wildcards work."""

from __future__ import annotations

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet models", __doc__)
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="", help="such as 'vit*' or 'swin'")
    parser.add_argument("--attention", action="store_true", help="only those whose attention maps can be read")
    parser.add_argument(
        "--small", action="store_true", help="those made for small images and few of them, with grids and speeds"
    )
    chosen = parser.parse_all(words)
    if chosen.small:
        if chosen.pattern or chosen.attention:
            raise VitletError("--small is a list of its own; leave PATTERN and --attention out.")
        from vitlet.cli.summary import print_small_models
        from vitlet.models.small_list import measured_on, small_models

        print_small_models(small_models(), measured_on())
    else:
        from vitlet.models.factory import find_models

        print("\n".join(find_models(chosen.pattern, attention=chosen.attention)))
    return 0
