"""Small real components shared by the tests: image folders made on the spot, one-thread torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def write_digits(root: Path, *, classes: int = 3, per_class: int = 8, size: int = 16, skip: int = 0) -> Path:
    """Class folders of real scans of digits as RGB PNG files."""
    digits = load_digits()
    for label in range(classes):
        folder = root / f"digit {label}"
        folder.mkdir(parents=True)
        scans = digits.images[digits.target == label][skip : skip + per_class]
        for number, scan in enumerate(scans):
            pixels = np.clip(scan * 16, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).convert("RGB").resize((size, size)).save(folder / f"{number:03d}.png")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of eight images, not split."""
    return write_digits(tmp_path / "data")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with train, val and test folders; for tests that only read."""
    root = tmp_path_factory.mktemp("shared")
    for number, split in enumerate(("train", "val", "test")):
        write_digits(root / split, per_class=8 if split == "train" else 4, skip=10 * number)
    return root
