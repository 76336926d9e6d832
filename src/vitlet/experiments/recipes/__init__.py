"""Every published setting as a function that returns a `RunConfig`, found by name. Does not import torch."""

from __future__ import annotations

from functools import cache

from vitlet.errors import VitletError, nearest
from vitlet.experiments.recipes.arvit import ARVIT_TABLES
from vitlet.experiments.recipes.drloc import DRLOC_TABLES
from vitlet.experiments.recipes.recipe import PaperTable, Recipe, Scale
from vitlet.experiments.recipes.relvit import RELVIT_TABLES

__all__ = ["PAPER_TABLES", "PaperTable", "Recipe", "Scale", "all_recipes", "find_recipe", "find_table"]

PAPER_TABLES = {table.name: table for table in (*DRLOC_TABLES, *RELVIT_TABLES, *ARVIT_TABLES)}
"""The published tables by name."""


@cache
def all_recipes() -> dict[str, Recipe]:
    """Every recipe by its name."""
    return {recipe.name: recipe for table in PAPER_TABLES.values() for recipe in table.recipes}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in all_recipes():
        table = f" {name} is a table: add a row, see `vitlet recipes {name}`." if name in PAPER_TABLES else ""
        hint = table or nearest(name, all_recipes())
        raise VitletError(f"no recipe is called {name!r}.{hint} `vitlet recipes` lists them.")
    return all_recipes()[name]


def find_table(name: str) -> PaperTable:
    """The table of that name."""
    if name not in PAPER_TABLES:
        known = f"{nearest(name, PAPER_TABLES)} Known: {', '.join(PAPER_TABLES)}."
        raise VitletError(f"no table is called {name!r}.{known}")
    return PAPER_TABLES[name]
