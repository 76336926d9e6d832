"""What is promised to stay: public names, where they are documented, the version and the changelog."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import torchvision

import vitlet
from builders import ROOT
from vitlet.moved import MOVED
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
    "Masked",
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

DOCUMENTED_0_1 = {
    "attached": ["Attached", "attach"],
    "backbone": ["LayerBackbone", "TimmBackbone"],
    "balance": ["GradientNorms", "Uncertainty"],
    "class_map": ["class_map"],
    "engine": ["train"],
    "explain": ["Explainer"],
    "explain_pictures": ["explain_runs"],
    "export": ["export_run"],
    "features": ["Features", "Grid", "GridShape", "Needs", "Shapes"],
    "patch_augment": ["PatchAugment"],
    "predict": ["Predictor"],
    "report.numbers": ["wilson"],
    "report.page": ["report_runs"],
    "rotated": ["Rotated"],
    "runs": ["read_rows"],
    "schedules": ["Ramp"],
    "summary": ["plot_curves"],
    "timm_task": ["TimmTrainingTask"],
    "view_kinds": ["MegaPatches", "ShuffledPatches"],
    "views": ["Chain"],
}
"""Names in the README, the pages and the examples of version 0.1, by module: of those that have moved."""
STAYED = {
    "config": ["RunConfig", "TaskConfig"],
    "data.images": ["Arrays", "Dataset"],
    "errors": ["VitletError"],
    "functional": ["jigsaw_loss"],
    "models.factory": ["build_model"],
    "objective": ["Objective", "Outcome", "Term"],
    "tasks.angle": ["Angle"],
    "tasks.attention_distance": ["AttentionDistance", "attention_distance_loss"],
    "tasks.attention_similarity": ["AttentionSimilarity"],
    "tasks.distance": ["Distance"],
    "tasks.drloc": ["DRLoc"],
    "tasks.jigsaw": ["Jigsaw"],
    "tasks.position": ["Position"],
    "tasks.rotation": ["Rotation"],
    "tasks.sprel": ["SpatialRelations"],
    "tasks.task": ["Task", "TaskResult"],
    "testing": ["TaskSuite", "token_grid"],
}
"""And of those that have not."""

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
    """With arguments described one by one under their own names: else the site is not built."""
    for path in re.findall(r"^::: ([\w.]+)$", PAGE, re.MULTILINE):
        module, _, name = path.rpartition(".")
        found = getattr(import_module(module), name)
        text = inspect.getdoc(found)
        assert text, path
        section = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
        for described in re.findall(r"^    (\w[^:\n]*): ", section, re.MULTILINE):
            assert described in inspect.signature(found).parameters, f"{path}: {described}"


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
    sections = [{"Tasks": [{"Which task": "tasks/index.md"}]}, {"Commands": []}]
    navigation = hooks.on_config({"nav": sections})["nav"][0]["Tasks"]
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


def examples(name: str) -> str:
    """The code of a public name's examples."""
    parsed = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(vitlet, name)) or "")
    return "".join(example.source for example in parsed)


NOT_CALLED = {"Attached", "Outcome", "functional", "testing", "__version__"}
"""Public names that others return, and modules: no example of their own."""


@pytest.mark.parametrize("name", sorted(set(vitlet.__all__) - NOT_CALLED))
def test_examples_in_docstrings_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = examples(name)
    assert f"{name}(" in code or name == "VitletError"
    trained: list[vitlet.RunConfig] = []
    if name in ("train", "RunConfig"):  # a training of minutes; its settings are checked all the same
        result = SimpleNamespace(val=SimpleNamespace(top1=0.0), path="run")
        monkeypatch.setattr(vitlet, "train", lambda config: trained.append(config) or result, raising=False)
    model = timm.create_model("test_vit", img_size=16, patch_size=4, num_classes=1000)
    images, labels = torch.randn(2, 3, 16, 16), torch.tensor([0, 1])
    given = {"model": model, "images": images, "labels": labels, "criterion": torch.nn.functional.cross_entropy}
    given |= {name: getattr(vitlet, name), "vitlet": vitlet, "timm": timm, "torch": torch, "torchvision": torchvision}
    given["optimizer"] = torch.optim.AdamW(model.parameters())
    code = code.replace("img_size=64)", "img_size=16)") if name == "attach" else code
    exec(compile(code, f"{name}.py", "exec"), given)
    assert len(trained) == (name in ("train", "RunConfig"))


@pytest.mark.parametrize("old", sorted(MOVED))
def test_old_modules_lead_to_the_new_ones(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("report", old):
        monkeypatch.delitem(sys.modules, f"vitlet.{name}", raising=False)
    with pytest.warns(DeprecationWarning) as told:
        module = import_module(f"vitlet.{old}")
    sentence = f"vitlet.{old} is now vitlet.{MOVED[old]}"
    assert [str(each.message) for each in told].count(sentence) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_module(f"vitlet.{old}") is module
    home = import_module(f"vitlet.{MOVED[old]}")
    public = {name for name in vars(home) if not name.startswith("__")}
    assert all(getattr(module, name) is getattr(home, name) for name in public)


@pytest.mark.filterwarnings("ignore:vitlet:DeprecationWarning")
def test_every_documented_path_of_0_1_is_kept() -> None:
    assert DOCUMENTED_0_1.keys() == MOVED.keys() - {"report"}  # the package of two of them
    for module, names in (DOCUMENTED_0_1 | STAYED).items():
        for name in names:
            found = getattr(import_module(f"vitlet.{module}"), name)
            assert getattr(import_module(found.__module__), name) is found


def test_imports_are_written_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning names the line of the caller, and so Python shows it."""
    for name in ("features", "views", "report", "report.page"):
        monkeypatch.delitem(sys.modules, f"vitlet.{name}", raising=False)
        monkeypatch.delattr(vitlet, name, raising=False)
    lines = ["import vitlet.features", "from vitlet import views", "from vitlet.report.page import report_runs"]
    found: dict[str, Any] = {}
    with pytest.warns(DeprecationWarning) as told:
        exec(compile("\n".join(lines), "theirs.py", "exec"), found)
    assert found["vitlet"].features.Features is vitlet.tokens.features.Features
    assert found["views"].Chain is vitlet.Chain
    assert [(each.filename, each.lineno) for each in told] == [("theirs.py", line) for line in (1, 2, 3, 3)]
