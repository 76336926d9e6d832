"""Train a classifier on a folder of images. What you do not set is chosen for your data and printed; with --model, the
defaults below are used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.config.run import HELD
from vitlet.config.setting import HARDWARE, OPTIM, RUN
from vitlet.errors import TooShortError, VitletError
from vitlet.processes import keep_freed_memory, this_process

if TYPE_CHECKING:
    from vitlet.config import RunConfig
    from vitlet.experiments.recipes import Scale
    from vitlet.training.choice import Choice
    from vitlet.training.clock import Stopwatch
    from vitlet.training.search_folder import Workers


def parser() -> Parser:
    """The arguments of the command."""
    return run_parser("vitlet train", str(__doc__))


def run(words: list[str]) -> int:
    """Run the command."""
    config, given, choices = run_config("vitlet train", str(__doc__), words)
    if not words:
        from vitlet.cli.demo import demo

        demo()
        return 0
    return start(config, ["train", *words], given, choices, _workers(words, config, choices))


def _workers(words: list[str], config: RunConfig, choices: str) -> Workers:
    """Processes that train members of a search at the same time, by their flags; refused where nothing is searched."""
    from vitlet.training.search_folder import Workers

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--address")
    chosen = parser.parse_known_args(words)[0]
    found: int | None = chosen.processes
    if found is None and (chosen.engine == "ray" or chosen.address):
        raise VitletError("--engine ray and --address need --processes N: the models to train at the same time.")
    if chosen.address and chosen.engine != "ray":
        raise VitletError("--address is of a Ray cluster; add --engine ray.")
    if found is not None and (found < 1 or choices != "all" or config.minutes is None):
        raise VitletError(
            f"--processes {found} is the number of runs that a search trains at the same time: it must be 1 or"
            " more, with --minutes or --until, and without a --model of your own. For one run in several: --nproc."
        )
    return Workers(found or 1, chosen.engine, chosen.address)


_EXAMPLES = {
    "vitlet train": "vitlet train photos --minutes 30\n"
    "vitlet train photos --model resnet18 --img-size 64 --task drloc=0.5",
    "vitlet pretrain": "vitlet pretrain photos --output runs/first\nvitlet train photos --init runs/first",
}


def run_parser(program: str, about: str) -> Parser:
    """The arguments of a command that trains a classifier."""
    parser = Parser(program, about, _EXAMPLES.get(program))
    groups = add_run_flags(parser)
    add_recipe_flags(parser, groups[RUN])
    groups[OPTIM].add_argument("--until", metavar="HH:MM", help="time of day to finish at, instead of --minutes")
    if program == "vitlet pretrain":  # which searches nothing
        return parser
    several = "models to train at the same time, with --minutes and without --model (default: 1)"
    groups[HARDWARE].add_argument("--processes", metavar="N", type=int, help=several)
    where = "where these are trained: processes of this machine, or a Ray cluster (default: local)"
    groups[HARDWARE].add_argument("--engine", choices=("local", "ray"), default="local", help=where)
    cluster = "address of the Ray cluster (default: this machine's)"
    groups[HARDWARE].add_argument("--address", metavar="ADDRESS", help=cluster)
    parser.hidden |= {"until", "processes", "engine", "address"}
    return parser


def run_config(program: str, about: str, words: list[str], **fixed: bool) -> tuple[RunConfig, dict[str, Any], str]:
    """The settings of a command line, those that it gives itself, and what is to be chosen: all, tasks or nothing."""
    chosen = run_parser(program, about).parse_all(words)
    until = vars(chosen).pop("until")
    for name in ("processes", "engine", "address"):
        vars(chosen).pop(name, None)
    if until is not None:
        if "minutes" in chosen or "cpu_minutes" in chosen:
            raise VitletError("--until and --minutes both limit the time; give one of them.")
        chosen.minutes = minutes_until(until)
    if "epochs" in chosen and ("minutes" in chosen or "cpu_minutes" in chosen):
        raise VitletError("--epochs and --minutes both limit the training; give one of them.")
    given = with_recipe(chosen, fixed)
    from vitlet.config import RunConfig

    choices = "nothing" if chosen.recipe or "task" in given else "tasks"
    choices = "all" if is_open(chosen, given) else choices
    if given.get("init") == "auto":
        from vitlet.models.weight_cache import best_known

        given["init"] = str(best_known(Path()))
    if chosen.recipe is None and "init" in given:
        given = of_first_run(given)
    return RunConfig.from_dict(given, source=program), given, choices


def _begun_search(config: RunConfig, given: Mapping[str, Any]) -> Path | None:
    """The search that ``--resume`` means; further settings are refused, for it has its own."""
    from vitlet.training.search_folder import is_search

    path = Path(config.output or "") if config.resume == "auto" else Path(config.resume or "")
    if config.resume is None or not is_search(path):
        return None
    if config.resume != "auto" and (others := given.keys() - {"resume", "output"}):
        raise VitletError(f"the search {path} continues with its own settings; leave out {', '.join(sorted(others))}.")
    return path


def _search(
    begun: Path | None, choice: Choice | None, given: Mapping[str, Any], watch: Stopwatch, workers: Workers | None
) -> int | None:
    """Search within the minutes, or go on with a search; None where they are too short for more than one run."""
    from vitlet.cli.summary import print_search, say
    from vitlet.experiments.portfolio import Search, open_folder, plan_search, resume_search

    if begun is not None:
        search = resume_search(begun, watch, say)
    else:
        assert choice is not None and workers is not None
        if (record := plan_search(choice, given, watch, workers)) is None:
            return None
        for line in choice.lines:
            say(line)
        search = Search(open_folder(choice.config), record, choice, watch, say)
    print_search(search.path, search.run())
    return 0


def is_open(chosen: argparse.Namespace, given: Mapping[str, Any]) -> bool:
    """Whether a command line leaves the choice of the model, and of what follows from it, to us."""
    named = getattr(chosen, "recipe", None) or chosen.config or any(name in given for name in HELD)
    return not named and given.get("resume", "auto") == "auto"


def is_released(config: RunConfig, given: Mapping[str, Any]) -> bool:
    """Whether a new run names trained weights that name their model, and no model itself."""
    if config.init is None or "model" in given or config.resume not in (None, "auto"):
        return False
    from vitlet.models.layouts import layout_of
    from vitlet.training.build import find_weights

    return layout_of(find_weights(Path(config.init))) is not None


def minutes_until(text: str, now: datetime | None = None) -> float:
    """Minutes from now to a time of the day such as 18:00, of tomorrow if it has passed."""
    now = now or datetime.now()
    try:
        end = datetime.combine(now.date(), datetime.strptime(text, "%H:%M").time())
    except ValueError:
        raise VitletError(f"--until {text!r} is not a time of day; it must be like 18:00.") from None
    end += timedelta(days=1) if end <= now else timedelta()
    return (end - now).total_seconds() / 60


def of_first_run(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with the model of the run that gives the first weights, where they name no other model."""
    from vitlet.config import RunConfig

    run = Path(str(given["init"]))
    first = RunConfig.read(run / "config.yaml") if (run / "config.yaml").is_file() else {}
    if "job" in first or given.get("model", first.get("model")) != first.get("model"):
        return given
    keys = {"model", "model_kwargs", "img_size", "in_chans"} - given.keys()
    taken = {key: value for key, value in first.items() if key in keys}
    if taken and this_process().first and (this_process().launched or given.get("nproc") is None):
        print(f"taken from {run}: {', '.join(f'{key} {value}' for key, value in taken.items())}")
    return {**taken, **given}


