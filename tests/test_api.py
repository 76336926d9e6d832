"""What is promised to stay: public names, where they are documented, the version and the changelog."""

from __future__ import annotations

import inspect
import re

import pytest

import vitlet
from builders import ROOT

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    """Taking one away, or renaming it, is a change of the minor version; add new ones here and to docs/api.md."""
    missing = set(PUBLIC) - set(vitlet.__all__)
    assert not missing, f"gone: {missing}"
    assert set(vitlet.__all__) - {"__version__"} == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_there_and_documented(name: str) -> None:
    found = getattr(vitlet, name)
    assert inspect.getdoc(found)
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert re.search(rf"^::: vitlet\.[\w.]*\b{name}\b", page, flags=re.MULTILINE), f"{name} is not in docs/api.md"


def test_what_the_page_lists_is_there() -> None:
    from importlib import import_module

    for path in re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert inspect.getdoc(getattr(import_module(module), name)), path


def test_nothing_else_hides_behind_an_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'vitlet' has no attribute 'attatch'"):
        _ = vitlet.attatch


def test_the_version_is_semantic_and_in_the_changelog() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", vitlet.__version__)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None and newest.group(1) == vitlet.__version__
