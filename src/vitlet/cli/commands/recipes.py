"""List the published settings (recipes), by table of the papers, and print the settings of one."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import yaml

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError

if TYPE_CHECKING:
    from vitlet.experiments.recipes import Recipe, Scale


def parser() -> Parser:
    """The arguments of the command."""
    example = "vitlet recipes drloc_table4\nvitlet recipes drloc_table4/cifar10/swin_t/drloc --recipe-size small"
    parser = Parser("vitlet recipes", __doc__, example=example)
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="table, to list its rows; recipe, to print its settings"
    )
    sizes, about = ("full", "small"), "full: as published; small: reduced to one CPU core (default: full)"
    parser.add_argument("--recipe-size", "--scale", dest="scale", choices=sizes, default="full", help=about)
    parser.add_usual("--json")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    from vitlet.experiments.recipes import PAPER_TABLES, all_recipes

    if chosen.name is not None and chosen.name not in PAPER_TABLES:
        values, card = _settings(chosen.name, chosen.scale)
        text = f"{card}\n\n{yaml.safe_dump(values, sort_keys=False).rstrip()}"
        print(json.dumps(values, indent=2) if chosen.json else text)
        return 0
    rows = list(all_recipes().values()) if chosen.name is None else list(PAPER_TABLES[chosen.name].recipes)
    if chosen.json:
        print(json.dumps([{"name": row.name, "paper": row.paper, "unit": row.unit} for row in rows], indent=2))
    elif chosen.name is None:
        for table in PAPER_TABLES.values():
            print(f"{table.name:<18} {len(table.recipes):>3} rows  {table.title}")
        print("`vitlet recipes TABLE` lists its rows, `vitlet study TABLE` runs them all. Detection and segmentation:")
        for name, make in _transfer().items():
            print(f"{name:<26} {str(inspect.getdoc(make)).splitlines()[0]}")
    else:
        print(PAPER_TABLES[chosen.name].title)
        for row in rows:
            print(f"  {row.name:<52} paper: {_published(row)}")
    return 0


def _transfer() -> dict[str, Any]:
    """The recipes of detection and segmentation."""
    from vitlet.transfer.recipes import DETECTION_RECIPES, SEGMENTATION_RECIPES

    return {**DETECTION_RECIPES, **SEGMENTATION_RECIPES}


def _settings(name: str, scale: Scale) -> tuple[dict[str, Any], str]:
    """Settings of a recipe (of detection and segmentation those that differ from the defaults), and remarks."""
    from vitlet.experiments.recipes import PAPER_TABLES, find_recipe

    if make := _transfer().get(name):
        if scale != "full":
            raise VitletError(f"{name} has no small size; leave out --recipe-size {scale}.")
        config = make()
        usual = type(config)().to_dict()
        values = {key: value for key, value in config.to_dict().items() if value != usual.get(key)}
        return values, f"{name}: {inspect.getdoc(make)}"
    recipe, paper = find_recipe(name), _published(find_recipe(name))
    size, known = "", f"paper: {paper}; here: not measured at this size"
    if scale != "full":
        size, known = f" --recipe-size {scale}", f"paper, at full size: {paper}"
        full, data = recipe.config().data, recipe.config(scale).data
        known += "" if data == full else f"; {data} stands for {full} here"
    table = PAPER_TABLES[recipe.table]
    lines = [f"{table.title}: {recipe.dataset}, {recipe.model}, {recipe.arm}", *_commands(recipe, scale, size), known]
    return recipe.values(scale), "\n".join([*lines, *filter(None, [table.note])])


def _commands(recipe: Recipe, scale: Scale, size: str) -> list[str]:
    """Commands that run a recipe, and the files that they need."""
    command, before = f"vitlet train --recipe {recipe.name}{size}", []
    if recipe.first_config(scale) is not None:
        before = [f"command: vitlet pretrain --recipe {recipe.name}{size} --output FIRST"]
        command += " --init FIRST"
    elif recipe.needs and scale == "full":
        before = [f"needs: {recipe.needs}"]
        command += " --init FILE"
    return [*before, f"command: {command}"]


def _published(recipe: Recipe) -> str:
    return "not reported" if recipe.paper is None else f"{recipe.paper:g} {recipe.unit}"
