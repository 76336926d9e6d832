"""What `vitlet train DATA` chooses by itself: by the data, by the machine, and never over what was asked for."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from builders import ROOT
from builders.runs import SMALL
from vitlet.cli import main
from vitlet.cli.commands.train import run_config
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.glance import Glance, glance
from vitlet.data.images import Arrays, Dataset, Files
from vitlet.data.sources import Request, open_dataset
from vitlet.errors import VitletError
from vitlet.statistics import student
from vitlet.training import budget
from vitlet.training.budget import Speed
from vitlet.training.choice import Choice, choose, choose_for, smallest
from vitlet.training.knowledge import EVERY, MeasuredRun, Rule, knowledge
from vitlet.training.run_folder import read_config

PHOTOS = Glance(images=1000, classes=10, side=96.0, channels=3)


def chosen(*words: str, found: Glance = PHOTOS, device: Any = "cpu") -> RunConfig:
    config, given, choices = run_config("vitlet train", "", ["DATA", *words])
    assert choices == "all"
    return choose_for(config, given, found, device).config


@pytest.mark.parametrize("device", ["cpu", "accelerator"])
@pytest.mark.parametrize("side", [8, 28, 32, 64, 96, 160, 500, 4000])
@pytest.mark.parametrize("images", [2, 500, 5_000, 1_000_000])
def test_there_is_a_choice_for_everything(device: Any, side: float, images: int) -> None:
    for words in ([], ["--task", "sprel"]):
        config = chosen(*words, found=Glance(images, 10, side, 3), device=device)
        assert config.model in timm.list_models()
        assert config.img_size is not None and f"_for_{max(32, config.img_size[0])}px" in config.model
        assert 8 <= config.batch_size <= 128 and 20 <= config.epochs <= 300
        with torch.device("meta"):
            assert timm.create_model(config.model, num_classes=10) is not None


def test_more_and_larger_images_are_trained_otherwise() -> None:
    small, photos = chosen(found=Glance(1000, 10, 32, 3)), chosen()
    assert (small.img_size_start, small.img_size) == ((24, 24), (32, 32)) and small.model.endswith("_for_32px")
    assert (photos.img_size_start, photos.img_size) == ((48, 48), (64, 64)) and photos.model.endswith("_for_64px")
    large = chosen(found=Glance(1000, 10, 1200, 3))
    assert large.img_size == (96, 96)
    assert chosen(found=Glance(30_000, 10, 1200, 3)).img_size == (64, 64)  # on a CPU that would take too long
    epochs = [chosen(found=Glance(images, 10, 96, 3)).epochs for images in (10, 100, 1000, 3000, 10_000, 10**6)]
    assert epochs == sorted(epochs, reverse=True) and epochs[:3] == [300, 300, 200] and epochs[-1] == 20
    assert [chosen(found=Glance(images, 2, 96, 3)).batch_size for images in (2, 100, 200, 10_000)] == [8, 8, 16, 32]
    gpu = chosen(found=Glance(1000, 10, 1200, 3), device="accelerator")
    assert gpu.img_size == (128, 128) and gpu.model != large.model


def test_what_is_given_is_kept_and_the_rest_follows() -> None:
    assert chosen("--img-size", "96").img_size == (96, 96)
    assert chosen("--img-size", "96").model == "resnet_s_for_96px" and chosen("--img-size", "96").img_size_start is None
    assert chosen("--img-size", "100:120").img_size_start == (100, 100)
    kept = chosen("--epochs", "7", "-b", "48", "--lr", "0.1", "--no-model-ema", "--tta", "none", "--in-chans", "1")
    assert (kept.epochs, kept.batch_size, kept.lr, kept.model_ema, kept.tta) == (7, 48, 0.1, False, "none")
    assert kept.in_chans == 1 and kept.opt == "muon"
    light = chosen("--aug", "light")
    assert light.aug == "light" and light.img_size_start is None  # it does not resize crops
    assert chosen("--aug", "light", "--crop", "resized").img_size_start == (48, 48)
    assert chosen("--crop", "padded").img_size_start is None
    sgd = chosen("--opt", "sgd")
    assert (sgd.opt, sgd.lr, sgd.weight_decay) == ("sgd", RunConfig().lr, RunConfig().weight_decay)
    assert chosen("--lr-base", "0.01").lr == RunConfig().lr
    assert chosen("--fsdp").opt == "adamw"
    assert chosen("--grad-accum-steps", "128").batch_size == 128
    assert chosen("--minutes", "3").epochs == RunConfig().epochs
    tasks = chosen("--task", "attention-distance=0.1")
    assert tasks.model == "botnet_s_for_64px" and tasks.tasks == {"attention-distance": TaskConfig(0.1)}
    assert chosen("--task", "none").tasks == {}
    assert chosen("--positions", "off").model == "botnet_s_for_64px"


def test_signs_are_not_mirrored_and_grey_stays_grey() -> None:
    signs = Glance(1000, 10, 28, 1, mirrored=False)
    config = chosen(found=signs)
    assert (config.hflip, config.tta, config.in_chans) == (0.0, "none", 1)
    assert chosen("--hflip", "0.5", found=signs).tta == "flip"
    assert chosen("--hflip", "0").tta == "none"
    assert chosen("--hflip", "0", "--tta", "flip").tta == "flip"
    assert chosen(found=Glance(1000, 10, 96, 3, streamed=True)).img_size_start is None


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        ([], "all"),
        (["--resume", "auto"], "all"),
        (["--model", "vit_tiny_patch16_224"], "tasks"),
        (["--model", "vit_tiny_patch16_224", "--task", "none"], "nothing"),
        (["--model-kwargs", "depth=2"], "tasks"),
        (["--pretrained"], "tasks"),
        (["--init", "weights.pth"], "tasks"),
        (["--resume", "runs/some"], "tasks"),
        (["-c", "run.yaml"], "tasks"),
    ],
)
def test_nothing_is_chosen_where_the_network_is_known(
    words: list[str], choices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("epochs: 3\n")
    config, _, found = run_config("vitlet train", "", ["images", *words])
    assert found == choices
    assert config.opt == "adamw" and config.aug == "light"


def saved(root: Path, sizes: Sequence[tuple[int, int]], mode: str = "RGB") -> list[Path]:
    paths = []
    for number, size in enumerate(sizes):
        path = root / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise(size, 50).convert(mode).save(path)
        paths.append(path)
    return paths


def test_a_glance(tmp_path: Path) -> None:
    saved(tmp_path / "a", [(40, 30), (30, 50), (100, 90), (20, 300), (31, 31)])
    found = glance(open_dataset(Request(str(tmp_path / "a"))))
    assert found == Glance(5, 2, 30, 3)
    saved(tmp_path / "grey", [(8, 8)] * 4, "L")
    assert glance(open_dataset(Request(str(tmp_path / "grey")))).channels == 1
    saved(tmp_path / "mixed" / "birds", [(8, 8)] * 2, "L")
    saved(tmp_path / "mixed" / "crows", [(8, 8)] * 2)
    (tmp_path / "mixed" / "birds" / "cat" / "broken.png").write_bytes(b"no image")
    assert glance(open_dataset(Request(str(tmp_path / "mixed")))) == Glance(5, 2, 8, 3)
    digits = glance(open_dataset(Request("digits")))
    assert (digits.side, digits.channels, digits.mirrored) == (8, 1, False)
    many = Arrays.of(np.zeros((6, 12, 14, 5), np.uint8), [0, 1] * 3)
    assert glance(Dataset(("left", "right"), many, None, None, "")) == Glance(6, 2, 12, 5, mirrored=False)
    gone = Files((tmp_path / "nowhere.png",) * 4, (0, 1, 0, 1))
    assert glance(Dataset(("a", "b"), gone, None, None, "")).side is None
    assert choose_for(RunConfig(), {}, Glance(4, 2, None, 3), "cpu").config.img_size is not None


def test_the_choice_is_printed_written_down_and_repeatable(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["--epochs", "2", "--device", "cpu", "-j", "0", "--output", str(run)]
    assert main(["train", str(folder), *words]) == 0
    printed = capsys.readouterr().out
    first = "chosen for 21 images of about 16 px on a CPU: resnet_s_for_32px at 16 px, 2 epochs (not measured"
    assert first in printed and "to choose yourself, name a --model" in printed
    assert re.search(r"speed test: about \d:\d\d from here, in (bfloat16|float32).*; the test took \d+\.\d s", printed)
    config = read_config(run)
    assert (config.model, config.opt, config.batch_size, config.hflip) == ("resnet_s_for_32px", "muon", 8, 0.0)
    assert (run / "config.yaml").read_text(encoding="utf-8").startswith(f"# {first}")
    again = tmp_path / "again"
    assert main(["train", "-c", str(run / "config.yaml"), "--output", str(again)]) == 0
    assert (run / "last" / "model.safetensors").read_bytes() == (again / "last" / "model.safetensors").read_bytes()


def test_a_stopped_run_is_found_again_whatever_the_speed_test_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own plan stays, where a new run would validate less often."""

    def measured(validation: float) -> Speed:
        return Speed({"amp": False, "channels_last": False}, {(16, 16): 1.0}, validation, test=0.0)

    monkeypatch.chdir(tmp_path)
    words = ["train", str(folder), "--epochs", "2", "--device", "cpu", "-j", "0"]
    monkeypatch.setattr(budget, "measure_speed", lambda job, watch: measured(0.001))
    assert main([*words, "--resume", "auto"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    (run / "result.json").unlink()
    monkeypatch.setattr(budget, "measure_speed", lambda job, watch: measured(100.0))
    assert main([*words, "--resume", "auto"]) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.name]
    assert main([*words, "--output", "another"]) == 0
    assert (read_config(run).val_interval, read_config(Path("another")).val_interval) == (1, 2)


def test_the_dataset_of_a_choice_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose(RunConfig(data=str(folder), epochs=3))
    assert isinstance(choice, Choice) and choice.source is not None and len(choice.source.train) == 21
    assert choice.config.epochs == 3 and choice.config.model == "resnet_s_for_32px"


def test_what_was_measured_is_said() -> None:
    measured = MeasuredRun("benchmarks/results/a.csv", "plain", 120, {"imagenette": (72.84, 0.51)})
    rule = Rule("cpu", {}, EVERY, EVERY, measured)
    line = Choice(RunConfig(img_size=(64, 64)), rule, PHOTOS).lines[0]
    assert "(measured: 72.8 ± 0.5 % (imagenette) in 2 minutes of CPU time, benchmarks/results/a.csv)" in line


def test_measured_entries_are_what_the_committed_tables_say() -> None:
    for rule in knowledge().rules:
        if rule.measured is None:
            continue
        with (ROOT / rule.measured.table).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["arm"] == rule.measured.arm]
        assert rule.measured.accuracy
        for dataset, numbers in rule.measured.accuracy.items():
            same = [row for row in rows if row["dataset"] == dataset]
            found = [float(row["top1"]) for row in same if float(row["cpu_budget"]) == rule.measured.cpu_seconds]
            assert len(found) >= 3
            mean = student(found)
            assert (round(mean.value, 2), round(mean.high - mean.value, 2)) == numbers


