"""The page of a study: the numbers of its table, all gains on one axis, nothing loaded from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.pages import read
from vitlet.cli import main
from vitlet.experiments.studies.definition import read_study
from vitlet.experiments.studies.records import Record

GAINS = {"one": {"plain": 0.0, "better": 3.0, "same": 0.0}, "two": {"plain": 0.0, "better": 9.0, "same": -0.5}}


def made_up(folder: Path, **values: Any) -> Path:
    """A study of invented numbers, finished."""
    file = folder / "study.yaml"
    folder.mkdir()
    study = {
        "title": "Does <b> & co help?",
        "settings": {"data": "digits", "epochs": 2},
        "datasets": {"one": {}, "two": {"lr": 0.5}},
        "arms": {"plain": {}, "better": {"task": {"drloc": 0.5}}, "same": {"lr": 0.1}},
        "seeds": 3,
        **values,
    }
    file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    for cell in read_study(file).cells():
        value = 50 + cell.seed + GAINS[cell.dataset][cell.arm] + 0.1 * cell.seed * (cell.arm != "plain")
        settings = json.loads(json.dumps(read_study(file).values(cell)))
        images = int(200 * cell.fraction)
        Record(cell, settings, (value - 20, value), 2, value, value, value - 1, {}, images, 9, 5.0).write(folder)
    return folder


def test_the_page_of_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = made_up(tmp_path / "s")
    assert main(["report", str(study), "--output", str(tmp_path / "out")]) == 0
    assert f"written: {tmp_path / 'out' / 'report.html'}" in capsys.readouterr().out
    text, elements, shown = read(tmp_path / "out" / "report.html")
    assert "http" not in text.replace("http-equiv", "")
    assert "Does <b> & co help?" in shown
    assert not [kind for kind, _ in elements.found if kind == "b"]
    groups = [attributes for kind, attributes in elements.found if attributes.get("class") == "forest"]
    assert len(groups) == 1  # one plot, one axis, for both datasets
    for title in ("one, model", "two, model", "better: the 95 % interval is above zero", "no difference shown"):
        assert title in shown
    assert "+3.10 ± 0.25" in shown
    assert "+9.10 ± 0.25" in shown
    assert "3 of 3 seeds ahead" in shown
    assert "54.10" in shown  # mean accuracy of `better` on `one`
    assert "18 of 18 cells" in shown
    assert "Top-1 test accuracy in percent" in shown
    assert "task: {drloc: 0.5}" in shown
    charts = [attributes for _, attributes in elements.found if attributes.get("data-chart")]
    assert [chart["aria-label"] for chart in charts] == ["one, model", "two, model"]
    assert not (study / "report").exists()


def test_parts_of_the_images_are_groups_of_their_own(tmp_path: Path) -> None:
    study = made_up(tmp_path / "s", datasets={"one": {}}, fractions=[0.5, 1], seeds=1)
    assert main(["report", str(study)]) == 0
    shown = read(study / "report" / "report.html")[2]
    assert "one, model, 100 images" in shown
    assert "one, model, 200 images" in shown
    assert "one seed: no interval" in shown
    assert "accuracy, %, by training images" in shown


def test_a_baseline_alone_has_no_plot(tmp_path: Path) -> None:
    study = made_up(tmp_path / "s", arms={"plain": {}})
    assert main(["report", str(study)]) == 0
    text, _, shown = read(study / "report" / "report.html")
    assert 'class="forest"' not in text
    assert "51.00" in shown


@pytest.mark.heavy
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_real_browser(browser: Any, width: int, tmp_path: Path) -> None:
    study = made_up(tmp_path / "s")
    assert main(["report", str(study)]) == 0
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get((study / "report" / "report.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    tracks = browser.execute_script(
        "return [...document.querySelectorAll('.track, .ticks')].map(each => each.getBoundingClientRect())"
        ".map(box => [Math.round(box.left), Math.round(box.right)].join())"
    )
    assert len(tracks) == 6  # four arms between two axes
    assert len(set(tracks)) == 1  # one axis for all