def require_sources(config: RunConfig) -> None:
    """Refuse data and weights that are not there before torch is imported, which takes seconds."""
    from vitlet.data.named import require_data

    if config.init is not None and not Path(config.init).exists():
        raise VitletError(f"no such run folder or file of weights: {config.init}. --init needs one that is there.")
    for name, task in config.tasks.items():
        teacher = task.options.get("teacher")
        if teacher not in (None, "auto") and not Path(teacher).exists():
            raise VitletError(f"no such run folder: {teacher}. --{name}.teacher needs a finished run on these images.")
    require_data(config.data, config.data_dir, download=config.download)


def add_recipe_flags(parser: Parser, group: Any) -> None:
    """The flags that name a published setting and its size, in a group of the help text."""
    group.add_argument("--recipe", metavar="NAME", help="published settings, see `vitlet recipes`; flags override them")
    about = "full: as published; small: reduced to one CPU core (default: full)"
    group.add_argument("--recipe-size", choices=("full", "small"), help=about)
    parser.hidden.add("recipe_size")


def with_recipe(chosen: argparse.Namespace, fixed: Mapping[str, Any], *, runs: bool = True) -> dict[str, Any]:
    """The settings of a parsed command line over those of its recipe, if it names one.

    Args:
        chosen: what `add_recipe_flags` and `add_run_flags` have parsed.
        fixed: settings of the command itself.
        runs: whether the run is begun, which takes the weights that it begins with.
    """
    given, name, size = dict(vars(chosen)), chosen.recipe, chosen.recipe_size
    if given.get("scale") in ("full", "small"):  # a share of the area otherwise
        size = given.pop("scale")
        if this_process().first:
            print(f"vitlet: --scale {size} is deprecated here; use --recipe-size {size}.", file=sys.stderr)
    given = run_settings(argparse.Namespace(**{key: given[key] for key in given if not key.startswith("recipe")}))
    given |= fixed
    if name is not None:
        return _recipe_settings(name, size or "full", given, runs=runs)
    if size is not None:
        raise VitletError(f"--recipe-size {size} is the size of a recipe; name one with --recipe.")
    return given


