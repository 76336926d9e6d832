"""Print a script that completes commands and flags of vitlet in the shell. Needs shtab: pip install
'vitlet[completion]'."""

from __future__ import annotations

import argparse
from typing import Any

from vitlet.cli.flags import Parser
from vitlet.errors import require_extra

SHELLS = ("bash", "zsh", "tcsh")
_EXAMPLE = """\
vitlet completion bash > ~/.local/share/bash-completion/completions/vitlet
vitlet completion zsh > ~/.zfunc/_vitlet   # with fpath+=~/.zfunc before compinit in ~/.zshrc"""


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet completion", __doc__, example=_EXAMPLE)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    shtab = require_extra("shtab", "completion", "vitlet completion")
    print(shtab.complete(all_commands(), chosen.shell))
    return 0


def all_commands() -> argparse.ArgumentParser:
    """One parser with every command as a subcommand."""
    from vitlet import __version__
    from vitlet.cli import ABOUT, COMMANDS, command_parser

    root = argparse.ArgumentParser("vitlet", description=ABOUT)
    root.add_argument("--version", action="version", version=__version__)

    def made(prog: str, **_: Any) -> Parser:
        return command_parser(prog.partition(" ")[2])

    how: Any = {"parser_class": made}  # argparse calls it as it would call a class
    commands = root.add_subparsers(**how)
    for name, (_, about) in COMMANDS.items():
        commands.add_parser(name, help=about)
    return root
