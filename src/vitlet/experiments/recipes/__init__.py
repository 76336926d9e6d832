"""Every published setting as a function that returns a `RunConfig`, found by name. Does not import torch."""

from __future__ import annotations

from functools import cache

from vitlet.errors import VitletError, nearest
from vitlet.experiments.recipes.arvit import TABLES as ARVIT
from vitlet.experiments.recipes.arvit import all_recipes as of_arvit
from vitlet.experiments.recipes.drloc import TABLES as DRLOC
from vitlet.experiments.recipes.drloc import all_recipes as of_drloc
from vitlet.experiments.recipes.recipe import Recipe, Scale
from vitlet.experiments.recipes.relvit import TABLES as RELVIT
from vitlet.experiments.recipes.relvit import all_recipes as of_relvit

__all__ = ["TABLES", "Recipe", "Scale", "all_recipes", "find_recipe", "recipes_of"]

TABLES = {**DRLOC, **RELVIT, **ARVIT}
"""Titles by name."""


@cache
def all_recipes() -> dict[str, Recipe]:
    """Every recipe by its name."""
    return {row.name: row for row in (*of_drloc(), *of_relvit(), *of_arvit())}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in all_recipes():
        hint = f" {name} is a table: add a row, see `vitlet recipes {name}`." if name in TABLES else ""
        raise VitletError(
            f"no recipe is called {name!r}.{hint or nearest(name, all_recipes())} `vitlet recipes` lists them."
        )
    return all_recipes()[name]


def recipes_of(table: str) -> list[Recipe]:
    """The rows of a table."""
    if table not in TABLES:
        raise VitletError(f"no table is called {table!r}.{nearest(table, TABLES)} Known: {', '.join(TABLES)}.")
    return [row for row in all_recipes().values() if row.table == table]
