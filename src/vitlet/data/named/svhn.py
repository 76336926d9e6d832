"""SVHN, cropped digits, without its `extra` images: two MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vitlet.data.images import Arrays, Dataset
from vitlet.data.named.folders import roots
from vitlet.data.named.matfile import read_numbers
from vitlet.data.named.official import Official
from vitlet.errors import VitletError


def find_svhn(official: Official, data_dir: Path) -> Dataset | None:
    """``train_32x32.mat``, and ``test_32x32.mat`` beside it."""
    for root in roots(data_dir, official.folders):
        train, test = root / "train_32x32.mat", root / "test_32x32.mat"
        if train.is_file():
            classes = tuple(str(digit) for digit in range(10))
            held = _read(test) if test.is_file() else None
            return Dataset(classes, _read(train), None, held, f"train_32x32.mat and test_32x32.mat in {root}")
    return None


def _read(path: Path) -> Arrays:
    """Height, width, channel, image becomes image, channel, height, width; the label 10 means the digit 0."""
    images, labels = read_numbers(path, "X", "y")
    if images.ndim == 3:  # MATLAB drops the last axis of a single image
        images = images[..., None]
    if images.dtype != np.uint8 or images.shape[:3] != (32, 32, 3) or labels.size != images.shape[3]:
        raise VitletError(
            f"{path} holds images of shape {images.shape} ({images.dtype}) and {labels.size:,} labels; uint8 of shape"
            " (32, 32, 3, N) and N labels are needed. Get it again."
        )
    digits = labels.reshape(-1).astype(np.int64)
    if digits.size and not 1 <= int(digits.min()) <= int(digits.max()) <= 10:
        raise VitletError(
            f"{path} holds the labels {digits.min()} to {digits.max()}; 1 to 10 are needed. Get it again."
        )
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1)))
    return Arrays(pixels, tuple((digits % 10).tolist()))
