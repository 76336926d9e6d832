"""``vitlet recipes``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from vitlet.cli.flags import Parser
from vitlet.errors import VitletError


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser(prog="vitlet recipes", description="Every published setting, and how to run it.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a table, for its rows; or a recipe, for its settings")
    parser.add_argument("--scale", choices=("full", "small"), default="full", help="of the settings [full]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_all(words)
    from vitlet.experiments.recipes import PAPER_TABLES, all_recipes, find_recipe
    from vitlet.transfer.detection.recipes import RECIPES as DETECTION
    from vitlet.transfer.segmentation.recipes import RECIPES as SEGMENTATION

    transfer: dict[str, Any] = {**DETECTION, **SEGMENTATION}
    if chosen.name in transfer:
        if chosen.scale != "full":
            raise VitletError(f"{chosen.name} has no small size; leave out --scale {chosen.scale}.")
        return _show_transfer(chosen.name, transfer[chosen.name], chosen.json)
    if chosen.name is None or chosen.name in PAPER_TABLES:
        rows = list(all_recipes().values()) if chosen.name is None else list(PAPER_TABLES[chosen.name].recipes)
        if chosen.json:
            print(json.dumps([{"name": row.name, "paper": row.paper, "unit": row.unit} for row in rows], indent=2))
        elif chosen.name is None:
            for table in PAPER_TABLES.values():
                print(f"{table.name:<18} {len(table.recipes):>3} rows  {table.title}")
            print(
                "`vitlet recipes TABLE` lists its rows, `vitlet study TABLE` runs them all. Detection and segmentation:"
            )
            for name, make in transfer.items():
                print(f"{name:<26} {_summary(make)}")
        else:
            print(PAPER_TABLES[chosen.name].title)
            for row in rows:
                print(f"  {row.name:<52} paper: {'not at hand' if row.paper is None else f'{row.paper:g} {row.unit}'}")
        return 0
    recipe = find_recipe(chosen.name)
    values = recipe.values(chosen.scale)
    if chosen.json:
        print(json.dumps(values, indent=2))
        return 0
    import yaml

    paper = "not at hand" if recipe.paper is None else f"{recipe.paper:g} {recipe.unit}"
    size = "" if chosen.scale == "full" else f" --scale {chosen.scale}"
    print(f"{PAPER_TABLES[recipe.table].title}: {recipe.dataset}, {recipe.model}, {recipe.arm}")
    print(f"command: vitlet train --recipe {recipe.name}{size}")
    print(f"paper: {paper}; here: not measured at this size\n" if not size else f"paper, at full size: {paper}\n")
    print(yaml.safe_dump(values, sort_keys=False).rstrip())
    return 0


def _summary(make: Callable[[], Any]) -> str:
    return inspect.getdoc(make).splitlines()[0]  # type: ignore[union-attr]


def _show_transfer(name: str, make: Callable[[], Any], as_json: bool) -> int:
    """A recipe of detection or segmentation: its card and the settings that are not as usual."""
    config = make()
    usual = type(config)().to_dict()
    values = {key: value for key, value in config.to_dict().items() if value != usual.get(key)}
    if as_json:
        print(json.dumps(values, indent=2))
        return 0
    import yaml

    print(f"{name}: {inspect.getdoc(make)}\n")
    print(yaml.safe_dump(values, sort_keys=False).rstrip())
    return 0
