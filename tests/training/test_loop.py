"""Whole runs on real image files: what they leave behind, how they go on, what they say."""

from __future__ import annotations

import csv
import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file

import vitlet
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.images import Arrays, Dataset
from vitlet.data.store import Storing
from vitlet.errors import NotFiniteError
from vitlet.inference.predict import Predictor
from vitlet.training.evaluate import evaluate
from vitlet.training.inputs import class_weights
from vitlet.training.loop import train
from vitlet.training.run_folder import RunFolder, read_rows
from vitlet.training.summaries import few_images

VIT = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
DRLOC = TaskConfig(0.5, options={"hidden": 16, "pairs": 8})


def config(data: Path, output: Path, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "data": str(data),
        "model_kwargs": VIT,
        "img_size": (16, 16),
        "epochs": 2,
        "batch_size": 8,
        "workers": 0,
        "device": "cpu",
        "tasks": {"drloc": DRLOC},
        "output": str(output),
    }
    return RunConfig(**settings | changes)


def weights(run: Path, folder: str = "last") -> dict[str, torch.Tensor]:
    return load_file(run / folder / "model.safetensors")


def test_a_run_leaves_everything_behind(shared_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(config(shared_folder, run))
    files = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    events = {name for name in files if name.startswith("events.out.tfevents")}
    assert len(events) == 1
    weights_of = {f"{folder}/{name}" for folder in ("last", "best") for name in ("config.json", "model.safetensors")}
    steps = {name.split("/")[1] for name in files if name.startswith("checkpoints/")}
    names = ("manifest.json", "objective.safetensors", "state.pt")
    checkpoints = {f"checkpoints/{step}/{name}" for step in steps for name in names}
    assert len(steps) == 2  # the last one, and the one before
    metrics = {"config.yaml", "metrics.jsonl", "metrics.csv", "result.json", "curves.png"}
    assert files - events == weights_of | checkpoints | metrics
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]  # nothing beside it
    rows = read_rows(run)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert {"train/loss", "train/criterion", "train/drloc", "train/drloc/error_cells", "lr", "val/top1"} <= set(rows[0])
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        assert [float(row["val/top1"]) for row in csv.DictReader(file)] == [row["val/top1"] for row in rows]
    saved = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result.test is not None
    assert saved["test"]["top1"] == result.test.top1
    assert saved["val"]["top1"] == result.val.top1 == max(row["val/top1"] for row in rows)


def test_the_resolved_config_starts_the_same_run(folder: Path, tmp_path: Path) -> None:
    train(config(folder, tmp_path / "first"))
    again = RunConfig.from_dict(RunConfig.read(tmp_path / "first" / "config.yaml"))
    train(replace(again, output=str(tmp_path / "second")))
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("vit_tiny_patch16_224", {}),
        (
            "swin_tiny_patch4_window7_224",
            {
                "model_kwargs": {
                    "patch_size": 2,
                    "embed_dim": 12,
                    "depths": [1, 1],
                    "num_heads": [1, 2],
                    "window_size": 4,
                }
            },
        ),
        ("resnet10t", {"model_kwargs": {}, "img_size": (64, 64)}),
    ],
)
def test_timm_loads_what_was_trained(model: str, changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    train(config(folder, tmp_path / "run", model=model, **changes))
    loaded = timm.create_model(f"local-dir:{tmp_path / 'run' / 'best'}", pretrained=True).eval()
    best = weights(tmp_path / "run", "best")
    assert loaded.state_dict().keys() == best.keys()  # a plain timm model: no task head
    assert all(torch.equal(tensor, best[name]) for name, tensor in loaded.state_dict().items())
    predictor = Predictor.load(tmp_path / "run", device="cpu")
    image = next(folder.rglob("*.png"))
    answer = predictor.predict([image], topk=3)[0]
    assert sum(guess["probability"] for guess in answer["classes"]) == pytest.approx(1.0)
    size = changes.get("img_size", (16, 16))
    assert tuple(loaded.pretrained_cfg["input_size"]) == (3, *size)


@pytest.mark.parametrize("settings", [{}, {"amp": True, "mixup": 0.8, "cutmix": 1.0, "drop_path": 0.1}])
def test_resume_is_exact(
    settings: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = config(folder, tmp_path / "whole", epochs=4, **settings)
    train(whole)
    log = RunFolder.log

    def die_after_two(self: RunFolder, rows: list[dict[str, Any]]) -> None:
        log(self, rows)
        if len(rows) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "log", die_after_two)
    with pytest.raises(KeyboardInterrupt):
        train(replace(whole, output=str(tmp_path / "broken")))
    monkeypatch.setattr(RunFolder, "log", log)
    result = train(RunConfig(resume=str(tmp_path / "broken")))
    assert result.path == tmp_path / "broken"
    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "broken")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert [row["train/loss"] for row in read_rows(tmp_path / "whole")] == [
        row["train/loss"] for row in read_rows(tmp_path / "broken")
    ]


