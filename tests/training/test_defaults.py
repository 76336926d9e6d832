"""The task of a run where none is named, and the search for its weight."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builders import ROOT
from builders.runs import QUICK
from vitlet.cli import main
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.sources import load_dataset
from vitlet.errors import VitletError
from vitlet.experiments.studies.definition import read_study
from vitlet.experiments.studies.records import finished_cells
from vitlet.experiments.studies.statistics import summarise
from vitlet.training.defaults import MEASURED, MeasuredGain, choose_tasks
from vitlet.training.inputs import data_request
from vitlet.training.run_folder import read_config

SMALL = {"drloc": TaskConfig(0.25, options={"hidden": 16})}
KNOWN = (
    MeasuredGain(
        "one", "arm", "vit_.*", 10, 100, 256, SMALL, {"digits": (2.0, 0.5), "others": (9.0, 0.5)}, "20 epochs"
    ),
    MeasuredGain("two", "arm", "vit_.*", 10, 100, 256, {"sprel": TaskConfig(1.0)}, {"digits": (2.5, 1.5)}, "20 epochs"),
    MeasuredGain(
        "three", "arm", "swin_.*", 10, 100, 256, {"position": TaskConfig(1.0)}, {"digits": (9.0, 0.5)}, "20 epochs"
    ),
    MeasuredGain(
        "four", "arm", "vit_.*", 1000, 5000, 256, {"angle": TaskConfig(1.0)}, {"digits": (9.0, 0.5)}, "20 epochs"
    ),
)


def test_the_surest_gain_that_fits_is_chosen(folder: Path) -> None:
    config = RunConfig(data=str(folder), model="vit_tiny_patch16_224")
    dataset = load_dataset(data_request(config))
    chosen, brief, why = choose_tasks(config, dataset, KNOWN)
    assert chosen.tasks == SMALL
    assert (
        "gained 2.00 ± 0.50 (digits), 9.00 ± 0.50 (others) points over the baseline (cross-entropy only) with 10 to"
        " 100 images" in why
    )
    assert "studies/one" in why
    assert "--task none" in why
    assert brief == "chosen: drloc (weight 0.25), 2.0 to 9.0 points gained in studies/one; or --task none"
    none, brief, why = choose_tasks(RunConfig(data=str(folder), model="resnet18"), dataset, KNOWN)
    assert not none.tasks
    assert "no gain that is significant at the 95 % level has been measured" in why
    assert brief == "none (no gain measured for resnet18 and 21 training images; try --task drloc)"


def test_nothing_is_chosen_that_was_not_measured_or_cannot_be_had(folder: Path) -> None:
    vit = RunConfig(data=str(folder), model="vit_tiny_patch16_224")
    dataset = load_dataset(data_request(vit))
    for trained in (replace(vit, init="weights.safetensors"), replace(vit, pretrained=True)):
        config, brief, why = choose_tasks(trained, dataset, KNOWN)
        assert not config.tasks
        assert "a start from trained weights" in why
        assert brief == "none (no gain measured from trained weights)"
    config, brief, why = choose_tasks(replace(vit, img_size=(16, 16)), dataset, KNOWN)
    assert not config.tasks
    assert "drloc (weight 0.25) would be, but" in why
    assert "1x1" in why
    assert brief.startswith("none (drloc (weight 0.25) would be, but")
    config, brief, why = choose_tasks(replace(vit, img_size=(224, 320)), dataset, KNOWN)
    assert not config.tasks
    assert "a grid of 14x20 tokens, and they are chosen up to 256 tokens" in why
    with pytest.raises(VitletError, match="vit_tiny_patch16_22"):  # no reason to train without a task
        choose_tasks(replace(vit, model="vit_tiny_patch16_22"), dataset, KNOWN)


@pytest.mark.parametrize(("gain", "half"), [(1.0, 1.0), (0.5, 0.9), (-2.0, 0.5), (1.0, 0.0)])
def test_what_shows_nothing_cannot_become_a_default(gain: float, half: float) -> None:
    with pytest.raises(ValueError, match="is not a gain that is significant at the 95 % level"):
        MeasuredGain(
            "study", "arm", "vit_.*", 10, 100, 256, SMALL, {"good": (2.0, 0.5), "bad": (gain, half)}, "20 epochs"
        )


def test_what_is_known_is_what_the_committed_studies_say() -> None:
    assert MEASURED
    for known in MEASURED:
        folder = ROOT / "studies" / known.study
        study = read_study(folder / "study.yaml")
        rows = [row for row in summarise(study, finished_cells(study, folder)) if row.arm == known.arm]
        networks = {name: str(settings["model"]) for name, settings in study.models.items()}
        found = {row.dataset: row for row in rows if re.fullmatch(known.models, networks[row.model])}
        assert set(found) == set(known.gains)
        assert len(found) > 1
        for dataset, row in found.items():
            assert row.gain is not None
            assert (round(row.gain.mean, 2), round(row.gain.half or 0.0, 2)) == known.gains[dataset]
            assert known.fewest <= row.train_images <= known.most


def test_the_fewest_images_are_those_of_a_gain_by_size() -> None:
    folder = ROOT / "studies" / "sizes"
    study = read_study(folder / "study.yaml")
    rows = [row for row in summarise(study, finished_cells(study, folder)) if row.arm == MEASURED[0].arm]
    fewest = min(rows, key=lambda row: row.train_images)
    assert fewest.gain is not None
    assert fewest.gain.count >= 3
    assert fewest.gain.mean > (fewest.gain.half or 0.0) > 0
    assert fewest.train_images == pytest.approx(MEASURED[0].fewest, rel=0.05)


def test_the_command_chooses_says_so_and_can_be_told_not_to(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlet.training.defaults.MEASURED", KNOWN)
    run = [*QUICK, "--overwrite", "--output", str(tmp_path / "run")]
    assert main(["train", str(folder), *run]) == 0
    assert "chosen: drloc (weight 0.25)" in capsys.readouterr().out
    assert read_config(tmp_path / "run").tasks == SMALL
    settings = (tmp_path / "run" / "config.yaml").read_text(encoding="utf-8")
    assert settings.startswith("# no task was named; chosen: drloc (weight 0.25), which gained 2.00 ± 0.50 (digits)")
    assert main(["train", str(folder), *run, "--task", "none"]) == 0
    assert "chosen" not in capsys.readouterr().out
    assert not read_config(tmp_path / "run").tasks
    assert main(["train", str(folder), *run, "--task", "none", "--task", "drloc"]) == 2
    assert "--task none cannot be combined with other tasks" in capsys.readouterr().err
    assert not read_config(tmp_path / "run").tasks


def test_a_file_with_a_task_can_be_run_without(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("task: {drloc: 0.5}\ndrloc: {hidden: 16}\n")
    words = ["train", str(folder), "-c", str(tmp_path / "run.yaml"), *QUICK, "--output", str(tmp_path / "run")]
    assert main([*words, "--task", "none"]) == 0
    assert not read_config(tmp_path / "run").tasks


@pytest.mark.heavy
def test_tune_searches_and_goes_on(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    words = [
        "tune",
        str(folder),
        *QUICK,
        "--task",
        "drloc=0.5",
        "--drloc.hidden",
        "16",
        "--output",
        str(tmp_path / "t"),
    ]
    assert main([*words, "--trials", "3"]) == 0
    printed = capsys.readouterr().out
    assert "try 1" in printed
    assert "lr 0.001, drloc 0.5" in printed
    assert main([*words, "--trials", "1", "--minutes", "0"]) == 0
    assert "try 4" in capsys.readouterr().out
    best = RunConfig.from_dict(RunConfig.read(tmp_path / "t" / "best.yaml"))
    assert 1e-3 / 5 <= best.lr <= 1e-3 * 5
    assert 0.05 <= best.tasks["drloc"].weight <= 5
    assert json.loads((tmp_path / "t" / "trial-0" / "result.json").read_text())["test"] is None
    assert main([*words, "--lr", "0.1"]) == 2
    assert "with other settings: lr 0.1 (the search has 0.001)" in capsys.readouterr().err


@pytest.mark.heavy
def test_tune_chooses_tasks_searches_the_rate_that_counts_and_outlives_a_try(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    monkeypatch.setattr("vitlet.training.defaults.MEASURED", KNOWN)
    monkeypatch.chdir(tmp_path)
    words = ["tune", str(folder), *QUICK, "--lr-base", "0.001", "--trials", "1"]
    assert main(words) == 0
    assert "chosen: drloc (weight 0.25)" in capsys.readouterr().out
    best = RunConfig.from_dict(RunConfig.read(tmp_path / "runs" / "tune-data-vit_tiny_patch16_224" / "best.yaml"))
    assert (best.lr_base, best.tasks["drloc"].weight) == (pytest.approx(0.001), pytest.approx(0.25))
    diverging = ["--task", "none", "--lr", "1e30", "--clip-grad", "none", "--epochs", "3", "--output", "other"]
    assert main(["tune", str(folder), *QUICK, *diverging, "--trials", "2"]) == 4
    printed = capsys.readouterr()
    assert "try 2: diverged with lr" in printed.out
    assert "every try diverged" in printed.err


@pytest.mark.heavy  # optuna is there
@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--val-fraction", "0"], "no validation images to tune on"), (["--nproc", "2"], "leave --nproc out")],
)
def test_tune_refuses(words: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    assert main(["tune", str(folder), *QUICK, *words]) == 2
    assert expected in capsys.readouterr().err


def test_tune_names_what_it_needs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", str(folder), *QUICK]) == 2
    assert "pip install 'vitlet[tune]'" in capsys.readouterr().err
