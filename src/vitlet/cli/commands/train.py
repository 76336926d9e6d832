"""``vitlet train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.errors import VitletError
from vitlet.processes import this_process

if TYPE_CHECKING:
    from vitlet.config import RunConfig
    from vitlet.experiments.recipes import Scale


def run(words: list[str]) -> int:
    """Run the command."""
    config, given, open_tasks = run_config("vitlet train", "Train a classifier on a folder of images.", words)
    if not words:
        from vitlet.cli.demo import demo

        demo()
        return 0
    return start(config, ["train", *words], given, open_tasks=open_tasks)


def run_config(program: str, about: str, words: list[str], **fixed: bool) -> tuple[RunConfig, dict[str, Any], bool]:
    """The settings of a command line, those of them that it gives, and whether it leaves the choice of tasks to us."""
    parser = Parser(prog=program, description=about)
    parser.add_argument("--recipe", metavar="NAME", help="a published setting, see `vitlet recipes`; or --scale small")
    add_run_flags(parser)
    chosen = parser.parse_all(words)
    recipe = vars(chosen).pop("recipe")
    scale = vars(chosen).pop("scale") if vars(chosen).get("scale") in ("full", "small") else None  # else a share
    settings = run_settings(chosen)
    from vitlet.config import RunConfig

    given = {**settings, **fixed}
    if recipe is not None:
        given = _recipe_settings(recipe, scale or "full", given)
    elif scale is not None:
        raise VitletError(f"--scale {scale} is the size of a recipe; name one with --recipe.")
    elif "init" in given:
        given = _of_first_run(Path(str(given["init"])), given)
    config = RunConfig.from_dict(given, source=program)
    if words and config.resume is None:
        _require_sources(config)
    return config, given, recipe is None and "task" not in given


def _of_first_run(run: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The settings with the model of the run that gives the first weights, where they name no other model."""
    from vitlet.config import RunConfig

    first = RunConfig.read(run / "config.yaml") if (run / "config.yaml").is_file() else {}
    if "job" in first or given.get("model", first.get("model")) != first.get("model"):
        return given
    keys = {"model", "model_kwargs", "img_size", "in_chans"} - given.keys()
    taken = {key: value for key, value in first.items() if key in keys}
    if taken and this_process().first and (this_process().launched or given.get("nproc") is None):
        print(f"taken from {run}: {', '.join(f'{key} {value}' for key, value in taken.items())}")
    return {**taken, **given}


def _require_sources(config: RunConfig) -> None:
    """Refuse data and weights that are not there before torch is imported, which takes seconds."""
    from vitlet.data.named import require_data

    if config.init is not None and not Path(config.init).exists():
        raise VitletError(f"no such run folder or file of weights: {config.init}. --init needs one that is there.")
    require_data(config.data, config.data_dir, download=config.download)


def _recipe_settings(name: str, scale: Scale, given: dict[str, Any]) -> dict[str, Any]:
    """A recipe's settings with those given over them; of a recipe in two phases, those of the phase asked for."""
    from vitlet.experiments.recipes import find_recipe
    from vitlet.experiments.studies.definition import join

    values = find_recipe(name).values(scale)
    first = values.pop("first", None)
    size = "" if scale == "full" else f" --scale {scale}"
    if given.get("pretrain"):
        if first is None:
            raise VitletError(f"{name} has no pre-training. Run it with: vitlet train --recipe {name}{size}")
        return join(first, given)
    if first is not None and "init" not in given:
        raise VitletError(
            f"{name} begins with a pre-training. Run: vitlet pretrain --recipe {name}{size} --output FIRST, then:"
            f" vitlet train --recipe {name}{size} --init FIRST"
        )
    return join(values, given)


def start(config: RunConfig, command: list[str], given: dict[str, Any], *, open_tasks: bool = False) -> int:
    """Train, in as many processes as asked for, each started by the same command, and print the end."""
    process = this_process()
    if (config.nproc or 1) > 1 and not process.launched:
        from vitlet.training.launch import launch

        return launch(command, config.nproc or 1)
    from vitlet.cli.summary import print_result
    from vitlet.training.loop import train

    result = train(config, given=given, open_tasks=open_tasks)
    if process.first:
        print_result(result)
    return 0
