"""Folders of images whose names try to become markup, and small runs on them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders.digits import write_digits
from vitlet.config import RunConfig
from vitlet.training.loop import train

CLASSES = ("<img src=x onerror=document.title='owned'>", '"><svg onload=alert(1)>', "plain & simple")
FILE = "<b onclick='x'>&amp;\u202egnp.png"
QUICK = {
    "model": "vit_tiny_patch16_224",
    "model_kwargs": {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "img_size": 16,
    "batch_size": 8,
    "device": "cpu",
}


def write_hostile(root: Path) -> Path:
    """Digits in train and test folders; every class and every test image has a name that is markup."""
    for split, skip in (("train", 0), ("test", 20)):
        write_digits(root / split, per_class=12, skip=skip)
        for label, name in enumerate(CLASSES):
            folder = (root / split / f"digit {label}").rename(root / split / name)
            if split == "test":
                for number, file in enumerate(sorted(folder.iterdir())):
                    file.rename(folder / f"{number}{FILE}")
    shutil.rmtree(root / "test" / CLASSES[2])
    return root


def train_hostile(root: Path) -> list[Path]:
    """Two runs on the same data: with localization, without; the folder of one has a name that is markup."""
    data = write_hostile(root / "data")
    runs = [root / "<i>drloc & co", root / "plain"]
    drloc = {"task": {"drloc": 0.5}, "drloc": {"hidden": 16, "variant": "signed"}}
    for run, settings in zip(runs, (drloc, {}), strict=True):
        train_quickly(data, run, epochs=2, **settings)
    return runs


def train_quickly(data: Path, run: Path, **settings: Any) -> None:
    """A tiny model, trained for a moment."""
    config = RunConfig.from_dict({**QUICK, "data": str(data), **settings})
    train(replace(config, output=str(run)))
