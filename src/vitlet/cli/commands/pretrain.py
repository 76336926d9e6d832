"""Pre-train a model on images without labels, by default with the tasks sprel and position."""

from __future__ import annotations

from vitlet.cli.commands.train import run_config, run_parser, start
from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def parser() -> Parser:
    """The arguments of the command."""
    return run_parser("vitlet pretrain", str(__doc__))


def run(words: list[str]) -> int:
    """Run the command."""
    config, given, _ = run_config("vitlet pretrain", str(__doc__), words, pretrain=True)
    if not words:
        raise VitletError("vitlet pretrain needs DATA: a folder of images, with or without class folders.")
    return start(config, ["pretrain", *words], given)
