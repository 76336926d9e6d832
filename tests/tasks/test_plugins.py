"""Tasks of installed packages: by entry point, in every door, without importing them for ``--help``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from torch import Tensor

from builders import ROOT
from vitlet.testing import TaskSuite

sys.path.insert(0, str(ROOT / "examples"))
from add_a_task import Border

LOUD = 'import sys\nsys.stderr.write("IMPORTED\\n")\n'
SMALL = "--model vit_tiny_patch16_224 --model-kwargs patch_size=4 embed_dim=16 depth=1 num_heads=2 --img-size 8"
QUICK = [*SMALL.split(), "--in-chans", "1", "--epochs", "1", "--fraction", "0.1", "-j", "0", "--hflip", "0"]


class TestBorder(TaskSuite):
    """The example, by the common suite."""

    task = Border

    def slow_loss(self, task: Border, tokens: Tensor, coords: Tensor) -> float:
        total, (batch, _, height, width) = 0.0, tokens.shape
        for image in range(batch):
            places = coords[image if len(coords) > 1 else 0].tolist()
            for token, (row, column) in zip(tokens[image].flatten(1).T, places, strict=True):
                off = task.head(token).item() - min(row, column, height - 1 - row, width - 1 - column)
                total += abs(off) if task.loss.__name__ == "l1_loss" else off**2
        return total / (batch * height * width)


def test_the_class_of_the_page_passes_the_suite_that_it_tells_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/add_a_task.md: its first block, as the file that a reader would make of it."""
    page = (ROOT / "docs" / "add_a_task.md").read_text(encoding="utf-8")
    (tmp_path / "row.py").write_text(page.split("```python\n")[1].split("```")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    suite = type("TestRow", (TaskSuite,), {"task": import_module("row").Row})()
    tests = [name for name in dir(suite) if name.startswith("test_")]
    assert len(tests) > 5
    for name in tests:
        getattr(suite, name)()


def install(folder: Path, entry: str, *, package: str = "borderland", text: str | None = None) -> None:
    """What pip would leave: a package whose import is heard, and its metadata."""
    source = text if text is not None else LOUD + (ROOT / "examples" / "add_a_task.py").read_text(encoding="utf-8")
    module = folder / package / "deep"
    module.mkdir(parents=True, exist_ok=True)
    (folder / package / "__init__.py").write_text(LOUD, encoding="utf-8")
    (module / "__init__.py").write_text(LOUD, encoding="utf-8")
    (module / "border.py").write_text(source, encoding="utf-8")
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(f"[vitlet.tasks]\n{entry}\n", encoding="utf-8")


def vitlet(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "vitlet", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_an_installed_task_has_a_name_and_flags(tmp_path: Path) -> None:
    install(tmp_path, "border = borderland.deep.border:Border")
    shown = vitlet(tmp_path, "tasks")
    assert "border: Tell how far each token is from the border. (suggested weight 0.3)" in shown.stdout
    assert "--border.loss" in shown.stdout and "l1 or squared error" in shown.stdout
    assert "IMPORTED" not in shown.stderr
    helped = vitlet(tmp_path, "train", "--help-task", "border")
    assert "--border.loss l1|mse" in helped.stdout and "--border.view" in helped.stdout
    assert "IMPORTED" not in helped.stderr

    wrong = vitlet(tmp_path, "train", "digits", "--task", "bordr=1")
    assert wrong.returncode == 2 and "Did you mean 'border'" in wrong.stderr
    wrong = vitlet(tmp_path, "train", "digits", "--task", "border=1", "--border.loss", "huber")
    assert wrong.returncode == 2 and "must be one of l1, mse" in wrong.stderr


@pytest.mark.heavy
def test_an_installed_task_trains(tmp_path: Path) -> None:
    install(tmp_path, "border = borderland.deep.border:Border")
    done = vitlet(tmp_path, "train", "digits", *QUICK, "--task", "border", "--border.loss", "mse", "--output", "run")
    assert done.returncode == 0, done.stderr
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert settings["task"] == {"border": 0.3} and settings["border"] == {"loss": "mse"}
    assert "train/border/error_cells" in (tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8")
    again = vitlet(tmp_path, "plan", "-c", "run/config.yaml")  # a door that reads the file again
    assert again.returncode == 0, again.stderr


BAD = "from vitlet.tasks.task import Task\nclass Border(Task):\n    '''Bad.'''\n    name = 'border'\n"


@pytest.mark.parametrize(
    ("entry", "text", "sentence"),
    [
        (
            "drloc = borderland.deep.border:Border",
            None,
            "borderland brings a task 'drloc', a name that vitlet has already",
        ),
        ("Bad_Name = borderland.deep.border:Border", None, "needs a name of small letters, digits and hyphens"),
        ("border = borderland.deep.border", None, "a value MODULE:CLASS"),
        ("border = borderland.missing:Border", None, "'border' is in a module borderland.missing that is not there"),
        ("border = borderland.deep.border:Edge", None, "'border' needs a class Edge written in its own module"),
        ("border = borderland.deep.border:Border", "class Border(:\n", "which cannot be read: "),
        (
            "border = borderland.deep.border:Border",
            f"{BAD}    def __init__(self, *, a): ...\n",
            "'a' of task 'border' needs",
        ),
        ("border = borderland.deep.border:Border", f"{BAD}    def __init__(self, a=1): ...\n", "keyword-only options"),
        ("border = borderland.deep.border:Border", f"{BAD}    suggested_weight = 1 + x\n", "a literal number"),
        pytest.param(
            "edge = borderland.deep.border:Border",
            None,
            "derived from vitlet.tasks.task.Task with name = 'edge'",
            marks=pytest.mark.heavy,  # it has to be imported
        ),
        ("data = borderland.deep.border:Border", None, "'data' is a setting and, by an installed package, a task"),
    ],
)
def test_broken_packages_are_told_in_a_sentence(tmp_path: Path, entry: str, text: str | None, sentence: str) -> None:
    install(tmp_path, entry, text=text)
    name = entry.partition(" ")[0]
    done = vitlet(tmp_path, "train", "digits", *QUICK, "--task", name)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_broken_package_does_not_stop_the_others(tmp_path: Path) -> None:
    install(tmp_path, "border = borderland.missing:Border")
    shown = vitlet(tmp_path, "tasks")
    assert "drloc: " in shown.stdout and "left out: the task 'border' is in a module borderland.missing" in shown.stdout
    install(tmp_path, "border = borderland.deep.border:Border")
    install(tmp_path, "border = farland.deep.border:Border", package="farland")
    shown = vitlet(tmp_path, "tasks")
    assert shown.returncode == 2 and "brings a task 'border', a name that" in shown.stderr
    shutil.rmtree(tmp_path / "farland-1.0.dist-info")
    assert vitlet(tmp_path, "tasks").returncode == 0