def test_a_run_stops_early_on_the_schedule_of_all_epochs_and_resumes_exactly(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ramped = TaskConfig(0.5, schedule="ramp", options={"hidden": 16, "pairs": 8})
    whole = config(folder, tmp_path / "whole", epochs=6, tasks={"drloc": ramped}, val_fraction=0.0)
    stopped = replace(whole, stop_epoch=3, output=str(tmp_path / "stopped"))
    train(whole)
    result = train(stopped)
    rows, all_rows = read_rows(tmp_path / "stopped"), read_rows(tmp_path / "whole")
    keys = ("epoch", "lr", "train/loss", "weight/drloc")
    assert [[row[key] for key in keys] for row in rows] == [[row[key] for key in keys] for row in all_rows[:3]]
    assert result.best_epoch == 3
    assert not any("stopped after" in line for line in result.warnings)

    def die_after_two(self: RunFolder, rows: list[dict[str, Any]]) -> None:
        if len(rows) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "log", die_after_two)
        with pytest.raises(KeyboardInterrupt):
            train(replace(stopped, output=str(tmp_path / "broken")))
    train(RunConfig(resume=str(tmp_path / "broken")))
    expected, found = weights(tmp_path / "stopped"), weights(tmp_path / "broken")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    with pytest.raises(vitlet.errors.VitletError, match=r"stop_epoch must be at most epochs .*, got 7"):
        replace(whole, stop_epoch=7)


def test_existing_runs_are_not_overwritten_unless_asked(folder: Path, tmp_path: Path) -> None:
    settings = config(folder, tmp_path / "run", epochs=1)
    train(settings)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(vitlet.VitletError, match="already exists"):
        train(settings)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    train(replace(settings, overwrite=True, seed=1))
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() != before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diary.txt").write_text("mine")
    with pytest.raises(vitlet.VitletError, match="is not a run"):
        train(replace(settings, output=str(tmp_path / "other"), overwrite=True))
    assert (tmp_path / "other" / "diary.txt").read_text() == "mine"
    (tmp_path / "other" / "config.yaml").write_text("name: my page")
    with pytest.raises(vitlet.VitletError, match="is not a run"):
        train(replace(settings, output=str(tmp_path / "other"), overwrite=True))
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(vitlet.VitletError, match=r"holds 'thesis\.tex', which was not written by a run"):
        train(replace(settings, overwrite=True))
    assert (tmp_path / "run" / "thesis.tex").read_text() == "mine"


def test_an_output_that_cannot_be_is_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(vitlet.VitletError, match=r"cannot write in .*file: "):
        train(config(folder, tmp_path / "file" / "run", epochs=1))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(replace(config(folder, tmp_path, epochs=1), output="."))
    assert (tmp_path / "here" / "result.json").is_file()


def test_a_run_folder_in_use_is_refused(folder: Path, tmp_path: Path) -> None:
    settings = config(folder, tmp_path / "run", epochs=1)
    run = RunFolder.create(settings)
    try:
        with pytest.raises(vitlet.VitletError, match="in use by another process"):
            train(replace(settings, overwrite=True))
        with pytest.raises(vitlet.VitletError, match="in use by another process"):
            train(RunConfig(resume=str(tmp_path / "run")))
    finally:
        run.close()


