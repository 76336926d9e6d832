"""What the commands ``detect`` and ``segment`` share; torch is imported when something is trained."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.errors import VitletError, nearest
from vitlet.transfer.common.settings import TransferConfig

if TYPE_CHECKING:
    from vitlet.training.distributed import World
    from vitlet.training.job import Job, Measured
    from vitlet.training.loaders import Batches

Config = TypeVar("Config", bound=TransferConfig)


def subcommand(name: str, about: str, actions: Mapping[str, Callable[[list[str]], int]], words: list[str]) -> int:
    """Run ``vitlet NAME ACTION``, or tell which actions there are."""
    usage = f"usage: vitlet {name} {'|'.join(actions)} ...\n\n{about}\n`vitlet {name} ACTION --help` tells the rest."
    if words and words[0] in ("-h", "--help"):
        print(usage)
        return 0
    if not words or words[0] not in actions:
        found = f"found {words[0]!r}.{nearest(words[0], actions)}" if words else "found nothing."
        raise VitletError(f"`vitlet {name}` needs one of {', '.join(actions)}; {found}")
    return actions[words[0]](words[1:])


def train_config(
    kind: type[Config], about: str, words: list[str], recipes: Mapping[str, Callable[[], Config]]
) -> Config:
    """The settings that a command line gives, on top of those of a published recipe."""
    parser = Parser(prog=f"vitlet {kind.JOB}", description=about)
    parser.add_argument("--recipe", metavar="NAME", help=f"a published setting: {', '.join(recipes)}")
    add_run_flags(parser, kind)
    chosen = parser.parse_all(words)
    recipe = vars(chosen).pop("recipe")
    given = run_settings(chosen)
    if recipe is not None:
        if recipe not in recipes:
            raise VitletError(f"unknown recipe {recipe!r}.{nearest(recipe, recipes)} There are {', '.join(recipes)}.")
        given = {**recipes[recipe]().to_dict(), **given}
    config = kind.from_dict(given, source=f"vitlet {kind.JOB}")
    if config.resume is None and "data" not in given:
        raise VitletError(f"`vitlet {kind.JOB}` needs DATA. See `vitlet {kind.JOB} --help`.")
    if config.resume is not None and "RANK" not in os.environ:  # of several processes, only the first may look
        from vitlet.training.resume import resumed

        return resumed(config, given)
    return config


def start(
    config: Config,
    words: list[str],
    make: Callable[[Config, World], tuple[Job, Batches]],
    kind: type[Measured],
) -> int:
    """Train in as many processes as asked for, and print the end."""
    job = config.JOB.split()
    if (config.nproc or 1) > 1 and "RANK" not in os.environ:
        from vitlet.training.launch import launch

        return launch([*job, *words], config.nproc or 1)
    from vitlet.cli.summary import print_measured
    from vitlet.training.loop import train_job

    result = train_job(config, make, kind, title=job[0])
    if os.environ.get("RANK", "0") == "0":
        print_measured(result)
    return 0


def evaluate_parser(name: str, data: str) -> Parser:
    """Of ``vitlet NAME evaluate``."""
    parser = Parser(prog=f"vitlet {name} evaluate", description="Measure a run's best weights.")
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("data", metavar="DATA", nargs="?", help=f"{data} (default: the run's own data)")
    parser.add_argument("--split", choices=("train", "val", "test"), help="default: test if there is one, else val")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def predict_parser(name: str, about: str) -> Parser:
    """Of ``vitlet NAME predict``."""
    parser = Parser(prog=f"vitlet {name} predict", description=about)
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
    parser.add_argument("--output", metavar="FOLDER", default="predicted", help="for the pictures [predicted]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def image_paths(chosen: argparse.Namespace) -> list[Path]:
    """The image files of a command line, which have to be there."""
    paths = [Path(image) for image in chosen.images]
    for path in paths:
        if not path.is_file():
            raise VitletError(f"no such image file: {path}.")
    return paths


def measure(network: Any, chosen: argparse.Namespace, by_class: str) -> int:
    """Measure a loaded detector or segmenter as the command line of `evaluate_parser` says, and print the numbers.

    Args:
        network: with ``evaluate`` and ``classes``.
        chosen: the command line.
        by_class: what the numbers of single classes are called in JSON.
    """
    from vitlet.cli.summary import say

    scores, what = network.evaluate(chosen.data, split=chosen.split)
    numbers = scores.to_dict()
    if chosen.json:
        per_class = dict(zip(network.classes, scores.per_class, strict=True))
        print(json.dumps({"run": chosen.run, "data": what, **numbers, by_class: per_class}))
    else:
        found = ", ".join(f"{key} {value:.2f}" for key, value in numbers.items() if key != "count")
        say(f"{what}: {numbers['count']:.0f} images, {found}")
    return 0
