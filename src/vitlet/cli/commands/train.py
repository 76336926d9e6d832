"""``vitlet train``."""

from __future__ import annotations

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
    return RunConfig.from_dict(given, source=program), given, recipe is None and "task" not in given


def _recipe_settings(name: str, scale: Scale, given: dict[str, Any]) -> dict[str, Any]:
    """A recipe's settings with those given over them; of a recipe in two phases, those of the phase asked for."""
    from vitlet.experiments.recipes import find_recipe
    from vitlet.experiments.studies.definition import over_recipe

    recipe = find_recipe(name)
    values = recipe.values(scale)
    first = values.pop("first", None)
    size = "" if scale == "full" else f" --scale {scale}"
    if given.get("pretrain"):
        if first is None:
            raise VitletError(f"{name} has no pre-training. Run it with: vitlet train --recipe {name}{size}")
        return over_recipe(first, given)
    if first is not None and "init" not in given:
        raise VitletError(
            f"{name} begins with a pre-training. Run: vitlet pretrain --recipe {name}{size} --output FIRST, then:"
            f" vitlet train --recipe {name}{size} --init FIRST"
        )
    if recipe.needs and scale == "full" and "init" not in given and given.get("pretrained", True):
        raise VitletError(f"{name} begins with {recipe.needs}; or train from scratch: --no-pretrained.")
    return over_recipe(values, given)


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
