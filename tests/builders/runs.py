"""Settings of small runs, and runs in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faults
from vitlet.config import RunConfig

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
