"""Logistic regression on frozen features as a run: what it fits, what takes it, what is refused."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression

from builders.released import lite_medsam, mobile_sam
from builders.runs import VIT, config
from vitlet.cli import main
from vitlet.cli.commands.train import run_config
from vitlet.config import RunConfig
from vitlet.data.glance import Glance
from vitlet.errors import VitletError
from vitlet.experiments import portfolio
from vitlet.experiments.portfolio import portfolio_members
from vitlet.models.layouts import LAYOUTS
from vitlet.training.choice import choose, choose_for
from vitlet.training.distributed import World
from vitlet.training.jobs import LogisticJob, build_job
from vitlet.training.logistic import STRENGTHS, FrozenFeatures, fit_logistic
from vitlet.training.loop import train
from vitlet.training.run_folder import read_config, read_rows

MOBILE_SAM = next(layout for layout in LAYOUTS if layout.name == "MobileSAM")
AT_ONCE: dict[str, Any] = {"freeze": True, "head": "logistic", "epochs": 100}


@pytest.fixture(scope="module")
def first(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose features are used."""
    path = tmp_path_factory.mktemp("first") / "run"
    train(config(shared_folder, path, epochs=2))
    return path


@pytest.fixture(scope="module")
def fitted(shared_folder: Path, first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "run"
    train(config(shared_folder, path, init=str(first), **AT_ONCE))
    return path


def features(classes: int = 3, count: int = 40, seed: int = 0, views: int = 1) -> FrozenFeatures:
    labels = torch.arange(count) % classes
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, 5, generator=torch.Generator().manual_seed(9))
    noise = torch.randn(count, views, 5, generator=generator)
    return FrozenFeatures(3 + 10 * (centres[labels][:, None] + noise), labels)


@pytest.mark.parametrize("classes", [2, 3])
def test_it_is_scikit_learns_regression_of_standardized_features(classes: int) -> None:
    known, held, asked = (features(classes, seed=seed) for seed in range(3))
    found = fit_logistic(known, held, classes=classes)
    inputs = known.views[:, 0].double().numpy()
    mean, spread = inputs.mean(0), inputs.std(0)
    one = LogisticRegression(C=found.strength, tol=1e-8, max_iter=1000).fit((inputs - mean) / spread, known.labels)
    wanted = one.predict_proba((asked.views[:, 0].double().numpy() - mean) / spread)
    given = (asked.views[:, 0] @ found.weight.T + found.bias).softmax(-1)
    np.testing.assert_allclose(given.numpy(), wanted, atol=1e-2)


def test_the_strength_has_the_least_loss_on_held_out_images() -> None:
    known, held = features(count=30), features(count=30, seed=1)
    found = fit_logistic(known, held, classes=3)
    losses = {strength: held.loss(_at(known, strength)) for strength in STRENGTHS}
    assert found.strength == min(losses, key=lambda each: losses[each])
    without = fit_logistic(known, None, classes=3)
    assert without.strength in STRENGTHS


def _at(known: FrozenFeatures, strength: float) -> Any:
    from vitlet.training import logistic

    return logistic._fitted(known, strength, 3, None)


def test_a_class_without_images_is_never_predicted() -> None:
    known, held = features(), features(seed=1)
    found = fit_logistic(known, held, classes=5)
    logits = held.views[:, 0] @ found.weight.T + found.bias
    assert logits[:, 3:].max() < logits[:, :3].max(1).values.min() - 10
    single = FrozenFeatures(known.views, torch.zeros_like(known.labels))
    only = fit_logistic(single, single, classes=2)
    assert (single.views[:, 0] @ only.weight.T + only.bias).argmax(1).eq(0).all()


def test_weights_of_classes_count() -> None:
    views, labels = torch.randn(80, 1, 3), (torch.arange(80) % 8 == 0).long()
    noise, weights = FrozenFeatures(views, labels), torch.tensor([1.0, 7.0])
    plain, weighed = (fit_logistic(noise, noise, classes=2, weights=each) for each in (None, weights))
    rare = [float((views[:, 0] @ one.weight.T + one.bias).softmax(-1)[:, 1].mean()) for one in (plain, weighed)]
    assert rare == pytest.approx([1 / 8, 1 / 2], abs=0.05)


