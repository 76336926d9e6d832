"""The command line: runs a command, and prints its errors as one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from vitlet import __version__
from vitlet.errors import VitletError, fail, nearest

if TYPE_CHECKING:
    from vitlet.cli.parser import Parser

COMMANDS = {
    "train": ("train [DATA]", "train a classifier; without DATA, a two-minute demo on handwritten digits"),
    "pretrain": ("pretrain DATA", "pre-train on images without labels; then: vitlet train DATA --init RUN"),
    "probe": ("probe RUN [DATA]", "quality of frozen features: nearest neighbours and a linear classifier"),
    "evaluate": ("evaluate RUN [DATA]", "accuracy of a trained run"),
    "predict": ("predict RUN... IMAGE...", "classes of images, as a table, CSV or JSON; embeddings"),
    "calibrate": ("calibrate RUN", "calibrate probabilities: temperature scaling on validation images"),
    "export": ("export RUN --format F", "export to timm, the hub, ONNX, OpenVINO or torch.export, checked"),
    "explain": ("explain RUN --images IMAGE", "attention maps and class activation maps as pictures"),
    "report": ("report RUN...", "one HTML file on one run or several: numbers, curves, errors, pictures"),
    "recipes": ("recipes [NAME]", "published settings; `vitlet train --recipe NAME` runs one"),
    "study": ("study FILE|TABLE", "a grid of runs, or a paper's table, with seeds and intervals; restartable"),
    "detect": ("detect train|evaluate|predict", "object detection: Mask R-CNN or Cascade on a backbone"),
    "segment": ("segment train|evaluate|predict", "semantic segmentation: UPerNet on a backbone"),
    "serve": ("serve RUN...", "a web page and an HTTP interface on this machine for predictions"),
    "tune": ("tune DATA", "search learning rate and task weights on validation images, in a given time"),
    "learn-curve": ("learn-curve DATA", "is the number of images enough? Accuracy at 2 and 4 times as many"),
    "suggest": ("suggest RUN POOL", "unlabelled images to label next, by uncertainty and diversity"),
    "scan": ("scan DATA", "counts, broken files, duplicates and leaks of a dataset; how to train on it"),
    "plan": ("plan [DATA]", "memory, time and cost of a run before it is started, here or elsewhere"),
    "tasks": ("tasks", "auxiliary tasks and their options"),
    "weights": ("weights [FOLDER]", "trained weights on this machine for --init, and where to get some"),
    "models": ("models [PATTERN]", "models by name, such as 'vit*'; --small: those for 32 to 96 px"),
    "completion": ("completion bash|zsh|tcsh", "a script that completes commands and flags in the shell"),
}
"""Each command with how it is called and what it does; the code is in `vitlet.cli.commands`."""

COMMAND_GROUPS = {
    "train": ("train", "pretrain", "tune", "plan", "detect", "segment"),
    "use": ("evaluate", "predict", "calibrate", "export", "serve"),
    "understand": ("report", "explain", "probe", "learn-curve"),
    "data": ("scan", "suggest"),
    "research": ("recipes", "study", "tasks", "models", "weights"),
}
"""The commands as ``vitlet --help`` groups them; those in no group come last."""

ABOUT = "Train image classifiers well on small datasets: 500 to 50,000 images."
_EXAMPLE = ("vitlet train photos --minutes 30", "vitlet predict runs/photos image.jpg")


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
        code: int = import_module(f"vitlet.cli.commands.{words[0].replace('-', '_')}").run(words[1:])
        return code
    except VitletError as problem:
        return fail(problem)
    except BrokenPipeError:  # the reader of the pipe has closed it, such as `head`
        return 0
    except KeyboardInterrupt:
        print("\nvitlet: stopped.", file=sys.stderr)
        return 130


def usage() -> str:
    """The text of ``vitlet --help``: all commands in groups, a line each."""
    lines = ["usage: vitlet COMMAND [options]", "", ABOUT, "", "example:", *(f"  {line}" for line in _EXAMPLE)]
    for title, names in command_groups().items():
        lines += ["", f"{title}:", *(f"  {COMMANDS[name][0]:<31} {COMMANDS[name][1]}" for name in names)]
    return "\n".join([*lines, "", f"`vitlet COMMAND --help` describes a command. vitlet {__version__}"])


def command_groups() -> dict[str, list[str]]:
    """All commands by group."""
    grouped = {title: [name for name in names if name in COMMANDS] for title, names in COMMAND_GROUPS.items()}
    grouped["other"] = [name for name in COMMANDS if not any(name in names for names in grouped.values())]
    return grouped


def command_parser(name: str) -> Parser:
    """The parser of a command, for its help page and for shell completion."""
    parser: Parser = import_module(f"vitlet.cli.commands.{name.replace('-', '_')}").parser()
    return parser


if __name__ == "__main__":
    sys.exit(main())
