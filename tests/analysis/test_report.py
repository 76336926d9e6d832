"""The report: right numbers, everything escaped, and a sentence for whatever is missing."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from builders.digits import write_digits
from builders.hostile import CLASSES, FILE, train_hostile, train_quickly
from builders.pages import read
from vitlet.analysis.report.charts import Series, line_chart, ticks
from vitlet.analysis.report.record import chosen_settings, read_run, run_names
from vitlet.analysis.report.rendering import Number, render
from vitlet.cli import main
from vitlet.statistics import calibration, confusion, paired_difference, student, wilson


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return train_hostile(tmp_path_factory.mktemp("runs"))


def test_wilson_by_its_definition() -> None:
    found = wilson(8, 10)  # the interval holds the shares p with |p - 0.8| <= z sqrt(p (1 - p) / n)
    inside = [
        p / 1e5 for p in range(100001) if abs(p / 1e5 - 0.8) <= 1.959964 * math.sqrt(p / 1e5 * (1 - p / 1e5) / 10)
    ]
    assert found.value == 80
    assert found.low == pytest.approx(100 * inside[0], abs=0.01)
    assert found.high == pytest.approx(100 * inside[-1], abs=0.01)
    assert wilson(0, 5).low == pytest.approx(0)
    assert wilson(5, 5).high == pytest.approx(100)


def test_student_of_three_runs() -> None:
    found = student([70.0, 72.0, 74.0])
    assert found.value == 72
    assert found.high - found.value == pytest.approx(4.302653 * 2 / math.sqrt(3), rel=1e-5)  # t of 2 degrees


def test_calibration_by_a_slow_loop() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.2, 1, 400)
    confidence[0] = 1.0
    right = generator.uniform(size=400) < confidence**2
    expected = 0.0
    for low in range(15):
        inside = [index for index in range(400) if low / 15 < confidence[index] <= (low + 1) / 15]
        if inside:
            gap = abs(confidence[inside].mean() - right[inside].mean())
            expected += 100 * gap * len(inside) / 400
    found = calibration(confidence, right)
    assert found.error == pytest.approx(expected)
    assert sum(found.counts) == 400


def test_confusion_and_paired_difference() -> None:
    labels, guesses = np.array([0, 0, 1, 2]), np.array([0, 2, 1, 1])
    assert confusion(labels, guesses, 3).tolist() == [[1, 0, 1], [0, 1, 0], [0, 1, 0]]
    first = np.array([True] * 60 + [False] * 40)
    second = np.array([True] * 55 + [False] * 5 + [True] * 25 + [False] * 15)
    found = paired_difference(first, second)
    assert found.value == 20
    differences = second.astype(int) - first.astype(int)
    assert found.high - found.value == pytest.approx(100 * 1.959964 * differences.std() / 10)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (22.1, 36.3), (-3e-5, 4e-4), (5, 5), (0, 0), (1e6, 3e6)])
def test_ticks_enclose(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 9


def test_charts_pass_over_what_is_not_a_number() -> None:
    drawn = line_chart("loss", [Series("<a>", [(1, math.nan), (2, 1.0), (3, math.inf), (4, 2.0)], 0)])
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert "<a>" not in drawn
    assert line_chart("loss", [Series("a", [(1, math.nan)], 0)]) == ""


def test_escaped() -> None:
    def cells(*row: object) -> str:
        return render("table.html", data={"table": {"head": ["a"] * len(row), "rows": [row]}, "lines": ()})

    found = cells('<a href="x">\'&', Number(1.5, "<b>", "<i>"))
    assert "<td><bdi>&lt;a href=&#34;x&#34;&gt;&#39;&amp;</bdi></td>" in found
    assert '<td class="number" data-sort="1.5">&lt;b&gt; <span class="small">&lt;i&gt;</span></td>' in found
    assert "bytes ?, bell \ufffd, turned \ufffd" in cells("bytes \udcff, bell \a, turned \u202e")


def test_two_runs_side_by_side(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "both.html"
    assert main(["report", *map(str, runs), "--output", str(output)]) == 0
    assert str(output) in capsys.readouterr().out
    text, elements, shown = read(output)
    assert "http" not in text.replace("http-equiv", "")  # nothing is loaded from anywhere
    kinds = [kind for kind, _ in elements.found]
    assert kinds.count("script") == 1
    assert "b" in kinds  # ours
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    sources = [attributes["src"] or "" for kind, attributes in elements.found if kind == "img"]
    assert len(sources) > 10
    assert all(source.startswith("data:image/webp;base64,") for source in sources)
    for name in (*CLASSES, runs[0].name, FILE.replace("\u202e", "\ufffd")):
        assert name in shown
    for title in (
        "Comparison",
        "Settings",
        "Data",
        "Curves",
        "Confusion",
        "By class",
        "Reliability",
        "Most confident errors",
    ):
        assert title in shown
    assert "drloc: error, cells" in shown
    assert "loss of drloc" in shown
    assert "weight of drloc" in shown
    assert "places of tokens" in shown
    assert "class activation map: " in shown
    assert "mean attention distance" in shown
    assert "no localization head" in shown
    assert "paired on the same images" in shown
    assert "24 test images" in shown


def test_what_a_reader_needs_to_understand_it(runs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "one.html"
    assert main(["report", str(runs[0]), "--output", str(output)]) == 0
    text, elements, shown = read(output)
    config = read_run(runs[0], "run").config
    assert config.img_size is not None
    sizes = [*config.img_size, *[config.model_kwargs["patch_size"]] * 2]
    assert "{} × {} px, patches of {} × {} px".format(*sizes) in shown
    assert "vit_<wbr>tiny_<wbr>patch16_<wbr>224" in text
    assert "true class: " in shown
    assert "predicted: " in shown
    assert "<div>is " not in text
    assert [kind for kind, _ in elements.found].count("summary") == text.count("<h2>") + 1  # and all settings
    ramps = [attributes for _, attributes in elements.found if attributes.get("class") == "ramp"]
    assert len(ramps) == 2  # of the maps, of the errors
    enlarged = [
        attributes for kind, attributes in elements.found if kind == "img" and attributes.get("class") == "zoom"
    ]
    maps = [each for each in enlarged if "activation" in (each["alt"] or "")]
    assert maps
    assert all(max(int(each["width"] or 0), int(each["height"] or 0)) == 320 for each in maps)
    halves = [attributes for _, attributes in elements.found if attributes.get("class") == "half"]
    assert len(halves) == 2  # reliability and attention distance, side by side


def test_the_numbers_are_those_of_the_run(runs: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "one.html"
    assert main(["report", str(runs[1]), "--output", str(output)]) == 0
    shown = read(output)[2]
    result = json.loads((runs[1] / "result.json").read_text(encoding="utf-8"))
    hits = result["test"]["top1"] / 100 * result["test"]["count"]
    interval = wilson(hits, result["test"]["count"])
    assert f"95 % interval {interval.low:.1f} to {interval.high:.1f}" in shown
    assert "the data or the weights have changed" not in shown
    assert "cpus" in shown  # the machine that the run wrote down


def test_missing_parts_are_said(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = runs[0].parent / "data"
    data.rename(tmp_path / "away")
    output = tmp_path / "gone.html"
    try:
        assert main(["report", str(runs[0]), "--output", str(output)]) == 0
    finally:
        (tmp_path / "away").rename(data)
    shown = read(output)[2]
    assert "there are no predictions: no such" in shown
    assert "validation top-1" in shown or "training loss" in shown
    assert "Confusion" not in shown
    assert main(["report", str(runs[1]), "--images", "7", "--output", str(output)]) == 0
    assert "Predictions are on 7 of the 24 test images" in read(output)[2]
    capsys.readouterr()
    for words, expected in (
        ([str(tmp_path)], "is not a run folder"),
        ([str(tmp_path / "absent")], "no such run folder"),
        ([str(runs[1]), "--output", str(tmp_path)], "is a folder"),
        ([str(runs[1]), "--images", "0"], "--images must be at least 1, got 0"),
    ):
        assert main(["report", *words]) == 2
        assert expected in capsys.readouterr().err


def test_a_run_still_training_and_other_classes(runs: list[Path], tmp_path: Path) -> None:
    running = tmp_path / "running"
    shutil.copytree(runs[1], running)
    (running / "result.json").unlink()
    writing = running / "checkpoints" / ".writing-step-00000099"
    writing.mkdir()
    other = tmp_path / "other"
    data = write_digits(tmp_path / "digits", classes=2)
    (data / "digit 0").rename(data / CLASSES[2])
    train_quickly(data, other, epochs=1)
    output = tmp_path / "report.html"
    with FileLock(tmp_path / "running" / ".vitlet.lock"):
        assert main(["report", str(running), str(other), "--output", str(output)]) == 0
    assert writing.is_dir()  # what the training process is writing is its own
    shown = read(output)[2]
    assert "still training, 2 of 2 epochs so far" in shown
    assert "1 in common, 1 only in the former, 2 only in the latter" in shown
    assert "Classes in common: 1." in shown
    assert "paired on the same images" not in shown
    assert read_run(running, "running").state == "stopped"


def test_settings_somebody_chose(runs: list[Path]) -> None:
    record = read_run(runs[0], "run")
    chosen = chosen_settings(record.config, len(record.classes))
    assert chosen.pop("drloc") == {"variant": "signed", "hidden": 16}
    assert set(chosen) == {"model_kwargs", "img_size", "epochs", "batch_size"}
    long = replace(record.config, epochs=4000, warmup_epochs=200.0)  # a twentieth, as without anybody choosing
    assert chosen_settings(long, len(record.classes))["epochs"] == 4000
    assert "warmup_epochs" not in chosen_settings(long, len(record.classes))
    assert run_names([Path("a/x"), Path("b/x"), Path("b/y")]) == ["a/x", "b/x", "b/y"]
    assert run_names([Path("a/x"), Path("b/y")]) == ["x", "y"]