def test_the_run_is_an_ordinary_one(fitted: Path, first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = read_config(fitted)
    assert (stored.epochs, stored.aug, stored.head, stored.crop) == (1, "none", "logistic", "none")
    (row,) = read_rows(fitted)
    assert {"train/loss", "train/strength", "val/top1", "images_per_second"} <= row.keys()
    ours, theirs = (load_file(run / "best" / "model.safetensors") for run in (fitted, first))
    assert {name for name in ours if not torch.equal(ours[name], theirs[name])} == {"head.weight", "head.bias"}
    result = json.loads((fitted / "result.json").read_text())
    assert result["test"]["top1"] > 40 and "--epochs" not in result["verdict"]
    assert main(["evaluate", str(fitted), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(result["test"]["top1"])


@pytest.mark.heavy
def test_every_command_takes_it(
    fitted: Path, shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(next((shared_folder / "test" / "digit 1").iterdir()))
    assert main(["predict", str(fitted), image, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["classes"]
    assert main(["calibrate", str(fitted)]) == 0
    assert main(["export", str(fitted), "--format", "safetensors", "--output", str(tmp_path / "e")]) == 0
    assert main(["explain", str(fitted), "--images", image, "--output", str(tmp_path / "x")]) == 0
    assert main(["report", str(fitted), "--output", str(tmp_path / "report.html")]) == 0
    assert (
        main(["train", str(shared_folder), "--init", str(fitted), "--epochs", "1", "--output", str(tmp_path / "t")])
        == 0
    )


def test_mirrored_images_are_fitted_too(shared_folder: Path, first: Path, tmp_path: Path) -> None:
    job = build_job(config(shared_folder, tmp_path, init=str(first), tta="flip", **AT_ONCE))
    assert isinstance(job, LogisticJob)
    job.model.eval()
    found = job.features(job.dataset.train, lambda: None)
    assert found.views.shape == (24, 2, VIT["embed_dim"]) and len(found.all_labels) == 48
    assert not torch.allclose(found.views[:, 0], found.views[:, 1])


def test_killed_before_its_end_it_is_the_same_run(
    shared_folder: Path, first: Path, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(shared_folder, tmp_path / "run", init=str(first), **AT_ONCE)

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    for place in ("vitlet.training.logistic.fit_logistic", "vitlet.training.loop.finish"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(place, lambda *arguments, **options: killed())
            begun = (tmp_path / "run").is_dir()
            train(replace(settings, resume=str(tmp_path / "run")) if begun else settings, given={})
        assert not (tmp_path / "run" / "result.json").exists()
    train(replace(settings, resume=str(tmp_path / "run")), given={})
    ours, theirs = (load_file(run / "best" / "model.safetensors") for run in (tmp_path / "run", fitted))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"freeze": False}, "fitted on frozen features: add --freeze"),
        ({"task": {"drloc": 0.5}}, "task does not work with it"),
        ({"mixup": 0.8}, "mixup does not work with it"),
        ({"hflip": 0.5}, "hflip does not work with it"),
        ({"aug": "standard"}, "aug standard does not work"),
        ({"crop": "resized"}, "crop resized does not work"),
        ({"aa": "rand-m9"}, "aa rand-m9 does not work"),
        ({"model_ema": True}, "model_ema does not work"),
        ({"balance": "sampler"}, "balance sampler does not work"),
        ({"layer_decay": 0.7}, "layer_decay does not work"),
        ({"img_size": 32, "img_size_start": 16}, "img_size_start does not work"),
    ],
)
def test_what_needs_steps_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(VitletError) as caught:
        RunConfig.from_dict({"init": "run", "freeze": True, "head": "logistic", **changes})
    assert words in str(caught.value)


def test_what_the_data_or_the_network_forbid(
    shared_folder: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(shared_folder, tmp_path / "run", init=str(first), **AT_ONCE)
    with pytest.raises(VitletError, match=r"one pass; leave out --epochs 7"):
        build_job(replace(settings, epochs=7))
    monkeypatch.setattr("timm.models.vision_transformer.VisionTransformer.get_classifier", lambda self: self.norm)
    with pytest.raises(VitletError, match=r"one linear layer; found another in vit_tiny_patch16_224"):
        build_job(settings).batches(World())
    lite_medsam(tmp_path / "lite.pth")
    with pytest.raises(VitletError, match=r"290 of 294 .* would stay random\. Leave out --freeze"):
        build_job(
            RunConfig(data=str(shared_folder), model="tiny_vit_5m_224", init=str(tmp_path / "lite.pth"), freeze=True)
        )
    assert not (tmp_path / "run").exists()


def test_a_known_file_chooses_model_and_settings(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mobile_sam.pt"
    mobile_sam(file)
    tuned, given, choices = run_config("vitlet train", "", [str(folder), "--init", str(file), "--lr", "0.01"])
    assert choices == "tasks"  # whether the file is known is seen once torch is there
    choice = choose(tuned, given)
    assert choice.config.model == "tiny_vit_5m_224" and choice.config.lr == 0.01 and choice.config.layer_decay == 0.75
    assert choice.config.img_size == (64, 64) and choice.config.hflip == 0.0
    assert "not measured" in choice.lines[0] and "MobileSAM, 294 of 294" in choice.lines[2]
    both = [str(folder), "--init", str(file), "--freeze", "--head", "logistic"]
    frozen = choose(*run_config("vitlet train", "", both)[:2])
    assert (frozen.config.model, frozen.config.img_size) == ("tiny_vit_5m_224", (96, 96))
    assert "logistic regression on frozen features" in frozen.lines[1]
    assert frozen.config.model_kwargs["window_sizes"] == [7, 6, 6]
    own = choose(*run_config("vitlet train", "", [*both, "--model-kwargs", "act_layer=relu"])[:2])
    assert own.config.model_kwargs == {"act_layer": "relu"}


def test_a_search_from_trained_weights_begins_with_frozen_features() -> None:
    config = RunConfig(init="mobile_sam.pt", minutes=9.0, seed=3)
    choice = choose_for(config, {"init", "minutes", "seed"}, Glance(1000, 10, 96, 3), "cpu", MOBILE_SAM)
    frozen, tuned = (each.config for each in portfolio_members(choice, ["init", "minutes", "seed"]))
    assert tuned == choice.config and not tuned.freeze and len(frozen.model_kwargs["depths"]) == 3
    assert frozen.freeze and frozen.head == "logistic" and not frozen.model_ema and frozen.seed == 3
    same = ("model", "img_size", "crop_pct", "tta", "init", "in_chans")  # an ensemble shows both the same image
    assert [getattr(frozen, key) for key in same] == [getattr(tuned, key) for key in same]


@pytest.mark.heavy
def test_the_front_door_from_a_released_file(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mobile_sam(tmp_path / "mobile_sam.pt")
    monkeypatch.chdir(tmp_path)
    more = ["--device", "cpu", "-j", "0", "--img-size", "32"]
    words = ["train", str(shared_folder), "--init", "auto", "--freeze", "--head", "logistic", *more]
    assert main([*words, "--output", "frozen"]) == 0
    assert "trained weights mobile_sam.pt: MobileSAM" in capsys.readouterr().out
    assert main(["train", str(shared_folder), "--init", "mobile_sam.pt", "--epochs", "1", *more, "--output", "t"]) == 0
    assert read_config(Path("t")).model == "tiny_vit_5m_224"
    torch.save({"a": torch.ones(2)}, "odd.pth")
    assert main(["train", str(shared_folder), "--init", "odd.pth", *more]) == 2
    error = capsys.readouterr().err
    assert "near no known layout" in error and not Path("runs").exists()


@pytest.mark.heavy
def test_a_search_from_a_released_file_is_a_run(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mobile_sam(tmp_path / "mobile_sam.pt")
    monkeypatch.setattr(portfolio, "SHORT", 0.0)
    monkeypatch.setattr(portfolio, "measure_speed", lambda job, watch: None)
    monkeypatch.setattr(portfolio, "expected_seconds", lambda job, world, speed: (20.0, {}))
    monkeypatch.setattr("vitlet.training.clock.STARTED", time.monotonic())
    words = [
        "--init",
        str(tmp_path / "mobile_sam.pt"),
        "--minutes",
        "1",
        "--img-size",
        "32",
        "--device",
        "cpu",
        "-j",
        "0",
    ]
    assert main(["train", str(shared_folder), *words, "--output", str(tmp_path / "s")]) == 0
    assert "member 1 of 2: tiny_vit_5m_224" in capsys.readouterr().out
    first, second = (read_config(tmp_path / "s" / "members" / name) for name in "12")
    assert (first.head, second.head) == ("logistic", "linear") and not second.freeze
    both = {"members/1": 0.5, "members/2": 0.5}
    record = json.loads((tmp_path / "s" / "search.json").read_text())
    assert record["done"] and len(record["members"]) == 2
    (tmp_path / "s" / "search.json").write_text(json.dumps(record | {"weights": both}))
    assert main(["evaluate", str(tmp_path / "s"), "--json"]) == 0
