"""``vitlet pretrain``."""

from __future__ import annotations

from vitlet.cli.commands.train import run_config, start
from vitlet.errors import VitletError


def run(words: list[str]) -> int:
    """Run the command."""
    about = "Learn from images without labels; by default from the tasks sprel and position."
    config, given, _ = run_config("vitlet pretrain", about, words, pretrain=True)
    if not words:
        raise VitletError("vitlet pretrain needs DATA: a folder of images, with or without class folders.")
    return start(config, ["pretrain", *words], given)
