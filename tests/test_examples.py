"""Every example runs from start to end; those inside other people's trainers learn their task."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from builders import ROOT

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
TRAINERS = {
    "fastai_callback": "fastai",
    "hugging_face_trainer": "accelerate",
    "lightning_module": "lightning",
    "timm_training_task": "timm",
}
"""Examples of a task inside another trainer, and the package without which they cannot run."""


def run(name: str, folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES[name])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout
    return done.stdout


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in TRAINERS])
def test_runs(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)


@pytest.mark.parametrize("name", TRAINERS)
def test_drop_ins_are_short(name: str) -> None:
    assert len(EXAMPLES[name].read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.heavy
@pytest.mark.parametrize("name", TRAINERS)
def test_drop_ins_learn_their_task(name: str, tmp_path: Path) -> None:
    if find_spec(TRAINERS[name]) is None:
        pytest.skip(f"needs the package {TRAINERS[name]}, which `make test-all` installs")
    said = run(name, tmp_path)
    right = [float(number) for number in re.findall(r"sprel/accuracy\W+([\d.]+)", said)]
    chance = float(re.findall(r"(?:sprel/chance\W+|chance )([\d.]+)", said)[-1])
    assert right and right[-1] > 3 * chance, said[-500:]
    assert "accuracy" in said.replace("sprel/accuracy", "")  # that of the labels