def test_a_named_model_has_the_settings_of_before(folder: Path, tmp_path: Path) -> None:
    words = [*SMALL.split(), "--epochs", "1", "-b", "8", "-j", "0", "--device", "cpu", "--output", str(tmp_path / "r")]
    assert main(["train", str(folder), *words]) == 0
    config = read_config(tmp_path / "r")
    assert (config.opt, config.lr, config.aug, config.model_ema, config.autotune) == (
        "adamw",
        1e-3,
        "light",
        False,
        False,
    )


def quick(*words: str) -> list[str]:
    return ["train", *words, "--epochs", "1", "--device", "cpu", "-j", "0"]


def test_odd_data_is_trained_on_or_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "two", [(20, 20)] * 2)
    assert main(quick(str(tmp_path / "two"), "--output", str(tmp_path / "r2"))) in (0, 2)
    two = capsys.readouterr()
    assert "Traceback" not in two.err and ("only 2 training images" in two.out or two.err.startswith("vitlet: "))
    (tmp_path / "one" / "cat").mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "one" / "cat" / "0.png")
    assert main(quick(str(tmp_path / "one"))) == 2
    assert "class" in capsys.readouterr().err
    paths = saved(tmp_path / "thin", [(20, 20)] * 13)
    for path in paths[3::2]:
        path.unlink()
    assert main(quick(str(tmp_path / "thin"), "--output", str(tmp_path / "r3"))) == 0
    assert "the largest class has" in capsys.readouterr().out
    saved(tmp_path / "bad", [(20, 20)] * 12)[3].write_bytes(b"no image")
    assert main(quick(str(tmp_path / "bad"), "--output", str(tmp_path / "r4"))) == 2
    assert "cannot read the image" in capsys.readouterr().err and not (tmp_path / "r4").exists()
    assert main(quick(str(tmp_path / "bad"), "--skip-unreadable", "--output", str(tmp_path / "r4"))) == 0


