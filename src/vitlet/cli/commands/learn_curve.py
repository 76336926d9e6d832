"""Is the number of images enough? Trains on nested subsets, fits accuracy against images, and says what twice and four
times as many would bring, how many a target takes, and whether more epochs or a larger model is worth more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vitlet.cli.commands.train import is_open, of_first_run, require_sources
from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.errors import VitletError
from vitlet.processes import keep_freed_memory
from vitlet.values import coerce

if TYPE_CHECKING:
    from vitlet.config import RunConfig

ON_LENGTH = """\
--minutes is the time of all runs together (default: 20): every size gets the same share of the epochs that `vitlet
train` takes for so many images. With --epochs every run has that many, and there is no time limit. With --init and
--freeze a linear classifier on frozen features is measured instead, in seconds. The same command with --output
continues a curve that was stopped."""


def parser() -> Parser:
    """The arguments of the command."""
    example = "vitlet learn-curve photos --target 95 --minutes 20"
    parser = Parser("vitlet learn-curve", __doc__, example=example, epilog=ON_LENGTH)
    parser.add_argument("--target", type=float, metavar="PERCENT", help="accuracy to find the number of images for")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="number of runs of each size (default: 3)")
    about = "images to measure accuracy on, val or test (default: val)"
    parser.add_argument("--split", choices=("val", "test"), default="val", metavar="NAME", help=about)
    add_run_flags(parser)
    parser.hidden |= {"pretrained", "resume"}
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    target, seeds, split = (vars(chosen).pop(name) for name in ("target", "seeds", "split"))
    minutes = _minutes(chosen, target, seeds)
    given = run_settings(chosen)
    if "data" not in given:
        raise VitletError("DATA is missing: vitlet learn-curve DATA. See `vitlet learn-curve --help`.")
    opened = is_open(chosen, given)
    given = of_first_run(given) if "init" in given else given
    from vitlet.config import RunConfig

    config = RunConfig.from_dict(given, source="vitlet learn-curve")
    _refuse(config)
    require_sources(config)
    from vitlet.cli.summary import say
    from vitlet.experiments.learn_curve.curve import LearnCurve
    from vitlet.experiments.learn_curve.record import PICTURE
    from vitlet.experiments.learn_curve.request import CurveRequest, label_leak, open_curve
    from vitlet.training.choice import choose
    from vitlet.training.clock import Stopwatch

    keep_freed_memory()
    watch, choice = Stopwatch.of_process(), choose(config, given) if opened else None
    for line in choice.lines if choice else [leak] if (leak := label_leak(config)) else ():
        say(line)
    request = CurveRequest(choice.config if choice else config, given, choice, minutes, seeds, split, target)
    path, record = open_curve(request, watch)
    record = LearnCurve(path, record, request, watch, say).run()
    for line in record.answer["lines"]:
        say(line)
    say(f"learning curve: {path}, picture: {path / PICTURE}")
    return 0


def _minutes(chosen: argparse.Namespace, target: float | None, seeds: int) -> float | None:
    """The time of all runs, None where the epochs were given; refuses numbers that mean nothing."""
    if target is not None and not 0 < target < 100:
        raise VitletError(f"target is {target:g}; it must be a percentage above 0 and below 100.")
    if seeds < 1:
        raise VitletError(f"seeds is {seeds}; it must be 1 or more.")
    if "minutes" in chosen and "epochs" in chosen:
        raise VitletError("--epochs and --minutes both say how long to train; leave one of them out.")
    minutes: float = coerce(vars(chosen).pop("minutes", 20.0), float, "minutes")
    if minutes <= 0:
        raise VitletError(f"minutes is {minutes:g}; it must be greater than 0.")
    return None if "epochs" in chosen else minutes


def _refuse(config: RunConfig) -> None:
    """Settings that have no meaning here."""
    if config.pretrain or config.resume or config.cpu_minutes is not None or (config.nproc or 1) > 1:
        raise VitletError(
            "learn-curve trains classifiers from the start in one process; leave out --pretrain, --resume,"
            " --cpu-minutes and --nproc. A curve that was stopped goes on with the same command and --output."
        )
    if config.folds is not None or config.per_class is not None:
        raise VitletError("learn-curve makes its own subsets; leave out --folds and --per-class, or use --fraction.")
