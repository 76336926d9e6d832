"""What is promised to stay: public names, where they are documented, the version and the changelog."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

import vitlet
from builders import ROOT
from vitlet.tasks.registry import BUILT_IN, PUBLIC_TASKS

sys.path.insert(0, str(ROOT / "docs"))
import hooks

PROMISED = [
    "Angle",
    "Attached",
    "AttentionDistance",
    "AttentionSimilarity",
    "Chain",
    "DRLoc",
    "Distance",
    "Jigsaw",
    "LayerBackbone",
    "MegaPatches",
    "Objective",
    "Outcome",
    "PatchAugment",
    "Position",
    "Ramp",
    "Rotated",
    "Rotation",
    "RunConfig",
    "ShuffledPatches",
    "SpatialRelations",
    "Term",
    "TimmBackbone",
    "TimmTrainingTask",
    "VitletError",
    "attach",
    "functional",
    "testing",
    "train",
]


PUBLIC = sorted({*PROMISED, *PUBLIC_TASKS})
PAGE = hooks.filled((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))


def test_the_public_names_are_these() -> None:
    """Taking one away, or renaming it, is a change of the minor version. A task is public by being built in."""
    missing = set(PROMISED) - set(vitlet.__all__)
    assert not missing, f"gone: {missing}"
    assert set(vitlet.__all__) - {"__version__"} == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_there_and_documented(name: str) -> None:
    assert inspect.getdoc(getattr(vitlet, name))
    assert re.search(rf"^::: vitlet\.[\w.]*\b{name}\b", PAGE, flags=re.MULTILINE), f"{name} is not in docs/api.md"


def test_what_the_page_lists_is_there() -> None:
    from importlib import import_module

    for path in re.findall(r"^::: ([\w.]+)$", PAGE, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert inspect.getdoc(getattr(import_module(module), name)), path


def test_every_function_is_on_the_page() -> None:
    from vitlet import functional

    listed = {path.rpartition(".")[2] for path in re.findall(r"^::: ([\w.]+)$", PAGE, re.MULTILINE)}
    assert set(functional.__all__) <= listed


def test_every_task_has_one_card() -> None:
    """A table under the title of a page of docs/tasks names it; the site's table and navigation are made of these."""
    told = [name for rows in hooks.cards().values() for name in hooks.named(rows)]
    assert sorted(told) == sorted(BUILT_IN)
    index = hooks.filled((ROOT / "docs" / "tasks" / "index.md").read_text(encoding="utf-8"))
    assert all(f"`{name}`" in index for name in BUILT_IN)
    navigation = hooks.on_config({"nav": [{"Tasks": [{"Which task": "tasks/index.md"}]}]})["nav"][0]["Tasks"]
    assert [path for entry in navigation[1:] for path in entry.values()] == [f"tasks/{card}" for card in hooks.cards()]


@pytest.mark.parametrize("page", ["api.md", "tasks/index.md"])
def test_the_pages_can_be_read_in_the_repository(page: str) -> None:
    """Every name has its line, and every task its row, as the docstrings and the cards have them."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == hooks.written(text), "run: python docs/hooks.py"
    for name in PUBLIC_TASKS if page == "api.md" else BUILT_IN:
        assert re.search(rf"^(- `vitlet\..*\b{name}`: \S|\| \[.*`{name}`)", text, re.MULTILINE), name


def test_nothing_else_hides_behind_an_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'vitlet' has no attribute 'attatch'"):
        _ = vitlet.attatch
    with pytest.raises(AttributeError, match=r"has no attribute 'Drloc'\. Did you mean 'DRLoc'\?"):
        _ = vitlet.Drloc


def test_the_version_is_semantic_and_in_the_changelog() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", vitlet.__version__)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None and newest.group(1) == vitlet.__version__
