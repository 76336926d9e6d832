"""Import paths of version 0.1 that its documentation used; they lead to the modules where their names are now.

A finder at the end of ``sys.meta_path`` is asked only for modules that nobody else finds, so that imports of today's
modules cost nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "attached": "objective.attached",
    "backbone": "backbones",
    "balance": "objective.balance",
    "class_map": "analysis.class_map",
    "engine": "training.loop",
    "explain": "analysis.explain",
    "explain_pictures": "analysis.explain_pictures",
    "export": "inference.export",
    "features": "tokens.features",
    "patch_augment": "tokens.patch_augment",
    "predict": "inference.predict",
    "report": "analysis.report",
    "report.numbers": "statistics",
    "report.page": "analysis.report.page",
    "rotated": "tokens.rotated",
    "runs": "training.run_folder",
    "schedules": "objective.schedules",
    "summary": "pictures",
    "timm_task": "objective.timm_task",
    "view_kinds": "tokens.patch_views",
    "views": "tokens.views",
}
"""Module of 0.1 -> module of today, both below `vitlet`."""


class _Alias(Loader):
    """Hands out the module of today under the old name."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(f"{spec.name} is now {self.home}", DeprecationWarning, stacklevel=2)
        module = ModuleType(spec.name)
        module.__dict__.update(
            {name: value for name, value in vars(import_module(self.home)).items() if not name.startswith("__")}
        )
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Everything is there already."""


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "vitlet" or name not in MOVED:
            return None
        return ModuleSpec(fullname, _Alias(f"vitlet.{MOVED[name]}"), is_package=name == "report")


def keep_old_paths() -> None:
    """Let ``from vitlet.features import Features`` and its like go on working, with a `DeprecationWarning`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