def test_all_images_alike_large_ones_and_many_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(20):
        folder = tmp_path / "alike" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), "red").save(folder / f"{number}.png")
    assert main(quick(str(tmp_path / "alike"), "--output", str(tmp_path / "a"))) == 0
    assert "images are in several classes" in capsys.readouterr().out
    for number in range(6):
        folder = tmp_path / "large" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4000, 3000), (20 * number, 0, 0)).save(folder / f"{number}.jpg")
    assert main(quick(str(tmp_path / "large"), "--output", str(tmp_path / "l"))) == 0
    assert "images of about 3000 px on a CPU: resnet_s_for_96px at 64 to 96 px" in capsys.readouterr().out
    pixels = np.random.default_rng(0).integers(0, 255, (200, 8, 8), dtype=np.uint8)
    labels = np.arange(200) // 2
    np.savez(tmp_path / "many.npz", x_train=pixels, y_train=labels, x_val=pixels[::2], y_val=labels[::2])
    assert main(quick(str(tmp_path / "many.npz"), "--output", str(tmp_path / "m"))) == 0
    assert "100 classes" in capsys.readouterr().out


@pytest.mark.parametrize("budget", ["--minutes", "--cpu-minutes"])
def test_epochs_and_minutes_are_not_both_taken(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "DATA", budget, "5", "--epochs", "3"]) == 2
    assert "both limit the training" in capsys.readouterr().err


