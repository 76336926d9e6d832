"""The command line: which command, and what becomes of its errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from vitlet import __version__
from vitlet.errors import VitletError, fail, nearest

COMMANDS = {
    "train": ("train [DATA]", "train a classifier; without DATA, a two-minute demo on handwritten digits"),
    "pretrain": ("pretrain DATA", "learn from images without labels; then: vitlet train DATA --init RUN"),
    "probe": ("probe RUN [DATA]", "how good a run's frozen features are: nearest neighbours and a linear classifier"),
    "evaluate": ("evaluate RUN [DATA]", "accuracy of a run's best weights"),
    "predict": ("predict RUN... IMAGE...", "classes of images, as a table, CSV or JSON; embeddings"),
    "calibrate": ("calibrate RUN", "probabilities that can be believed: a temperature fitted on validation images"),
    "export": ("export RUN --format F", "for timm, the hub, ONNX, OpenVINO or torch.export, checked against the run"),
    "explain": ("explain RUN --images IMAGE", "pictures of what a network attends to, and how far"),
    "report": ("report RUN...", "one HTML file on one run or several: numbers, curves, mistakes, pictures"),
    "recipes": ("recipes [NAME]", "every published setting; `vitlet train --recipe NAME` runs one"),
    "study": ("study FILE|TABLE", "a grid of runs, or a paper's table, with seeds and intervals; restartable"),
    "detect": ("detect train|evaluate|predict", "objects with boxes and masks: Mask R-CNN or Cascade on a backbone"),
    "segment": ("segment train|evaluate|predict", "a class for every pixel: UPerNet on a backbone"),
    "serve": ("serve RUN...", "a page on this machine: drop images, see classes and maps; the same for programs"),
    "tune": ("tune DATA", "search learning rate and weights of tasks on validation images, in a given time"),
    "learn-curve": (
        "learn-curve DATA",
        "is the number of images enough? accuracy at 2 and 4 times as many, with intervals",
    ),
    "suggest": ("suggest RUN POOL", "which unlabelled images to label next, by uncertainty and diversity"),
    "scan": ("scan DATA", "what is in a dataset, what is wrong with it, what it suggests"),
    "plan": ("plan [DATA]", "memory, time and cost of a run before it is run, on this machine or another"),
    "tasks": ("tasks", "the tasks that can be trained beside the labels, and their options"),
    "weights": ("weights [FOLDER]", "trained weights on this machine that --init takes, and where to get some"),
    "models": ("models [PATTERN]", "networks by name, such as 'vit*' or '*swin*tiny*'; --small: those for 32 to 96 px"),
}
"""Each with how it is called and what it does; the code is in `vitlet.cli.commands`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 for bad input, others as in `vitlet.errors`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"vitlet {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise VitletError(f"unknown command {words[0]!r}.{nearest(words[0], COMMANDS)} See `vitlet --help`.")
        command: int = import_module(f"vitlet.cli.commands.{words[0].replace('-', '_')}").run(words[1:])
        return command
    except VitletError as problem:
        return fail(problem)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        return 0
    except KeyboardInterrupt:
        print("\nvitlet: stopped.", file=sys.stderr)
        return 130


def usage() -> str:
    """All commands, a line each."""
    lines = [f"  vitlet {call:<26} {about}" for call, about in COMMANDS.values()]
    return "\n".join(
        ["usage: vitlet COMMAND ...", "", *lines, "", f"`vitlet COMMAND --help` tells the rest. vitlet {__version__}"]
    )


if __name__ == "__main__":
    sys.exit(main())
