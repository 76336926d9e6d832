"""The commands behind the published numbers can still be started."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

import pytest

from builders import ROOT

NAMES = sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py"))


class AskedError(Exception):
    """The program got as far as its arguments."""


@pytest.mark.parametrize("name", NAMES)
def test_each_is_imported_and_has_its_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(parser: argparse.ArgumentParser) -> None:
        assert parser.format_help()
        raise AskedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", ask)
    module = import_module(name)
    if hasattr(module, "argparse"):
        with pytest.raises(AskedError):
            module.main()


@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning")  # timm's files
def test_the_loop_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It reaches into the trainer, where names are no promise."""
    import loop

    monkeypatch.setattr(loop, "BATCH", 4)
    monkeypatch.setattr(loop, "VIT", {"patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 1})
    monkeypatch.setattr(sys, "argv", ["loop", "--epochs", "2", "--images", "80", "--output", str(tmp_path / "loop.md")])
    loop.main()
    assert (tmp_path / "loop.md").read_text(encoding="utf-8").count(" ms (") == 2


def test_a_model_is_swept_without_memory_for_its_weights() -> None:
    import models

    row = models.sweep("resnet18")
    assert (row.result, row.device, row.grid) == ("ok", "meta", "512x7x7")
