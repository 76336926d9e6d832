"""The command line; every command imports what it needs when it runs, so that ``--help`` is instant."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitlet import __version__
from vitlet.errors import VitletError, nearest
from vitlet.flags import Parser, add_run_flags, fail, run_settings

if TYPE_CHECKING:
    from vitlet.config import RunConfig

USAGE = """usage: vitlet COMMAND ...

  vitlet train [DATA]          train a classifier; without DATA, a two-minute demo on handwritten digits
  vitlet pretrain DATA         learn from images without labels; then: vitlet train DATA --init RUN
  vitlet probe RUN [DATA]      how good a run's frozen features are: nearest neighbours and a linear classifier
  vitlet evaluate RUN [DATA]   accuracy of a run's best weights
  vitlet predict RUN IMAGE...  classes of images, as a table or JSON
  vitlet explain RUN... --images IMAGE...   pictures of what a network attends to, and how far
  vitlet scan DATA             what is in a dataset, what is wrong with it, what it suggests
  vitlet plan [DATA]           memory, time and cost of a run before it is run, on this machine or another
  vitlet tasks                 the tasks that can be trained beside the labels, and their options
  vitlet models [PATTERN]      networks by name, such as 'vit*' or '*swin*tiny*'; --small: those for 32 to 96 px

`vitlet COMMAND --help` tells the rest. vitlet {version}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 2 for bad input, others as in `vitlet.errors`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE.format(version=__version__))
        return 0 if words else 2
    if words[0] == "--version":
        print(f"vitlet {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise VitletError(f"unknown command {words[0]!r}.{nearest(words[0], COMMANDS)} See `vitlet --help`.")
        return COMMANDS[words[0]](words[1:])
    except VitletError as problem:
        return fail(problem)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        return 0
    except KeyboardInterrupt:
        print("\nvitlet: stopped.", file=sys.stderr)
        return 130


def train_command(words: list[str]) -> int:
    """``vitlet train``."""
    config = _run_config("vitlet train", "Train a classifier on a folder of images.", words)
    if not words:
        from vitlet.demo import demo

        demo()
        return 0
    return _run(config, ["train", *words])


def pretrain_command(words: list[str]) -> int:
    """``vitlet pretrain``."""
    about = "Learn from images without labels; by default from the tasks sprel and position."
    config = _run_config("vitlet pretrain", about, words, pretrain=True)
    if not words:
        raise VitletError("vitlet pretrain needs DATA: a folder of images, with or without class folders.")
    return _run(config, ["pretrain", *words])


def _run_config(program: str, about: str, words: list[str], **fixed: bool) -> RunConfig:
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


def _run(config: RunConfig, command: list[str]) -> int:
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


def probe_command(words: list[str]) -> int:
    """``vitlet probe``."""
    parser = Parser(prog="vitlet probe", description="How good a run's frozen features are.")
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("data", metavar="DATA", nargs="?", help="labelled images (default: the run's own data)")
    parser.add_argument("--fractions", default="0.01,0.05,0.1,1", help="shares of the labels [0.01,0.05,0.1,1]")
    parser.add_argument("-k", type=int, default=20, help="nearest neighbours [20]")
    parser.add_argument("--per-class", type=int, help="use so many training images of each class")
    parser.add_argument(
        "--layer", type=int, help="of a pre-trained run: take this block's tokens (default: the best one)"
    )
    parser.add_argument("--baselines", action="store_true", help="also random weights and raw pixels")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of labels [0]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_all(words)
    from vitlet.probes import parse_fractions, probe
    from vitlet.summary import print_probes

    results = probe(
        Path(chosen.run),
        chosen.data,
        fractions=parse_fractions(chosen.fractions),
        neighbours=chosen.k,
        per_class=chosen.per_class,
        baselines=chosen.baselines,
        layer=chosen.layer,
        seed=chosen.seed,
        device=chosen.device,
    )
    if chosen.json:
        print(json.dumps([result.to_dict() for result in results], indent=2))
    else:
        print_probes(results)
    return 0


def evaluate_command(words: list[str]) -> int:
    """``vitlet evaluate``."""
    parser = Parser(prog="vitlet evaluate", description="Accuracy of a run's best weights.")
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("data", metavar="DATA", nargs="?", help="folder of class folders (default: the run's own data)")
    parser.add_argument(
        "--split", choices=("val", "test"), help="of the run's own data (default: test if there is one)"
    )
    parser.add_argument("-b", "--batch-size", type=int, default=128, help="images per step [128]")
    parser.add_argument("-j", "--workers", type=int, default=0, help="processes that load images [0]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_all(words)
    if chosen.data and chosen.split:
        raise VitletError("--split chooses among the run's own data; leave it out when DATA is given.")
    from vitlet.predict import Predictor
    from vitlet.summary import print_scores

    predictor = Predictor.load(Path(chosen.run), device=chosen.device)
    scores, what = predictor.evaluate(
        chosen.data, split=chosen.split, batch_size=chosen.batch_size, workers=chosen.workers
    )
    if chosen.json:
        print(json.dumps({"run": chosen.run, "data": what, **scores.to_dict()}))
    else:
        print_scores(what, scores)
    return 0


def predict_command(words: list[str]) -> int:
    """``vitlet predict``."""
    parser = Parser(prog="vitlet predict", description="Classes of images, most likely first.")
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
    parser.add_argument("--topk", type=int, default=3, help="classes to name for each image [3]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_all(words)
    from vitlet.predict import Predictor
    from vitlet.summary import print_predictions

    predictor = Predictor.load(Path(chosen.run), device=chosen.device)
    predictions = predictor.predict([Path(image) for image in chosen.images], topk=chosen.topk)
    if chosen.json:
        print(json.dumps(predictions, ensure_ascii=False, indent=2))
    else:
        print_predictions(predictions)
    return 0


def explain_command(words: list[str]) -> int:
    """``vitlet explain``."""
    parser = Parser(prog="vitlet explain", description="Attention by layer and head, rollout, and how far it reaches.")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders; several are compared")
    parser.add_argument("--images", metavar="IMAGE", nargs="+", required=True, help="image files")
    parser.add_argument("--output", metavar="FOLDER", default="explained", help="for the pictures [explained]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    chosen = parser.parse_all(words)
    from vitlet.explain import explain_runs
    from vitlet.summary import say

    runs, images = [Path(run) for run in chosen.runs], [Path(image) for image in chosen.images]
    for picture in explain_runs(runs, images, Path(chosen.output), device=chosen.device):
        say(f"picture: {picture}")
    return 0


def scan_command(words: list[str]) -> int:
    """``vitlet scan``."""
    parser = Parser(prog="vitlet scan", description="Counts, broken files, duplicates across splits, suggestions.")
    parser.add_argument("data", metavar="DATA", help="folder, archive, table, arrays, or a dataset's name")
    parser.add_argument("--data-dir", help="folder of named datasets, or of the images that a table lists")
    parser.add_argument("--in-chans", type=int, default=3, help="channels of the images [3]")
    parser.add_argument("--picture", metavar="FILE", help="write a contact sheet of every class here")
    parser.add_argument("-j", "--workers", type=int, help="processes that read images (default: one per core)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_all(words)
    from vitlet.data.sources import open_dataset
    from vitlet.summary import print_scan

    dataset = open_dataset(chosen.data, data_dir=chosen.data_dir, fewest_classes=1)
    picture = Path(chosen.picture) if chosen.picture else None
    print_scan(dataset, channels=chosen.in_chans, workers=chosen.workers, picture=picture, as_json=chosen.json)
    return 0


def plan_command(words: list[str]) -> int:
    """``vitlet plan``."""
    from vitlet.plan_flags import parse_plan

    config, request, as_json = parse_plan(words)
    from vitlet.planning.plan import plan
    from vitlet.planning.table import print_plan

    found = plan(config, request)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_plan(found)
    return 0


def tasks_command(words: list[str]) -> int:
    """``vitlet tasks``."""
    Parser(prog="vitlet tasks", description="The tasks and their options.").parse_all(words)
    from vitlet.config import TERM_OPTIONS
    from vitlet.summary import print_tasks
    from vitlet.tasks import TASKS
    from vitlet.tasks.declared import declared_options, declared_weight, summary

    print_tasks({n: (summary(n), declared_weight(n), {**declared_options(n), **TERM_OPTIONS}) for n in TASKS})
    return 0


def models_command(words: list[str]) -> int:
    """``vitlet models``."""
    parser = Parser(prog="vitlet models", description="Names of networks; timm's wildcards work.")
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="", help="such as 'vit*' or 'swin'")
    parser.add_argument("--attention", action="store_true", help="only those whose attention maps can be read")
    parser.add_argument("--small", action="store_true", help="those made for 32, 64 and 96 px, with grids and speeds")
    chosen = parser.parse_all(words)
    if chosen.small:
        if chosen.pattern or chosen.attention:
            raise VitletError("--small is a list of its own; leave PATTERN and --attention out.")
        from vitlet.models.small_list import measured_on, small_models
        from vitlet.summary import print_small_models

        print_small_models(small_models(), measured_on())
        return 0
    from vitlet.models.factory import find_models

    print("\n".join(find_models(chosen.pattern, attention=chosen.attention)))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train_command,
    "pretrain": pretrain_command,
    "probe": probe_command,
    "evaluate": evaluate_command,
    "predict": predict_command,
    "explain": explain_command,
    "scan": scan_command,
    "plan": plan_command,
    "tasks": tasks_command,
    "models": models_command,
}


if __name__ == "__main__":
    sys.exit(main())
