"""Every published setting, and how to run it."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import yaml

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vitlet.config import BaseConfig
    from vitlet.experiments.recipes import Recipe, Scale


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet recipes", __doc__)
    parser.add_argument("name", metavar="NAME", nargs="?", help="a table, for its rows; or a recipe, for its settings")
    parser.add_argument("--scale", choices=("full", "small"), default="full", help="of the settings [full]")
    parser.add_usual("--json")
    chosen = parser.parse_all(words)
    from vitlet.experiments.recipes import TABLES, all_recipes, recipes_of
    from vitlet.transfer.recipes import DETECTION_RECIPES, SEGMENTATION_RECIPES

    if chosen.name is not None and chosen.name not in TABLES:
        values, card = _settings(chosen.name, chosen.scale)
        text = f"{card}\n\n{yaml.safe_dump(values, sort_keys=False).rstrip()}"
        print(json.dumps(values, indent=2) if chosen.json else text)
        return 0
    rows = list(all_recipes().values()) if chosen.name is None else recipes_of(chosen.name)
    if chosen.json:
        print(json.dumps([{"name": row.name, "paper": row.paper, "unit": row.unit} for row in rows], indent=2))
    elif chosen.name is None:
        for table, title in TABLES.items():
            print(f"{table:<18} {len(recipes_of(table)):>3} rows  {title}")
        print("`vitlet recipes TABLE` lists its rows, `vitlet study TABLE` runs them all. Detection and segmentation:")
        for name, make in {**DETECTION_RECIPES, **SEGMENTATION_RECIPES}.items():
            print(f"{name:<26} {str(inspect.getdoc(make)).splitlines()[0]}")
    else:
        print(TABLES[chosen.name])
        for row in rows:
            print(f"  {row.name:<52} paper: {_published(row)}")
    return 0


def _settings(name: str, scale: Scale) -> tuple[dict[str, Any], str]:
    """What a recipe sets, of detection and segmentation where it is not as usual; and what there is to say of it."""
    from vitlet.experiments.recipes import TABLES, find_recipe
    from vitlet.transfer.recipes import DETECTION_RECIPES, SEGMENTATION_RECIPES

    transfer: dict[str, Callable[[], BaseConfig]] = {**DETECTION_RECIPES, **SEGMENTATION_RECIPES}
    if make := transfer.get(name):
        if scale != "full":
            raise VitletError(f"{name} has no small size; leave out --scale {scale}.")
        config = make()
        usual = type(config)().to_dict()
        values = {key: value for key, value in config.to_dict().items() if value != usual.get(key)}
        return values, f"{name}: {inspect.getdoc(make)}"
    recipe, paper = find_recipe(name), _published(find_recipe(name))
    size, known = "", f"paper: {paper}; here: not measured at this size"
    if scale != "full":
        size, known = f" --scale {scale}", f"paper, at full size: {paper}"
    title = f"{TABLES[recipe.table]}: {recipe.dataset}, {recipe.model}, {recipe.arm}"
    return recipe.values(scale), f"{title}\ncommand: vitlet train --recipe {recipe.name}{size}\n{known}"


def _published(recipe: Recipe) -> str:
    return "not at hand" if recipe.paper is None else f"{recipe.paper:g} {recipe.unit}"
