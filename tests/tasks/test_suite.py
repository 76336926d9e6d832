"""Every built-in task by the suite that tasks of other packages inherit, and the examples of their docstrings."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import timm
import torch

import vitlet
from builders.teachers import residual
from vitlet.tasks import TASKS
from vitlet.tasks.declared import load_task
from vitlet.testing import TaskSuite

NARROW = {"hidden": 32, "pairs": 16}
SPECIAL: dict[str, dict[str, Any]] = {
    "drloc": {"settings": [{**NARROW, "variant": variant} for variant in ("l1", "signed", "ce", "reg", "all")]},
    "rotation": {"sides": (4, 4), "views": False},
    "guidance": {"settings": [{"teacher": residual((12, 20))}, {"teacher": residual((12, 20)), "normalise": False}]},
}
"""Where a task is not for every grid and view, needs a teacher, or is slow with the options that it has by default."""

for name in TASKS:
    title = f"Test{load_task(name).__name__}"
    globals()[title] = type(title, (TaskSuite,), {"task": load_task(name), **SPECIAL.get(name, {})})


@pytest.mark.parametrize("name", TASKS)
def test_the_example_in_the_docstring_runs(name: str) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=8, depth=2, num_heads=2)
    names: dict[str, Any] = {
        "vitlet": vitlet,
        "timm": timm,
        "model": model,
        "images": torch.randn(2, 3, 16, 16),
        "labels": torch.tensor([0, 1]),
    }
    names |= {"criterion": torch.nn.CrossEntropyLoss(), load_task(name).__name__: load_task(name)}
    found = doctest.DocTestFinder(recurse=False).find(load_task(name), globs=names)
    assert found and found[0].examples
    assert doctest.DocTestRunner().run(found[0]).failed == 0
