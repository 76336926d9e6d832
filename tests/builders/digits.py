"""Class folders of handwritten digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


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
