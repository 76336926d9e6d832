"""List models by name: timm's, those of the papers, and small ones for few images."""

from __future__ import annotations

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet models", __doc__, example="vitlet models 'swin*tiny*'\nvitlet models --small")
    parser.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        default="",
        help="part of a name, or wildcards in quotes, such as 'vit*'",
    )
    parser.add_argument("--attention", action="store_true", help="only models whose attention maps can be read")
    parser.add_argument(
        "--small", action="store_true", help="vitlet's models for small images and few of them, with speeds"
    )
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    if chosen.small:
        if chosen.pattern or chosen.attention:
            raise VitletError("--small is a separate list; leave PATTERN and --attention out.")
        from vitlet.cli.summary import print_small_models
        from vitlet.models.small_list import measured_on, small_models

        print_small_models(small_models(), measured_on())
    else:
        from vitlet.models.factory import find_models

        print("\n".join(find_models(chosen.pattern, attention=chosen.attention)))
    return 0
