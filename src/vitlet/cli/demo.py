"""What `vitlet train` does without data: handwritten digits, with and without DRLoc, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from vitlet.cli.summary import demo_table, say
from vitlet.config import RunConfig, TaskConfig
from vitlet.pictures import plot_curves
from vitlet.training.evaluate import Scores
from vitlet.training.finish import RunResult
from vitlet.training.loop import train
from vitlet.training.run_folder import read_rows


def digits_config() -> RunConfig:
    """A small ViT that suits 8 x 8 scans: 64 wide, 4 deep, patches of 2 x 2 pixels, so 4 x 4 tokens."""
    return RunConfig(
        data="digits",
        model="vit_tiny_patch16_224",
        model_kwargs={"patch_size": 2, "embed_dim": 64, "depth": 4, "num_heads": 4},
        img_size=(8, 8),
        in_chans=1,
        epochs=40,
        batch_size=64,
        lr=2e-3,
        crop="resized",
        scale=0.6,
        hflip=0.0,
        crop_pct=1.0,
        val_fraction=0.2,
    )


def demo(root: Path = Path("runs")) -> dict[str, RunResult[Scores]]:
    """Train both, then print a table and draw the curves."""
    torch.set_num_threads(1)  # so small a network gets slower with more
    number = 1
    while (root / f"demo-{number}").exists():
        number += 1
    folder = root / f"demo-{number}"
    config = digits_config()
    task = TaskConfig(0.5, options={"hidden": 128, "pairs": 32})
    arms = {"labels only": config, "labels + drloc": replace(config, tasks={"drloc": task})}
    say("No DATA given: training a small ViT on scikit-learn's handwritten digits, twice.")
    results = {}
    for name, arm in arms.items():
        output = str(folder / name.replace(" ", "").replace("+", "-"))
        results[name] = train(replace(arm, output=output), title=name)
    rows = {name: read_rows(result.path) for name, result in results.items()}
    picture = folder / "curves.png"
    plot_curves(
        rows,
        picture,
        metrics={
            "val/top1": "validation accuracy, %",
            "train/criterion": "loss on labels",
            "train/drloc/error_cells": "drloc: error in cells",
        },
    )
    demo_table(results)
    say(f"curves: {picture}")
    return results