def _recipe_settings(name: str, scale: Scale, given: dict[str, Any], *, runs: bool) -> dict[str, Any]:
    """Settings of a recipe, overridden by the given ones; a recipe in two phases has those of the requested phase."""
    from vitlet.experiments.recipes import find_recipe
    from vitlet.experiments.studies.definition import over_recipe

    recipe = find_recipe(name)
    values = recipe.values(scale, given.get("data"), given.get("data"))
    first = values.pop("first", None)
    size = "" if scale == "full" else f" --recipe-size {scale}"
    if given.get("pretrain"):
        if first is None:
            raise VitletError(f"{name} has no pre-training. Run it with: vitlet train --recipe {name}{size}")
        return over_recipe(first, {key: value for key, value in given.items() if key != "pretrain"})
    if first is not None and "init" not in given and runs:
        raise VitletError(
            f"{name} begins with a pre-training. Run: vitlet pretrain --recipe {name}{size} --output FIRST, then:"
            f" vitlet train --recipe {name}{size} --init FIRST"
        )
    if recipe.needs and scale == "full" and "init" not in given and given.get("pretrained", True) and runs:
        raise VitletError(f"{name} begins with {recipe.needs}; or train from scratch: --no-pretrained.")
    return over_recipe(values, given)


def start(
    config: RunConfig,
    command: list[str],
    given: dict[str, Any],
    choices: str = "nothing",
    workers: Workers | None = None,
) -> int:
    """Train in ``nproc`` processes, each started by the same command, and print the result.

    Args:
        config: the settings.
        command: that they were given by.
        given: those of them that the command gives.
        choices: what is left to us, as `run_config` says.
        workers: processes that train members of a search at the same time.
    """
    if config.resume is None:
        require_sources(config)
    process = this_process()
    if (config.nproc or 1) > 1 and not process.launched:
        from vitlet.training.launch import launch

        return launch(command, config.nproc or 1)
    from vitlet.cli.summary import print_result
    from vitlet.training.choice import choose, smallest
    from vitlet.training.clock import Stopwatch, budget_seconds
    from vitlet.training.loop import train

    keep_freed_memory()
    watch = Stopwatch.of_process()
    if (begun := _begun_search(config, given)) is not None:
        return _search(begun, None, given, watch, None) or 0
    choice = choose(config, given) if choices == "all" or is_released(config, given) else None
    config = choice.config if choice else config
    if choice and config.minutes and not process.launched and _search(None, choice, given, watch, workers) == 0:
        return 0
    try:
        result = train(config, given=given, open_tasks=choices == "tasks" and not choice, choice=choice, watch=watch)
    except TooShortError as problem:
        smaller = smallest(choice, given) if choice and watch.used(config) < (budget_seconds(config) or 0) else None
        if smaller is None:
            raise
        if process.first:
            print(f"vitlet: {problem}\nvitlet: the smallest model instead, {smaller.config.model}:", file=sys.stderr)
        result = train(smaller.config, given=given, choice=smaller, watch=watch)
    if process.first:
        print_result(result)
    return 0
