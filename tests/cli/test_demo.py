"""`vitlet train` without data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from vitlet.cli import demo
from vitlet.cli.summary import demo_table


def test_the_demo_shows_the_choice_and_what_tasks_bring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(demo.few_digits_config(), epochs=1, val_interval=1)
    monkeypatch.setattr(demo, "few_digits_config", lambda: short)
    found = demo.demo(tmp_path, epochs=1, seeds=2)
    assert [len(values) for values in found.values()] == [2, 2]
    printed = capsys.readouterr().out
    assert "chosen for 1,295 images of about 8 px on a CPU" in printed
    assert "seed 1, baseline + spatial tasks: " in printed and "epoch 1/1" in printed
    assert "vit_tiny_patch16_224" not in printed  # of the small runs only the results are printed
    with Image.open(tmp_path / "demo-1" / "demo.png") as picture:
        assert picture.width > 500
    assert (tmp_path / "demo-1" / "baseline-spatialtasks-1" / "result.json").is_file()


def test_the_table_has_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    demo_table({"one": [50.0, 52.0], "two": [60.0, 64.0]})
    printed = capsys.readouterr().out
    assert "51.00 ± 12.71" in printed and "11.00 ± 12.71" in printed
