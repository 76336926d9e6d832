"""The layer rule: a room imports only rooms that stand below it in docs/architecture.md."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from builders import ROOT

PACKAGE = ROOT / "src" / "vitlet"
MOST_FILES = 12
MOST_LINES = 15


def layers() -> list[list[str]]:
    """The lines of the block, from the top: the names of each, up to its comment."""
    block = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    heads = [line.split("  ")[0] for line in block.splitlines()]
    return [head.replace("|", " ").split() for head in heads]


def level(room: str) -> int:
    return next(number for number, names in enumerate(layers()) if room in names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"}


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, at its top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def ours(name: str) -> set[str]:
    """The modules of vitlet that a module imports."""
    return {module.removeprefix("vitlet.") for module in imports(MODULES[name])} & set(MODULES)


def room(module: str) -> str:
    return module.partition(".")[0]


def test_the_rule_names_every_room_and_stays_short() -> None:
    named = [name for line in layers() for name in line]
    assert sorted(named) == sorted({room(module) for module in MODULES})
    assert len(layers()) <= MOST_LINES


def test_the_root_has_few_files() -> None:
    files = [path.name for path in PACKAGE.iterdir() if path.is_file()]
    assert len(files) <= MOST_FILES, sorted(files)


@pytest.mark.parametrize("name", MODULES)
def test_imports_only_from_below(name: str) -> None:
    lowest = len(layers()) - 1  # its files may import each other
    for imported in ours(name):
        if room(imported) != room(name) and level(room(imported)) < lowest:
            assert level(room(imported)) > level(room(name)), f"{name} imports {imported}, which stands above it"


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) == "data"])
def test_data_knows_only_files_of_the_last_line(name: str) -> None:
    assert {room(imported) for imported in ours(name)} <= {"data", "errors", "pictures", "processes", "values"}


@pytest.mark.parametrize("name", MODULES)
def test_only_backbones_and_models_know_timm(name: str) -> None:
    knows = any(module.split(".")[0] == "timm" for module in imports(MODULES[name]))
    assert not knows or room(name) in ("backbones", "models") or name == "objective.timm_task"


def test_tasks_do_not_import_each_other() -> None:
    from vitlet.tasks import TASKS

    tasks = {path.partition(":")[0].removeprefix("vitlet.") for path in TASKS.values()}
    for name in tasks:
        assert not ours(name) & (tasks - {name})


def test_no_cycle() -> None:
    """Walk the imports depth first; a module that is met again on the way is a cycle. Packages hand on names only."""
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name in done:
            return
        for imported in sorted(ours(name)):
            if not name.startswith(f"{imported}."):  # its own package
                walk(imported, (*way, name))
        done.add(name)

    for name in MODULES:
        walk(name, ())


SHARED_NAMES = {"run", "parser", "checkpoint_filter_fn"}
"""Of every command; asked for by timm of every model."""


def test_a_public_name_has_one_meaning() -> None:
    """No two modules define the same public name; a name that is handed on by a package is imported, not defined."""
    homes: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names = [node.name]
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            else:
                continue
            for name in names:
                homes.setdefault(name, set()).add(module)
    clashes = {name: found for name, found in homes.items() if len(found) > 1 and not name.startswith("_")}
    assert not {name: found for name, found in clashes.items() if name not in SHARED_NAMES}