def test_default_folders_are_numbered(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = replace(config(folder, tmp_path, epochs=1), output=None)
    paths = [train(settings).path for _ in range(2)]
    assert [str(path) for path in paths] == ["runs/data-vit_tiny_patch16_224-1", "runs/data-vit_tiny_patch16_224-2"]


def test_a_task_at_chance_and_one_that_dwarfs_say_so(folder: Path, tmp_path: Path) -> None:
    settings = config(folder, tmp_path / "run", lr=1e-9, min_lr=0.0)
    huge = TaskConfig(500.0, options={"hidden": 16, "preset": "reference"}, schedule="constant")
    result = train(replace(settings, tasks={"drloc": huge}))
    assert any("drloc was not learned" in warning for warning in result.warnings)
    assert any("drloc dwarfs the labels" in warning for warning in result.warnings)
    quiet = train(replace(settings, output=str(tmp_path / "quiet"), tasks={}))
    assert quiet.warnings == ()


def test_the_ramp_of_the_reference_preset_reaches_the_loop(folder: Path, tmp_path: Path) -> None:
    task = TaskConfig(1.0, options={"hidden": 16, "preset": "reference"})
    train(config(folder, tmp_path / "run", epochs=5, tasks={"drloc": task}))
    weight = [row["weight/drloc"] for row in read_rows(tmp_path / "run")]
    assert weight[0] < weight[1] > weight[2] > weight[3] > weight[4] > 0


def test_a_loss_that_is_not_finite_stops_with_its_parts(folder: Path, tmp_path: Path) -> None:
    words = r"not finite in epoch 1, step 2 \(seed 0\): criterion .*, drloc .*; gradient norm .*training images \d+"
    with pytest.raises(NotFiniteError, match=words) as raised:
        train(config(folder, tmp_path / "run", lr=1e30, warmup_epochs=0.0, clip_grad=None))
    assert raised.value.code == 4
    told = json.loads((tmp_path / "run" / "not_finite.json").read_text(encoding="utf-8"))
    assert len(told["parts_of_the_step"][0]["images"]) == 8


def test_a_batch_larger_than_the_data_is_one_batch(folder: Path, tmp_path: Path) -> None:
    train(config(folder, tmp_path / "run", batch_size=1000, epochs=1))
    assert read_rows(tmp_path / "run")[0]["val/count"] == 3


def test_evaluate_agrees_with_the_run(shared_folder: Path, tmp_path: Path) -> None:
    result = train(config(shared_folder, tmp_path / "run"))
    predictor = Predictor.load(tmp_path / "run", device="cpu")
    scores, what = predictor.evaluate()
    assert result.test is not None
    assert scores.top1 == result.test.top1
    assert what.endswith("(test)")
    assert predictor.evaluate(split="val")[0].top1 == result.val.top1
    assert predictor.evaluate(str(shared_folder / "test"))[0].top1 == result.test.top1
    correct = 0
    for label, name in enumerate(predictor.classes):
        paths = sorted((shared_folder / "test" / name).iterdir())
        correct += sum(a["classes"][0]["class"] == predictor.classes[label] for a in predictor.predict(paths, topk=1))
    assert 100 * correct / 12 == pytest.approx(scores.top1)


def test_without_validation_images_the_last_epoch_is_the_result(shared_folder: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    for split in ("train", "test"):
        shutil.copytree(shared_folder / split, plain / split)
    result = train(config(plain, tmp_path / "run", val_fraction=0.0))
    assert result.val is None
    assert result.best_epoch == 2
    assert "the last epoch is the result" in result.note
    assert not (tmp_path / "run" / "best").exists()
    assert result.test is not None
    assert Predictor.load(tmp_path / "run", device="cpu").evaluate()[0].top1 == result.test.top1


@pytest.mark.parametrize(
    "settings",
    [
        {"aug": "none"},
        {"aug": "drloc"},
        {"aug": "relvit", "crop": "resized"},
        {"aug": "light", "color_jitter": 0.4, "aa": "rand-m5-n1"},
        {"balance": "sampler"},
        {"balance": "weights"},
        {"balance": "weights", "class_weights": "1,2,0.5"},
        {"in_chans": 1},
        {"fraction": 0.5},
        {"per_class": 4, "classes": ("digit 0", "digit 2")},
        {"folds": 3, "fold": 2},
        {"workers": 2},
    ],
    ids=str,
)
def test_data_settings_train(settings: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    result = train(config(folder, tmp_path / "run", epochs=1, **settings))
    assert result.val is not None
    assert 0 <= result.val.balanced <= 100
    saved = RunConfig.read(tmp_path / "run" / "config.yaml")
    assert saved["hflip"] is not None  # the preset's choices are written out
    assert RunConfig.from_dict(saved).resolved() == RunConfig.from_dict(saved)


def test_a_cache_on_disk_trains_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(folder, tmp_path / "memory", cache_dir=str(tmp_path / "cache"))
    train(settings)
    monkeypatch.setattr(Storing, "__init__", partialmethod(Storing.__init__, limit=0))
    train(replace(settings, output=str(tmp_path / "disk")))
    train(replace(settings, output=str(tmp_path / "anew"), cache="none"))
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 2  # training and validation
    expected = weights(tmp_path / "memory")
    for other in ("disk", "anew"):
        found = weights(tmp_path / other)
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_batch_normalization_of_one_value_is_one_error(shared_folder: Path, tmp_path: Path) -> None:
    changes = {"model": "resnet10t", "model_kwargs": {}, "img_size": (32, 32), "batch_size": 1, "tasks": {}}
    with pytest.raises(vitlet.VitletError, match=r"one value per channel.*Use a larger --batch-size"):
        train(config(shared_folder, tmp_path / "run", **changes))


def test_a_broken_file_can_be_skipped_with_a_count(folder: Path, tmp_path: Path) -> None:
    bad = next((folder / "digit 1").glob("*.png"))
    bad.write_bytes(b"broken")
    with pytest.raises(vitlet.VitletError, match="cannot read the image"):
        train(config(folder, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    result = train(config(folder, tmp_path / "run", skip_unreadable=True))
    assert "could not be read: 1" in result.note


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aa": "auto"}, "such as rand-m9-mstd0.5-inc1"),
        ({"aa": "rand-x9"}, "such as rand-m9-mstd0.5-inc1"),
        ({"balance": "weights", "class_weights": "1,2"}, "needed are 3 numbers"),
        ({"balance": "weights", "class_weights": "1,2,x"}, "needed are 3 numbers"),
        ({"in_chans": 5}, "5 are required"),
    ],
)
def test_wrong_data_settings(settings: dict[str, Any], words: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(vitlet.VitletError, match=re.escape(words)):
        train(config(folder, tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()


def test_arrays_of_your_own(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 16, 16, 3), np.uint8)
    images = Arrays.of(pixels, [index % 3 for index in range(24)])
    dataset = Dataset(("a", "b", "c"), images, images, None, "random")
    result = train(config(tmp_path, tmp_path / "run", epochs=1), dataset)
    assert result.note == "random"


def test_class_weights_are_inverse_to_counts() -> None:
    images = Arrays(torch.zeros(6, 1, 2, 2, dtype=torch.uint8), (0, 0, 0, 1, 1, 2))
    dataset = Dataset(("a", "b", "c", "d"), images, None, None, "")
    found = class_weights(RunConfig(balance="weights"), dataset, 4)
    assert found is not None
    assert found.tolist() == pytest.approx([6 / 9, 1.0, 2.0, 0.0])


def test_balanced_accuracy_and_per_class() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(labels.clamp(max=1), 4).float()

    labels = torch.tensor([0, 0, 0, 0, 1, 2])  # class 2 is always taken for 1, class 3 has no image
    scores = evaluate(Fixed(), [(labels, labels)], classes=4, device=torch.device("cpu"), autocast=nullcontext)  # type: ignore[arg-type]
    assert scores.per_class == (100.0, 100.0, 0.0, None)
    assert scores.top1 == pytest.approx(100 * 5 / 6)
    assert scores.balanced == pytest.approx(200 / 3)


def test_a_run_begins_by_saying_what_it_learns_from(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "digit 2").rename(folder / "digit\x1b[2J")
    train(config(folder, tmp_path / "run", epochs=1))
    assert "21 training images of 3 classes ('digit\\x1b[2J', digit 0, digit 1)" in capsys.readouterr().out


def test_test_images_can_be_watched_and_choose_nothing(shared_folder: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(shared_folder / split, tmp_path / "data" / split)
    plain = config(tmp_path / "data", tmp_path / "plain", val_fraction=0.0)
    unseen = train(plain)
    result = train(replace(plain, eval_on_test=True, output=str(tmp_path / "watched")))
    rows = read_rows(tmp_path / "watched")
    assert result.val is None
    assert result.test is not None
    assert result.best_epoch == 2  # the last one, whichever is better
    assert rows[-1]["test/top1"] == result.test.top1 == unseen.test.top1  # type: ignore[union-attr]
    assert len([row for row in rows if "test/top1" in row]) == 2
    assert any("test/top1 of the epochs is of the test images" in line for line in result.warnings)
    first, second = weights(tmp_path / "plain"), weights(tmp_path / "watched")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_test_images_that_are_not_there_cannot_be_watched(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(vitlet.errors.VitletError, match="eval_on_test requires labelled test images, found none"):
        train(config(folder, tmp_path / "run", pretrain=True, eval_on_test=True))


@pytest.mark.parametrize(("images", "said"), [(19, True), (20, False)])
def test_few_images_are_said(images: int, said: bool) -> None:
    pixels = np.zeros((images, 8, 8, 3), np.uint8)
    train_set = Arrays.of(pixels, [index % 4 for index in range(images)])
    line = "only 19 training images of 4 classes: fewer than 5 per class. Check the data, --fraction and --per-class."
    assert few_images(Dataset(tuple("abcd"), train_set, None, None, "")) == ((line,) if said else ())
    assert few_images(Dataset((), train_set, None, None, ""))[0].startswith(f"only {images} training images.")
