"""The mutation tester itself: what it changes, what it leaves alone, and that its table names code that is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mutants
from builders import ROOT

SOURCE = '''"""A text with 3 numbers."""
__all__ = ["f"]
Pair = tuple[int | float, 2]


def f(x: "int | 4" = 1) -> bool:
    """Return 5."""
    if x < 2 and not x == 7:
        raise ValueError(f"{x + 1}")
    assert x != 3
    y = x + 2.5 if x else True
    y *= 2
    if x:
        return None
    return f"{y:.3f}" in ""
'''
EXPECTED = """\
6: 1 -> 2
8: x < 2 and (not x == 7) -> x < 2 or not x == 7
8: x < 2 -> x <= 2
8: 2 -> 3
8: not x == 7 -> x == 7
8: x == 7 -> x != 7
8: 7 -> 8
11: x + 2.5 if x else True -> x + 2.5 if not x else True
11: x + 2.5 -> x - 2.5
11: 2.5 -> 3.5
11: True -> False
12: y *= 2 -> y /= 2
12: 2 -> 3
13: if x: -> if not x:
15: return f'{y:.3f}' in '' -> return None
15: f'{y:.3f}' in '' -> f'{y:.3f}' not in ''
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "small.py").write_text(SOURCE)
    monkeypatch.setattr(mutants, "path_of", lambda name: tmp_path / f"{name}.py")
    return "small"


def test_places_and_changes(module: str) -> None:
    found = sorted(mutants.mutants_of(module), key=lambda each: each.line)
    assert sorted(f"{each.line}: {each.change}" for each in found) == sorted(EXPECTED.splitlines())


def test_a_mutant_differs_in_one_place(module: str) -> None:
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants.mutants_of(module):
        changed = ast.unparse(mutants.mutated(mutant)).splitlines()
        assert len(changed) == len(plain)
        assert sum(one != other for one, other in zip(plain, changed, strict=True)) == 1, mutant


def test_the_hook_loads_the_tree_and_no_other_module(module: str) -> None:
    hook = mutants.Hook(module, ast.parse("VALUE = 7"))
    spec = hook.find_spec("vitlet.small", None)
    assert spec is not None
    assert hook.find_spec("vitlet.other", None) is None
    assert not hook.used
    names: dict[str, int] = {}
    exec(hook.get_code("vitlet.small"), names)
    assert hook.used
    assert names["VALUE"] == 7


def test_kills_are_remembered_and_survivors_are_tried_again(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "test_small.py"
    test.touch()
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "KNOWN", {"tests": {module: ["test_small.py"]}, "equivalent": []})
    answers = {"2 -> 3": "survived"}
    tried: list[ast.Module] = []

    def outcome(name: str, tree: ast.Module, limit: float) -> str:
        tried.append(tree)
        return answers.get(mutant.change, "killed")

    monkeypatch.setattr(mutants, "outcome", outcome)
    every = mutants.mutants_of(module)
    for text, expected in (("", [16, 0]), ("changed", [2, 0])):
        test.write_text(text)
        counts = []
        for _ in range(2):
            tried.clear()
            memory = mutants.Memory(tmp_path / "work" / "known.jsonl")
            for mutant in every:
                assert memory.of(mutant, 1.0) == answers.get(mutant.change, "killed")
            counts.append(len(tried))
            memory.keep()
        assert counts == expected


def test_the_table_names_what_is_there() -> None:
    for module, files in mutants.KNOWN["tests"].items():
        assert mutants.path_of(module).is_file(), module
        assert all((ROOT / "tests" / file).is_file() for file in files), module


def test_every_task_and_view_is_in_the_table() -> None:
    tasks = {f"tasks/{file.stem}" for file in (ROOT / "src" / "vitlet" / "tasks").glob("*.py")}
    assert tasks <= mutants.KNOWN["tests"].keys()


def test_equivalent_mutants_are_still_there() -> None:
    for each in mutants.KNOWN["equivalent"]:
        found = [mutant for mutant in mutants.mutants_of(each["module"]) if mutant.reason == each["reason"]]
        assert found, f"no such place any more: {each}"
