"""The layer rule: a module imports only modules that stand below it in docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "vitlet"
KNOWS_TIMM = {"backbone", "timm_task"}


def layers() -> list[str]:
    """Modules from the top of the house to its foundation."""
    block = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    return [line.split()[0] for line in block.splitlines()]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_the_picture_matches_the_tree() -> None:
    assert sorted(layers()) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_imports_only_from_below(name: str) -> None:
    order = layers()
    known = {module.removeprefix("vitlet.") for module in imports(MODULES[name]) if module.startswith("vitlet.")}
    for imported in known & set(MODULES):
        assert order.index(imported) > order.index(name), f"{name} imports {imported}, which stands above it"


@pytest.mark.parametrize("name", MODULES)
def test_only_backbones_and_models_know_timm(name: str) -> None:
    knows = any(module.split(".")[0] == "timm" for module in imports(MODULES[name]))
    assert not knows or name in KNOWS_TIMM or name.startswith("models.")


def test_tasks_do_not_import_each_other() -> None:
    shared = {"tasks.task", "tasks.declared", "tasks"}
    tasks = {name for name in MODULES if name.startswith("tasks.")} - shared
    for name in tasks:
        known = {module.removeprefix("vitlet.") for module in imports(MODULES[name])}
        assert not known & (tasks - {name})
