"""Registry of tasks: built-in ones and those of installed packages. Imports none of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from vitlet.errors import VitletError


def typed_imports(file: str | Path) -> dict[str, str]:
    """Name -> module of the lines ``from MODULE import NAME as NAME`` that a file has for type checkers only."""
    text = Path(file).read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^    from ([\w.]+) import (\w+) as \2$", text, re.MULTILINE)}


PUBLIC_TASKS = typed_imports(Path(__file__).with_name("__init__.py"))
"""Class of a built-in task -> module."""

BUILT_IN = {
    module.rpartition(".")[2].replace("_", "-"): f"{module}:{class_name}" for class_name, module in PUBLIC_TASKS.items()
}
"""Name on the command line -> module and class."""

GROUP = "vitlet.tasks"
"""The group of entry points by which an installed package brings tasks of its own."""


@cache
def installed_tasks() -> dict[str, str]:
    """Tasks of other installed packages: name -> module and class; refuses names that are taken or no names."""
    from importlib.metadata import entry_points  # a package of its own weight, and `import vitlet` comes by here

    found: dict[str, str] = {}
    owners = dict.fromkeys(BUILT_IN, "vitlet")
    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else "an installed package"
        if owners.get(point.name, package) != package or point.name in BUILT_IN:
            raise VitletError(
                f"the package {package} brings a task {point.name!r}, a name that {owners[point.name]} has already."
                f" Uninstall one of them, or rename its entry point in the group {GROUP!r}."
            )
        if not re.fullmatch(r"[a-z][a-z0-9-]*", point.name) or ":" not in point.value:
            raise VitletError(
                f"the package {package} brings a task as {point.name} = {point.value}; its entry point needs a name of"
                " small letters, digits and hyphens, and a value MODULE:CLASS."
            )
        found[point.name], owners[point.name] = point.value, package
    return found


class _Known(Mapping[str, str]):
    """Mapping of the built-in and installed tasks; installed packages are searched on first use."""

    def __getitem__(self, name: str) -> str:
        return BUILT_IN[name] if name in BUILT_IN else installed_tasks()[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*BUILT_IN, *installed_tasks()))

    def __len__(self) -> int:
        return len(BUILT_IN) + len(installed_tasks())


TASKS: Mapping[str, str] = _Known()
"""Every task there is: name -> module and class."""
