"""``vitlet train``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vitlet.flags import Parser, add_run_flags, run_settings

if TYPE_CHECKING:
    from vitlet.config import RunConfig


def run(words: list[str]) -> int:
    """Run the command."""
    config = run_config("vitlet train", "Train a classifier on a folder of images.", words)
    if not words:
        from vitlet.demo import demo

        demo()
        return 0
    return start(config, ["train", *words])


def run_config(program: str, about: str, words: list[str], **fixed: bool) -> RunConfig:
    """The settings that a command line gives."""
    parser = Parser(prog=program, description=about)
    add_run_flags(parser)
    settings = run_settings(parser.parse_all(words))
    from vitlet.config import RunConfig

    given = {**settings, **fixed}
    config = RunConfig.from_dict(given, source=program)
    if config.resume is not None and "RANK" not in os.environ:  # of several processes, only the first may look
        from vitlet.runs import resumed

        return resumed(config, given)
    return config


def start(config: RunConfig, command: list[str]) -> int:
    """Train, in as many processes as asked for, each started by the same command, and print the end."""
    if (config.nproc or 1) > 1 and "RANK" not in os.environ:
        from vitlet.launch import launch

        return launch(command, config.nproc or 1)
    from vitlet.engine import train
    from vitlet.summary import print_result

    result = train(config)
    if os.environ.get("RANK", "0") == "0":
        print_result(result)
    return 0
