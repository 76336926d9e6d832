"""Adding a task is four edits and nothing else: its file, a line in the registry, a test, a card."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from builders import ROOT

COPIED = ["src", "docs", "tests/builders", "tests/conftest.py", "tests/test_api.py", "tests/test_layers.py"]
COPIED += ["tests/tasks/test_suite.py", "pyproject.toml", "CHANGELOG.md"]

LINE = "    from vitlet.tasks.border import Border as Border\n"
TEST = """import vitlet
from vitlet import Border
from vitlet.testing import TaskSuite


class BorderSuite(TaskSuite):
    task = Border

    def slow_loss(self, task, tokens, coords):
        total, (batch, _, height, width) = 0.0, tokens.shape
        for image in range(batch):
            places = coords[image if len(coords) > 1 else 0].tolist()
            for token, (row, column) in zip(tokens[image].flatten(1).T, places, strict=True):
                off = task.head(token).item() - min(row, column, height - 1 - row, width - 1 - column)
                total += abs(off) if task.loss.__name__ == "l1_loss" else off**2
        return total / (batch * height * width)


def test_equals_a_slow_loop():
    BorderSuite().test_equals_the_slow_loop()


def test_it_is_public():
    assert "Border" in vitlet.__all__ and vitlet.tasks.Border is Border
    assert "border_cells" in vitlet.functional.__all__ and vitlet.functional.border_cells
"""
CARD = """# border: how far is the border?

| task | asks | needs | heads |
|---|---|---|---|
| `border` | the distance of each token from the border | any grid | linear |
"""


def run(folder: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_four_edits_add_a_task(tmp_path: Path) -> None:
    for name in COPIED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    tasks = tmp_path / "src" / "vitlet" / "tasks"

    example = (ROOT / "examples" / "add_a_task.py").read_text(encoding="utf-8").partition("\n\nif __name__")[0]
    (tasks / "border.py").write_text(f'{example}\n\n__all__ = ["Border", "border_cells"]\n', encoding="utf-8")
    registry = (tasks / "__init__.py").read_text(encoding="utf-8")
    edited = registry.replace("    # isort: on\n", f"{LINE}    # isort: on\n")
    (tasks / "__init__.py").write_text(edited, encoding="utf-8")
    (tmp_path / "tests" / "tasks" / "test_border.py").write_text(TEST, encoding="utf-8")
    (tmp_path / "docs" / "tasks" / "border.md").write_text(CARD, encoding="utf-8")

    assert "border: Tell how far each token is from the border. (suggested weight 0.3)" in run(
        tmp_path, "-m", "vitlet", "tasks"
    )
    chosen = "border or names_are_these or one_card or function_is or import_each_other or every_room"
    told = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "-k", chosen, "tests")
    assert " passed" in told
