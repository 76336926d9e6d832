"""Settings of small runs, and runs in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import faults
from vitlet.config import RunConfig
from vitlet.training.run_folder import read_rows

TOLERANCE = 2e-5
"""Of losses and weights between different numbers of processes: sums are taken in another order."""

SMALL = "--model vit_tiny_patch16_224 --model-kwargs patch_size=4 embed_dim=32 depth=1 num_heads=2 --img-size 16"
QUICK = [*SMALL.split(), "--epochs", "1", "-b", "8", "-j", "0", "--device", "cpu"]
VIT = {"patch_size": 4, "embed_dim": 36, "depth": 2, "num_heads": 2}


def config(data: Path, output: Path, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "data": str(data),
        "model_kwargs": VIT,
        "img_size": (16, 16),
        "epochs": 2,
        "batch_size": 8,
        "device": "cpu",
        "output": str(output),
    }
    return RunConfig(**settings | changes)


def run(config: RunConfig, processes: int = 1, **options: Any) -> list[int]:
    started, _ = faults.start(config, processes, Path(f"{config.output}.log"), **options)
    return faults.await_end(started)


def said(config: RunConfig) -> str:
    return Path(f"{config.output}.log").read_text()


def finished(data: Path, path: Path, processes: int = 1, **changes: Any) -> Path:
    config = faults.make_config(data, path, **changes)
    assert run(config, processes) == [0] * processes, said(config)
    return path


def assert_close(first: Path, second: Path, *, names: tuple[str, ...] = ("train/loss", "val/loss")) -> None:
    rows = zip(read_rows(first), read_rows(second), strict=True)
    for one, two in rows:
        assert one.keys() == two.keys()
        for name in names:
            assert one[name] == pytest.approx(two[name], abs=TOLERANCE), name
        assert one["val/count"] == two["val/count"]
    ours, theirs = (load_file(path / "last" / "model.safetensors") for path in (first, second))
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=TOLERANCE, rtol=0.0)
