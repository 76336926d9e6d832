"""Options read from a task's source, and tasks of installed packages: in this process, without starting the command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest

import vitlet.tasks
from vitlet.errors import VitletError
from vitlet.tasks import registry
from vitlet.tasks.declared import (
    Option,
    _classes,
    declared_options,
    declared_weight,
    load_task,
    options_of,
    require_task,
    summary,
    textual,
)
from vitlet.tasks.registry import BUILT_IN, TASKS, installed_tasks, typed_imports

CACHED = (installed_tasks, _classes, declared_options, declared_weight, summary)
HEAD = "from vitlet.tasks.task import Task\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, and nothing remembered of the tasks that are installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for each in CACHED:
        each.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    for each in CACHED:
        each.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("edges", "others")]:
        del sys.modules[name]


def install(site: Path, entries: str, text: str = "", *, package: str = "edges") -> None:
    """A package with a module ``task``, and its metadata."""
    (site / package / "deep").mkdir(parents=True, exist_ok=True)
    (site / package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (site / package / "deep" / "task.py").write_text(text)
    about = site / f"{package}-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[vitlet.tasks]\n{entries}\n")


def of(body: str, *, head: str = HEAD) -> dict[str, Option]:
    """The options of a class ``Edge`` with this body."""
    return options_of(f"{head}class Edge(Task):\n{body}", "Edge", "edges.deep.task")


def test_tasks_are_imported_when_they_are_asked_for() -> None:
    assert isinstance(vitlet.tasks, ModuleType)
    assert "DRLoc" not in vars(vitlet.tasks)
    assert vitlet.tasks.DRLoc is load_task("drloc")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        vitlet.tasks.Nothing  # noqa: B018


def test_options_with_their_types_defaults_and_help() -> None:
    found = of(
        '    """An edge.\n\n    Args:\n        width: in cells\n            or more.\n        kind: of edge.\n    """\n'
        "    def __init__(self, *, width: int | None = None, kind: Literal['a', 'b'] = 'a', teacher: Run | str = '',\n"
        "        share: float = -0.5) -> None: ...\n"
    )
    assert found == {
        "width": Option(int | None, None, "in cells or more."),
        "kind": Option(Literal["a", "b"], "a", "of edge."),
        "teacher": Option(str, "", ""),
        "share": Option(float, -0.5, ""),
    }
    assert of("    pass\n") == {}


@pytest.mark.parametrize(
    "arguments",
    ["a: int = 1", "*a, b: int = 1", "*, b: int = 1, **rest", "*, b", "*, b: int", "*, b=1", "*, b: Run = 1"],
)
def test_constructors_that_cannot_be_read(arguments: str) -> None:
    sentence = (
        "keyword-only options" if arguments[:2] != "*," or "rest" in arguments else "'b' of task 'Edge' needs a type"
    )
    with pytest.raises(VitletError, match=sentence):
        of(f"    def __init__(self, {arguments}) -> None: ...\n")


def test_a_default_must_be_literal() -> None:
    with pytest.raises(VitletError, match="a literal default"):
        of("    def __init__(self, *, b: int = 1 + x) -> None: ...\n")


def test_bases_declare_and_explain() -> None:
    source = (
        "from vitlet.tasks.grid_task import GridTask as Base\n"
        'class Middle(Base):\n    """Middle.\n\n    Args:\n        tap: here.\n    """\n'
        'class Edge(Middle):\n    """Edge."""\n'
    )
    found = options_of(source, "Edge", "edges.deep.task")
    assert list(found) == ["pool", "tap"]
    assert found["tap"].help == "here."  # the nearer class has the last word
    assert found["pool"].help.startswith("average pooling of the grid")
    own = options_of(source + "    def __init__(self, *, a: int = 1) -> None: ...\n", "Edge", "edges.deep.task")
    assert list(own) == ["a"]


def test_types_of_a_union_that_can_be_written() -> None:
    assert textual(int) is int
    assert textual(int | None) == int | None
    assert textual(Path | str | Literal["a"]) == str | Literal["a"]


def test_an_installed_task_is_read_without_being_imported(site: Path) -> None:
    body = '    """Find edges.\n\n    More.\n    """\n\n    name = "edge"\n    suggested_weight: float = 0.25\n'
    text = f"{HEAD}class Edge(Task):\n{body}    def __init__(self, *, width: int = 2) -> None: ...\n"
    install(site, "edge = edges.deep.task:Edge\nrim = edges.deep.task:Rim", text)
    assert installed_tasks() == {"edge": "edges.deep.task:Edge", "rim": "edges.deep.task:Rim"}
    assert list(TASKS) == [*BUILT_IN, "edge", "rim"]
    assert len(TASKS) == len(BUILT_IN) + 2
    assert require_task("edge") == TASKS["edge"] == "edges.deep.task:Edge"
    assert TASKS["drloc"] == "vitlet.tasks.drloc:DRLoc"
    assert declared_options("edge") == {"width": Option(int, 2, "")}
    assert (declared_weight("edge"), declared_weight("drloc"), declared_weight("sprel")) == (0.25, 0.5, 1.0)
    assert summary("edge") == "Find edges."
    with pytest.raises(VitletError, match="'rim' needs a class Rim written in its own module"):
        declared_options("rim")
    assert not any(name.startswith("edges") for name in sys.modules)


def test_an_unknown_task_has_a_nearest_one() -> None:
    with pytest.raises(VitletError, match=r"unknown task 'drlok'\. Did you mean 'drloc'.* Known: angle, "):
        require_task("drlok")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("drloc = edges.deep.task:Edge", "'drloc', a name that vitlet has already"),
        ("Edge = edges.deep.task:Edge", "small letters, digits and hyphens"),
        ("edge = edges.deep.task", "a value MODULE:CLASS"),
    ],
)
def test_names_that_are_refused(site: Path, entry: str, sentence: str) -> None:
    install(site, entry)
    with pytest.raises(VitletError, match=sentence):
        installed_tasks()


def test_two_packages_with_one_name(site: Path) -> None:
    install(site, "edge = edges.deep.task:Edge")
    install(site, "edge = others.deep.task:Edge", package="others")
    with pytest.raises(VitletError, match=r"brings a task 'edge', a name that (edges|others) has already"):
        installed_tasks()


@pytest.mark.parametrize(
    ("entry", "text", "sentence"),
    [
        ("edge = edges.gone:Edge", "", "module edges.gone that is not there as a Python file"),
        ("edge = edges.deep:Edge", "", "module edges.deep that is not there as a Python file"),
        ("edge = nowhere:Edge", "", "module nowhere that is not there as a Python file"),
        ("edge = edges.deep.task:Edge", "class Edge(:\n", "which cannot be read: "),
        ("edge = edges.deep.task:Edge", f"{HEAD}class Edge(Task):\n    suggested_weight = x\n", "a literal number"),
    ],
)
def test_sources_that_cannot_be_read(site: Path, entry: str, text: str, sentence: str) -> None:
    install(site, entry, text)
    with pytest.raises(VitletError, match=sentence):
        declared_weight("edge")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{HEAD}class Edge(Task):\n    name = 'edge'\n", ""),
        (f"{HEAD}class Edge(Task):\n    name = 'rim'\n", "with name = 'edge'"),
        ("class Edge:\n    name = 'edge'\n", "derived from vitlet.tasks.task.Task"),
        ("def Edge(): ...\n", "derived from vitlet.tasks.task.Task"),
        ("", "cannot load the task 'edge'"),
        ("import nothing_of_that_name\n", "cannot load the task 'edge'"),
    ],
)
def test_loading_an_installed_task(site: Path, text: str, sentence: str) -> None:
    install(site, "edge = edges.deep.task:Edge", text)
    (site / "edges" / "__init__.py").write_text("")
    if not sentence:
        assert load_task("edge").name == "edge"
        return
    with pytest.raises(VitletError, match=sentence):
        load_task("edge")


def test_lines_for_type_checkers_name_the_tasks(tmp_path: Path) -> None:
    file = tmp_path / "names.py"
    file.write_text("    from a.b import C as C\n    from a.b import D as E\nfrom a import F as F\n")
    assert typed_imports(file) == {"C": "a.b"}
    assert registry.PUBLIC_TASKS["AttentionDistance"] == "vitlet.tasks.attention_distance"
    assert BUILT_IN["attention-distance"] == "vitlet.tasks.attention_distance:AttentionDistance"


def test_a_base_beside_the_task_is_found_by_its_relative_name(site: Path) -> None:
    text = "from .base import Base\nfrom ..root import Root\nclass Edge(Base, Root):\n    name = 'edge'\n"
    install(site, "edge = edges.deep.task:Edge", text)
    (site / "edges" / "root.py").write_text(f"{HEAD}class Root(Task):\n    suggested_weight = 0.125\n")
    (site / "edges" / "deep" / "base.py").write_text(
        f"{HEAD}class Base(Task):\n    def __init__(self, *, width: int = 2) -> None: ...\n"
    )
    assert declared_options("edge") == {"width": Option(int, 2, "")}
    assert declared_weight("edge") == 0.125
