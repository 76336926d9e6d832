"""Grids of runs: what they are made of, what they say together, and that nothing is run twice or lost."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from scipy import stats

from vitlet.cli import main
from vitlet.config import RunConfig
from vitlet.errors import VitletError
from vitlet.experiments.studies.cell import located, run_cell
from vitlet.experiments.studies.definition import Cell, Study, read_study
from vitlet.experiments.studies.named import find_study
from vitlet.experiments.studies.paths import alone
from vitlet.experiments.studies.records import Record, finished_cells, read_record
from vitlet.experiments.studies.report import as_texts, report_study, which_numbers
from vitlet.experiments.studies.scheduler import StudyProgress
from vitlet.experiments.studies.statistics import Estimate, first_reaching, summarise

TINY: dict[str, Any] = {
    "settings": {
        "data": "digits",
        "img_size": 8,
        "in_chans": 1,
        "epochs": 1,
        "batch_size": 128,
        "crop": "none",
        "hflip": 0,
        "model_kwargs": {"patch_size": 2, "embed_dim": 16, "depth": 1, "num_heads": 2},
    },
    "arms": {"plain": {}, "drloc": {"task": {"drloc": 0.5}, "drloc": {"hidden": 16, "pairs": 8}}},
    "seeds": 1,
}


def write(path: Path, **values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**TINY, **values}, sort_keys=False), encoding="utf-8")
    return path


def record(cell: Cell, value: float, curve: tuple[float, ...] = (1.0,), seconds: float = 10.0) -> Record:
    return Record(cell, {}, curve, 1, value - 1, value, value - 2, {}, 100, 50, seconds)


def test_a_cell_joins_the_settings_of_its_place(tmp_path: Path) -> None:
    path = write(
        tmp_path / "grid.yaml",
        datasets={"small": {"per_class": 5}, "large": {}},
        models={"narrow": {"model_kwargs": {"embed_dim": 32}}},
        tuned={"small/narrow": {"lr": 0.5, "min_lr": 0.1}, "small/narrow/plain": {"lr": 0.25}},
        fractions=[0.5, 1],
        seeds=[3, 4],
    )
    study = read_study(path)
    assert sum(1 for _ in study.cells()) == 2 * 1 * 2 * 2 * 2
    values = study.values(Cell("small", "narrow", "drloc", 0.5, 4))
    assert values["model_kwargs"] == {"patch_size": 2, "embed_dim": 32, "depth": 1, "num_heads": 2}
    assert (values["lr"], values["per_class"], values["fraction"], values["seed"]) == (0.5, 5, 0.5, 4)
    assert values["task"] == {"drloc": 0.5}
    assert "lr" not in study.values(Cell("large", "narrow", "plain", 1.0, 3))
    of_arm = study.values(Cell("small", "narrow", "plain", 0.5, 4))
    assert (of_arm["lr"], of_arm["min_lr"], values["min_lr"]) == (0.25, 0.1, 0.1)
    assert Cell("small", "narrow", "drloc", 0.5, 4).name == "small/narrow/drloc/fraction-0.5/seed-4"
    assert study.baseline == "plain"


def test_named_fractions_are_of_all_images(tmp_path: Path) -> None:
    changes = {"settings": {**TINY["settings"], "fraction": 0.3}, "arms": {"a": {"first": {"fraction": 1.0}}}}
    named = read_study(write(tmp_path / "named.yaml", **changes, fractions=[0.5, 1.0]))
    found = [named.values(cell) for cell in named.cells()]
    assert [(values["fraction"], values["first"]["fraction"]) for values in found[:2]] == [(0.5, 1.0), (1.0, 1.0)]
    plain = read_study(write(tmp_path / "plain.yaml", **changes))
    assert plain.values(next(plain.cells()))["fraction"] == 0.3
    whole = read_study(write(tmp_path / "whole.yaml", fractions=[1.0]))
    assert "fraction" not in whole.values(next(whole.cells()))  # as records of before have it


def test_a_pair_can_have_arms_of_its_own(tmp_path: Path) -> None:
    path = write(
        tmp_path / "grid.yaml",
        datasets={"small": {}, "large": {}, "other": {}},
        arms_of={"small/model": ["plain"], "other/model": []},
        seeds=1,
    )
    found = [(cell.dataset, cell.arm) for cell in read_study(path).cells()]
    assert found == [("small", "plain"), ("large", "plain"), ("large", "drloc")]


def test_a_pretraining_is_on_the_same_data_and_network(tmp_path: Path) -> None:
    first = {"epochs": 7, "task": {"sprel": 1}}
    study = read_study(write(tmp_path / "grid.yaml", arms={"a": {"task": {"drloc": 0.5}, "lr": 0.1, "first": first}}))
    values = study.values(Cell("data", "model", "a", 1.0, 5))
    assert values["first"] == {**TINY["settings"], "pretrain": True, "lr": 0.1, "seed": 5, **first}
    assert values["task"] == {"drloc": 0.5}
    table = write(tmp_path / "table.yaml", table="relvit_training", settings={}, arms={"pretrained": {}})
    paper = read_study(table).values(Cell("cifar10", "vit_s", "pretrained", 1.0, 0))
    assert sorted(paper["first"]["task"]) == ["position", "sprel"]
    assert "task" not in paper or paper["task"] == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"arm": {}}, "unknown key 'arm'. Did you mean 'arms'"),
        ({"arms": None}, "needs 'arms'"),
        ({"arms": {"a": {"epohcs": 3}}}, "unknown key 'epohcs'. Did you mean 'epochs'"),
        ({"arms": {"../up": {}}}, "letters, digits"),
        ({"arms": {"a": 3}}, "needs to map settings"),
        ({"baseline": "nobody"}, "baseline 'nobody' is none of the arms"),
        ({"seeds": "many"}, "list of numbers"),
        ({"seeds": True}, "list of numbers"),
        ({"seeds": [math.nan]}, "list of numbers, got [nan]"),
        ({"seeds": [math.inf]}, "list of numbers, got [inf]"),
        ({"seeds": [0, 0.5]}, "distinct whole numbers, got [0, 0.5]"),
        ({"seeds": [3, 4, 3]}, "distinct whole numbers, got [3, 4, 3]"),
        ({"fractions": [0.5, 0.50000001, 1]}, "contains duplicates"),
        ({"tuned": ["x"]}, "'tuned' needs to map DATASET/MODEL"),
        ({"arms_of": ["x"]}, "'arms_of' needs to map DATASET/MODEL"),
        ({"arms": {"a": {"first": [1]}}}, "data/model/a/seed-0: first needs to map settings to values, found [1]"),
        ({"arms": {"a": {"first": "x"}}}, "first needs to map settings to values, found 'x'"),
        ({"settings": {"model_kwargs": {"depth": datetime.date(2024, 1, 1)}}}, "a value is not plain: .*date"),
        ({"tuned": {"data/modle": {}}}, "Did you mean 'data/model'"),
        ({"arms_of": {"data/modle": []}}, "arms_of 'data/modle' .* Did you mean 'data/model'"),
        ({"arms_of": {"data/model": ["palin"]}}, "Did you mean 'plain'"),
        ({"arms_of": {"data/model": "plain"}}, "arms_of must be a list of names, got 'plain'"),
        ({"settings": {"recipe": "drloc_table99/x"}}, "no recipe is called"),
        ({"table": "drloc_table99"}, "no table is called"),
        ({"test": "perhaps"}, "must be true or false, got 'perhaps'"),
        ({"arms": {"a": {"first": {"pretrain": True, "lr": -1}}}}, "lr must be greater than 0, got -1"),
    ],
)
def test_a_mistake_is_named(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(VitletError, match=re.sub(r"([(\[])", r"\\\1", expected)):
        read_study(write(tmp_path / "study.yaml", **change))


def test_a_table_is_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study, file = find_study("drloc_table6", scale="small", seeds=2)
    assert file == Path("studies/drloc_table6-small/study.yaml")
    assert list(study.arms) == ["baseline", "l1", "signed", "ce", "reg", "all"]
    assert study.paper(Cell("imagenet100", "swin_t", "ce", 1.0, 0)) == 83.86
    assert study.values(Cell("imagenet100", "swin_t", "ce", 1.0, 1))["model"] == "swin_for_32px"
    three = read_study(write(tmp_path / "cut.yaml", table="drloc_table4", settings={}, arms={"drloc": {}}))
    assert sum(1 for _ in three.cells()) == 40
    little, _ = find_study("drloc_table4", scale="small", seeds=1)
    assert list(little.datasets) == ["cifar10", "flowers102", "clipart"]  # one for each data of that size
    assert "imagenette for clipart" in little.title
    short = replace(little, settings={"epochs": 1, "init": "FILE"})
    assert short.values(Cell("cifar10", "swin_t", "drloc", 1.0, 0))["warmup_epochs"] == pytest.approx(0.2)
    with pytest.raises(VitletError, match="Did you mean 'drloc_table6'"):
        find_study("drloc_tabel6")
    with pytest.raises(VitletError, match=r"--seeds 5 was given, but .* has 2 seeds"):
        find_study("drloc_table6", scale="small", seeds=5)
    with pytest.raises(VitletError, match=r"--recipe-size small was given, but .* has scale full"):
        find_study(str(tmp_path / "cut.yaml"), scale="small")
    assert main(["study", "cut.yaml", "--address", "auto"]) == 2


def test_numbers_against_a_slow_loop() -> None:
    study = Study("s", "t", {"base": {}, "new": {}}, baseline="base", seeds=(0, 1, 2))
    base, new = {0: 50.0, 1: 52.0, 2: 51.0}, {0: 53.0, 1: 52.5, 2: 50.0}
    records = {}
    for arm, values in (("base", base), ("new", new)):
        for seed, value in values.items():
            cell = Cell("data", "model", arm, 1.0, seed)
            curve = (10.0, 30.0, 20.0) if arm == "base" else (15.0, 21.0, 19.0)
            records[cell] = record(cell, value, curve, 10.0 if arm == "base" else 12.0)
    first, second = summarise(study, records)
    differences = [new[seed] - base[seed] for seed in base]
    mean = sum(differences) / 3
    deviation = math.sqrt(sum((each - mean) ** 2 for each in differences) / 2)
    assert first.gain is None
    assert second.gain is not None
    assert second.gain.half is not None
    assert second.gain.mean == pytest.approx(mean)
    low, high = stats.t.interval(0.95, 2, loc=mean, scale=deviation / math.sqrt(3))
    assert second.gain.mean - second.gain.half == pytest.approx(low)
    assert second.gain.mean + second.gain.half == pytest.approx(high)
    assert not second.gain.excludes_zero
    assert (second.wins, second.epochs_to_baseline, second.reached) == (2, 2.0, 3)
    assert second.cost == pytest.approx(1.2)
    assert second.last is not None
    assert second.last.mean == pytest.approx(sum(new.values()) / 3 - 2)


def test_pairs_are_seeds_that_both_have() -> None:
    study = Study("s", "t", {"base": {}, "new": {}}, baseline="base", seeds=(0, 1, 2))
    cells = [Cell("data", "model", arm, 1.0, seed) for arm, seed in (("base", 0), ("new", 0), ("new", 1))]
    rows = summarise(study, {cell: record(cell, 50.0 + cell.seed) for cell in cells})
    assert rows[1].best.count == 2
    assert rows[1].gain == Estimate(0.0, None, 1)
    assert not Estimate(5.0, None, 1).excludes_zero
    assert first_reaching((1.0, 2.0), (0.5, 3.0)) is None
    assert first_reaching((1.0, 2.0), ()) is None


def test_numbers_of_test_and_validation_images_never_meet() -> None:
    study = Study("s", "t", {"base": {}, "new": {}}, baseline="base", seeds=(0, 1))
    cells = {cell: record(cell, 50.0) for cell in study.cells()}
    tested = list(cells)[:3]
    mixed = {cell: made if cell in tested else replace(made, test_best=None) for cell, made in cells.items()}
    base, new = summarise(study, mixed)
    assert (base.best.count, new.best.count, new.gain) == (2, 1, Estimate(0.0, None, 1))
    assert which_numbers(study, mixed) == ("Top-1 test accuracy in percent (without 1 cells that have no test number)")
    none = {cell: replace(made, test_best=None, test_last=None) for cell, made in cells.items()}
    for asked, found in ((study, none), (replace(study, test=False), mixed)):
        rows = summarise(asked, found)
        assert [(row.best.mean, row.best.count, row.last) for row in rows] == [(49.0, 2, None)] * 2
        assert which_numbers(asked, found) == "Top-1 validation accuracy in percent"


def test_a_cell_that_was_not_tested_is_not_finished(tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "study.yaml", arms={"plain": {}}))
    cell = next(study.cells())
    made = replace(record(cell, 50.0), settings=study.values(cell), test_best=None, test_last=None, test_images=0)
    made.write(tmp_path)
    assert not finished_cells(study, tmp_path)
    assert list(finished_cells(replace(study, test=False), tmp_path)) == [cell]
    replace(made, test_asked=True).write(tmp_path)  # its data has no test images
    assert list(finished_cells(study, tmp_path)) == [cell]


def test_seeds_that_never_reach_the_baseline_and_costs_that_are_not_known() -> None:
    study = Study("s", "t", {"base": {}, "new": {}, "bad": {}}, baseline="base", seeds=(0, 1, 2))
    curves = {"base": (10.0, 20.0), "new": (15.0, 20.0), "bad": (1.0, 1.0)}
    records = {cell: record(cell, 50.0, curves[cell.arm]) for cell in study.cells()}
    late = Cell("data", "model", "new", 1.0, 2)
    records[late] = replace(records[late], val_curve=(5.0, 6.0), cpu_seconds=None)
    records[Cell("data", "model", "new", 1.0, 1)] = record(late, 50.0, curves["new"], seconds=30.0)
    _, new, bad = summarise(study, records)
    texts = as_texts([new, bad])
    assert (texts[0]["reaches"], texts[0]["cost"]) == ("2 of 2 (2 of 3 seeds)", "2.00")
    assert texts[1]["reaches"] == "never"


def test_records_of_another_kind_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "s" / "study.yaml")
    study = read_study(file)
    cell = next(study.cells())
    path = Record(cell, study.values(cell), (1.0,), 1, 1.0, 1.0, 1.0, {}, 1, 1, 1.0).write(file.parent)
    assert finished_cells(study, file.parent)[cell].val_best == 1.0
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "format": 7}))
    with pytest.raises(VitletError, match="format 7; this version reads format 1"):
        finished_cells(study, file.parent)
    path.write_text("{not json")
    with pytest.raises(VitletError, match="not the result of a cell"):
        read_record(path)
    for change in (
        {"val_best": "high"},
        {"cpu_seconds": "long"},
        {"test_best": math.nan},
        {"best_epoch": None},
        {"settings": []},
        {"made_by": []},
        {"made_by": {"date": None}},
        {"val_curve": [1.0, "x"]},
        {"cell": []},
    ):
        path.write_text(json.dumps({**found, **change}))
        with pytest.raises(VitletError, match=r"not the result of a cell: .* Remove it to run the cell again"):
            read_record(path)
    path.write_text(json.dumps(found))
    changed = read_study(write(file, settings={**TINY["settings"], "epochs": 2}))
    with pytest.raises(VitletError, match="other settings than the study now has: epochs"):
        finished_cells(changed, file.parent)


def test_data_is_looked_for_in_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "cifar10").mkdir()
    assert located({"data": "mine", "lr": 1}, tmp_path) == {"data": str(tmp_path / "mine"), "lr": 1}
    assert located({"data": "cifar10"}, tmp_path) == {"data": "cifar10", "data_dir": str(tmp_path)}
    assert located({"data": "cifar10"}, None) == {"data": "cifar10"}


def test_report_of_made_up_numbers(tmp_path: Path) -> None:
    file = write(
        tmp_path / "s" / "study.yaml", arms={"plain": {}, "a_b": {"lr": 0.1}}, seeds=3, fractions=[0.5, 1], title="T"
    )
    study = read_study(file)
    for cell in sorted(study.cells(), key=lambda cell: cell.fraction):
        if cell == Cell("data", "model", "plain", 1.0, 0):  # the largest fraction has no cell yet
            assert "curves.png" in {path.name for path in report_study(file.parent)}
        value = 50 + cell.seed + (3 if cell.arm == "a_b" else 0) + 0.1 * cell.seed * (cell.arm == "a_b")
        plain = json.loads(json.dumps(study.values(cell)))
        made = Record(cell, plain, (1.0, 2.0), 2, value, value, value, {}, int(200 * cell.fraction), 9, 5.0)
        made.write(file.parent)
    written = {path.name: path for path in report_study(file.parent)}
    pictures = {"gains.png", "curves.png", "sizes.png"}
    assert set(written) == {"report.html", "table.md", "table.csv", "table.tex"} | pictures
    assert "**+3.10 ± 0.25**" in written["table.md"].read_text()
    assert r"a\_b" in written["table.tex"].read_text()
    assert written["table.csv"].read_text().count("\n") == 5
    for name in pictures:
        with Image.open(written[name]) as picture:
            assert picture.size[0] > 400
    with pytest.raises(VitletError, match="is a folder of a page, tables and pictures"):
        report_study(file.parent, tmp_path / "page.html")
    empty = write(tmp_path / "empty" / "study.yaml")
    with pytest.raises(VitletError, match="no finished cell yet"):
        report_study(empty)


def test_a_cell_goes_on_or_starts_afresh(tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "study.yaml", settings={**TINY["settings"], "lr": 0.01}, test=False))
    cell = next(study.cells())
    first = run_cell(study, cell, tmp_path / "work", None)
    again = run_cell(study, cell, tmp_path / "work", None)
    assert first.cpu_seconds
    assert again == replace(first, cpu_seconds=None)  # what a run cost that was over before is not known
    other = read_study(write(tmp_path / "study.yaml"))  # the usual learning rate, which the old run does not have
    anew = run_cell(other, cell, tmp_path / "work", None)
    assert anew.cpu_seconds
    assert anew.val_curve != first.val_curve
    assert anew.test_asked
    assert not first.test_asked


def test_one_command_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine" / "study.yaml")
    with alone(Path("runs/studies/mine")):
        assert main(["study", "mine"]) == 2
        assert "another `vitlet study` is at work in runs/studies/mine" in capsys.readouterr().err
        assert main(["study", "mine", "--list"]) == 0
    for _ in range(2):
        assert main(["study", "mine", "--only", "nothing"]) == 0
    (tmp_path / "file").touch()
    assert main(["study", "mine", "--work", "file"]) == 2
    assert "file/mine cannot be the folder of the runs" in capsys.readouterr().err


def test_where_records_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine/study.yaml", "mine/one.yaml", "mine/two.yaml"):
        study = read_study(write(tmp_path / name, test=False))
    cell = next(study.cells())
    made = replace(record(cell, 50.0), settings=study.values(cell), test_best=None)
    made.write(tmp_path / "mine" / "one")
    assert report_study(Path("mine/one.yaml"))[0] == Path("mine/one/report/report.html")
    for other in ("mine", "mine/two.yaml"):
        with pytest.raises(VitletError, match="no finished cell yet"):
            report_study(Path(other))
    made.write(tmp_path / "away")
    words = ["study", "mine/one.yaml", "--output", "away", "--only", "nothing"]
    for _ in range(2):
        assert main(words) == 0
        assert "page, tables and pictures: vitlet report away" in capsys.readouterr().out
    assert report_study(Path("away"))
    assert main(["study", "mine", "--output", "away", "--only", "nothing"]) == 0  # the copy follows
    assert "mine/study.yaml" in Path("away/study.yaml").read_text()
    before = Path("mine/study.yaml").read_text()
    assert main(["study", "mine/one.yaml", "--output", "mine", "--only", "nothing"]) == 2
    assert "--output mine is the folder of another study" in capsys.readouterr().err
    assert Path("mine/study.yaml").read_text() == before
    assert main(["study", "mine", "--output", "mine/one.yaml"]) == 2
    assert "mine/one.yaml cannot be the folder of the records" in capsys.readouterr().err
    Path("noname").write_text(before)
    assert main(["study", "noname"]) == 2
    assert "must end in .yaml" in capsys.readouterr().err


def test_a_study_without_cells_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"table": "drloc_table4", "datasets": {"mine": {"data": "digits"}}}, "'mine', which is not in the table"),
        ({"table": "drloc_table4", "datasets": {"cifar11": {}}}, "Did you mean 'cifar10'"),
        ({"arms": {"plain": {}}, "arms_of": {"data/model": []}}, "study cut has no cells: no arm runs"),
    ]
    for values, sentence in cases:
        (tmp_path / "cut.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        assert main(["study", "cut.yaml", "--list"]) == 2
        assert sentence in capsys.readouterr().err


def test_listing_a_table_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seeds in ("1", "2"):
        assert main(["study", "drloc_table6", "--scale", "small", "--seeds", seeds, "--list"]) == 0
        assert (f"seed-{int(seeds) - 1}" in (out := capsys.readouterr().out)) and f"seed-{seeds}" not in out
    assert not list(tmp_path.iterdir())


def test_an_arm_may_have_no_task(tmp_path: Path) -> None:
    settings = {**TINY.get("settings", {}), "task": {"drloc": 0.5}, "drloc": {"hidden": 16}}
    study = read_study(write(tmp_path / "grid.yaml", settings=settings, arms={"with": {}, "without": {"task": "none"}}))
    tasks = {cell.arm: RunConfig.from_dict(study.values(cell)).tasks for cell in study.cells()}
    assert list(tasks["with"]) == ["drloc"]
    assert tasks["without"] == {}


def test_missing_data_keeps_only_its_own_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arms = {"gone": {"data": "nowhere"}, "plain": {}, "first": {"first": {"data": "elsewhere", "epochs": 1}}}
    write(tmp_path / "grid.yaml", arms=arms, seeds=2)
    ran: list[str] = []

    def note(study: Study, cells: list[Cell], *_: Any) -> StudyProgress:
        ran.extend(cell.arm for cell in cells)
        return StudyProgress([])

    monkeypatch.setattr("vitlet.experiments.studies.scheduler.run_study", note)
    assert main(["study", "grid.yaml"]) == 1
    printed = capsys.readouterr().out
    assert "2 cells of data cannot run: no such folder: nowhere" in printed
    assert "2 cells of data cannot run: no such folder: elsewhere" in printed
    assert ran == ["plain", "plain"]


def vitlet(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "vitlet", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.heavy
def test_a_study_from_start_to_report(tmp_path: Path) -> None:
    arms = {**TINY["arms"], "pretrained": {"first": {"epochs": 1}}, "broken": {"model_kwargs": {"depht": 1}}}
    file = write(tmp_path / "mine" / "study.yaml", arms=arms, datasets={"here": {}, "gone": {"data": "nowhere"}})
    process = vitlet("study", "mine", cwd=tmp_path)
    printed = process.communicate()[0]
    assert process.returncode == 1
    assert "4 cells of gone cannot run: no such folder: nowhere" in printed
    assert "failed: here/model/broken/seed-0: the model vit_tiny_patch16_224 cannot be built" in printed
    assert "Traceback" not in printed
    cells = sorted(
        path.relative_to(file.parent / "cells").as_posix() for path in (file.parent / "cells").rglob("*.json")
    )
    assert cells == [f"here/model/{arm}/seed-0.json" for arm in ("drloc", "plain", "pretrained")]
    found = read_record(file.parent / "cells" / cells[2])
    assert found.test_images == 359
    assert found.train_images == 1295
    assert found.settings["first"]["pretrain"] is True
    times = {path: path.stat().st_mtime_ns for path in (file.parent / "cells").rglob("*.json")}
    assert main(["study", str(file), "--only", "here/model/p", "--work", str(tmp_path / "runs")]) == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert main(["report", str(file.parent)]) == 0


@pytest.mark.heavy
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_it_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    settings = {**TINY["settings"], "epochs": 40, "checkpoint_epochs": 1}
    write(tmp_path / "long.yaml", settings=settings, arms={"plain": {}})
    process = vitlet("study", "long.yaml", "--processes", "1", cwd=tmp_path)
    rows = tmp_path / "runs" / "studies" / "long" / "data" / "model" / "plain" / "seed-0" / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not rows.is_file() or rows.read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(how)
    printed = process.communicate()[0]
    assert process.returncode == (75 if how == signal.SIGTERM else -signal.SIGKILL), printed
    time.sleep(2)  # a cell whose study was killed sees that between two steps, saves and ends
    before = rows.read_text().count("\n")
    assert 3 <= before < 40
    again = vitlet("study", "long.yaml", "--processes", "1", cwd=tmp_path)
    printed = again.communicate()[0]
    assert again.returncode == 0, printed
    log = rows.parent.parent / "log.txt"
    assert "continued from" in log.read_text()
    found = read_record(tmp_path / "long" / "cells" / "data" / "model" / "plain" / "seed-0.json")
    assert (len(found.val_curve), found.cpu_seconds) == (40, None)


@pytest.mark.heavy
def test_ray_gives_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    write(tmp_path / "grid.yaml")
    found = {}
    for engine in ("local", "ray"):
        words = [
            "study",
            "grid.yaml",
            "--engine",
            engine,
            "--processes",
            "2",
            "--work",
            engine,
            "--output",
            f"of-{engine}",
        ]
        process = vitlet(*words, cwd=tmp_path)
        printed = process.communicate()[0]
        assert process.returncode == 0, printed
        files = sorted((tmp_path / f"of-{engine}").rglob("*.json"))
        found[engine] = [(read_record(path).cell, read_record(path).test_best) for path in files]
    assert found["local"] == found["ray"]
    assert len(found["local"]) == 2


def test_ray_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    assert main(["study", str(write(tmp_path / "grid.yaml")), "--engine", "ray"]) == 2
    assert "pip install 'vitlet[ray]'" in capsys.readouterr().err