def test_tune_begins_with_the_choice(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[RunConfig] = []

    def stop(config: RunConfig, *more: Any, **options: Any) -> Any:
        asked.append(config)
        raise VitletError("enough")

    monkeypatch.setattr("vitlet.experiments.tuning.tune", stop)
    monkeypatch.chdir(tmp_path)
    assert main(["tune", str(folder), "--epochs", "1", "--device", "cpu"]) == 2
    assert main(["tune", str(folder), "--model", "resnet18", "--device", "cpu"]) == 2
    assert [config.model for config in asked] == ["resnet_s_for_32px", "resnet18"]
    assert (asked[0].epochs, asked[0].opt, asked[1].opt) == (1, "muon", "adamw")


def test_the_smallest_model_keeps_what_was_given() -> None:
    found = Glance(5000, 10, 96, 3)
    choice = choose_for(RunConfig(lr=0.1), {"lr"}, found, "cpu")
    small = smallest(choice, {"lr"})
    assert small is not None and choice.config.img_size_start == (48, 48)
    assert (small.config.model, small.config.img_size, small.config.img_size_start) == (
        "resnet_xs_for_32px",
        (32, 32),
        None,
    )
    assert small.config.lr == 0.1 and "not measured" in small.lines[0]
    assert smallest(small, {"lr"}) is None
    sized = choose_for(RunConfig(img_size=(96, 96)), {"img_size"}, found, "cpu")
    small = smallest(sized, {"img_size"})
    assert small is not None and (small.config.model, small.config.img_size) == ("resnet_xs_for_96px", (96, 96))
