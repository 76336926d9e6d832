"""What the loop can be told: averages, accumulation, patience, checkpoints, compilation, other start methods."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import nn

import faults
import vitlet
from vitlet.cli import main
from vitlet.cli.commands.train import run_config
from vitlet.config import RunConfig
from vitlet.inference.predict import Predictor
from vitlet.objective import Objective, Outcome
from vitlet.training.checkpoint import Checkpoints
from vitlet.training.ema import Average
from vitlet.training.jobs import build_job
from vitlet.training.loop import train
from vitlet.training.resume import find_unfinished
from vitlet.training.run_folder import read_config, read_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults.write_images(tmp_path_factory.mktemp("options") / "data")


def config(data: Path, output: Path, **changes: Any) -> RunConfig:
    return replace(faults.make_config(data, output, **changes), resume=None)


def last(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "last" / "model.safetensors")


def test_the_average_is_what_a_slow_loop_says() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = Average(model, decay=0.5)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for step in range(1, 6):
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter))
        model[1].num_batches_tracked.add_(1)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, tensor in model.state_dict().items():
            moved = decay * expected[name] + (1 - decay) * tensor if tensor.is_floating_point() else tensor.clone()
            expected[name] = moved
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with average.in_place():
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor, expected[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_averages_are_evaluated_and_exported(data: Path, tmp_path: Path) -> None:
    train(config(data, tmp_path / "plain"))
    result = train(config(data, tmp_path / "averaged", model_ema=True))
    newest, _ = Checkpoints(tmp_path / "averaged" / "checkpoints").newest()
    assert newest is not None
    average, own = newest.tensors("average.safetensors"), newest.tensors("objective.safetensors")
    exported = last(tmp_path / "averaged")
    plain = last(tmp_path / "plain")
    assert all(torch.equal(exported[name], average[name]) for name in exported)
    assert all(torch.equal(plain[name], own[f"backbone.model.{name}"]) for name in plain)  # training is not disturbed
    assert not torch.equal(exported["patch_embed.proj.weight"], plain["patch_embed.proj.weight"])
    scores, _ = Predictor.load(tmp_path / "averaged").evaluate(split="val")
    assert result.val is not None
    assert scores.loss == pytest.approx(result.val.loss, abs=1e-6)


def test_accumulated_gradients_are_those_of_the_whole_batch(data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"tasks": {}, "hflip": 0.0, "epochs": 1}  # nothing is drawn that depends on the parts
    train(config(data, tmp_path / "whole", **changes))
    train(config(data, tmp_path / "parts", grad_accum_steps=4, **changes))
    whole, parts = last(tmp_path / "whole"), last(tmp_path / "parts")
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], atol=2e-5, rtol=0.0)
    assert read_rows(tmp_path / "whole")[0]["train/loss"] == pytest.approx(
        read_rows(tmp_path / "parts")[0]["train/loss"], abs=1e-6
    )


def test_patience(data: Path, tmp_path: Path) -> None:
    result = train(config(data, tmp_path / "run", epochs=50, patience=2, lr=1e-9, min_lr=0.0))
    rows = read_rows(tmp_path / "run")
    assert len(rows) == result.best_epoch + 2 < 50
    assert any("none of the last 2 was better" in warning for warning in result.warnings)
    assert (tmp_path / "run" / "last" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("rule", "size", "expected"),
    [("linear", 256, 5e-4 * 8 / 256), ("linear", 512, 5e-4 * 8 / 512), ("sqrt", 256, 5e-4 * (8 / 256) ** 0.5)],
)
def test_the_learning_rate_scales_with_the_batch(
    rule: str, size: int, expected: float, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(
        config(data, tmp_path / "run", lr_base=5e-4, lr_base_size=size, lr_base_scale=rule, epochs=1, warmup_epochs=0.0)
    )
    assert read_rows(tmp_path / "run")[0]["lr"] == pytest.approx(expected)
    text = f"8 / {size}" if rule == "linear" else f"sqrt(8 / {size})"
    assert f"learning rate {expected:g} = 0.0005 x {text}" in capsys.readouterr().out
    assert read_config(tmp_path / "run").lr == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"checkpoint_hist": 3}, ["step-00000004-evaluated", "step-00000008-evaluated", "step-00000012-evaluated"]),
        ({"checkpoint_epochs": 2}, ["step-00000008-evaluated", "step-00000012-evaluated"]),
        ({"checkpoint_epochs": None}, ["step-00000012-evaluated"]),
        ({"checkpoint_epochs": None, "checkpoint_steps": 5}, ["step-00000010", "step-00000012-evaluated"]),
        ({"checkpoint_epochs": None, "checkpoint_minutes": 0.0}, ["step-00000012", "step-00000012-evaluated"]),
    ],
    ids=str,
)
def test_checkpoints_come_when_asked_for(
    settings: dict[str, Any], names: list[str], data: Path, tmp_path: Path
) -> None:
    train(config(data, tmp_path / "run", **{"checkpoint_steps": None, **settings}))
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == names


@pytest.fixture
def saved_bytes() -> Iterator[list[int]]:
    """Bytes that autograd keeps for the backward pass, one number for each tensor."""
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_gradient_checkpointing_keeps_less_and_changes_nothing(
    model: str, data: Path, tmp_path: Path, saved_bytes: list[int]
) -> None:
    kwargs = {**faults.VIT, "depth": 6} if "vit" in model else {**faults.SWIN, "depths": [3, 3]}
    found, gradients = [], []
    for recompute in (False, True):
        settings = config(data, tmp_path / "x", model=model, model_kwargs=kwargs, grad_checkpointing=recompute)
        objective = build_job(replace(settings, drop_path=0.2)).objective.train()
        torch.manual_seed(0)
        images = torch.randn(4, 3, 16, 16)
        saved_bytes.clear()
        torch.manual_seed(1)
        objective(images, torch.tensor([0, 1, 2, 0]), objective.weights(1.0)).loss.backward()
        found.append(sum(saved_bytes))
        gradients.append({name: p.grad for name, p in objective.named_parameters() if p.grad is not None})
    assert found[1] < 0.6 * found[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])


def test_a_network_that_cannot_recompute_is_refused(data: Path, tmp_path: Path) -> None:
    found = [name for name in ("test_vit", "vgg11", "sequencer2d_s", "inception_v3") if name in timm.list_models()]
    refused = 0
    for name in found:
        try:
            build_job(
                config(data, tmp_path / "x", model=name, model_kwargs={}, img_size=(96, 96), grad_checkpointing=True)
            )
        except vitlet.VitletError as problem:
            refused += "leave out --grad-checkpointing" in str(problem)
    assert refused


def test_half_precision_with_a_scaler_trains_and_resumes(data: Path, tmp_path: Path) -> None:
    settings = config(data, tmp_path / "run", amp=True, amp_dtype="float16")
    train(settings)
    newest, _ = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert newest.state()["scaler"]["scale"] > 1
    assert all(tensor.isfinite().all() for tensor in last(tmp_path / "run").values())


@pytest.mark.heavy
def test_compiled_training_gives_the_same_losses(data: Path, tmp_path: Path) -> None:
    settings = config(data, tmp_path / "plain", epochs=1, model_kwargs={**faults.VIT, "depth": 1})
    train(settings)
    train(replace(settings, output=str(tmp_path / "compiled"), compile=True))
    plain, compiled = last(tmp_path / "plain"), last(tmp_path / "compiled")
    assert plain.keys() == compiled.keys()
    for name in plain:
        torch.testing.assert_close(plain[name], compiled[name], atol=1e-4, rtol=0.0)


SPAWN = """
import multiprocessing, sys
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    import torch
    torch.set_num_threads(1)
    from vitlet.cli import main
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.heavy
def test_the_spawn_start_method(data: Path, tmp_path: Path) -> None:
    """As on Windows and macOS: loading processes start from nothing."""
    (tmp_path / "program.py").write_text(SPAWN)
    train(config(data, tmp_path / "here", epochs=1, tasks={}))
    (tmp_path / "run.yaml").write_text(read_config(tmp_path / "here").dump())
    words = ["train", "-c", str(tmp_path / "run.yaml"), "-j", "2", "--output", str(tmp_path / "spawned")]
    done = subprocess.run([sys.executable, str(tmp_path / "program.py"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    here, spawned = last(tmp_path / "here"), last(tmp_path / "spawned")
    assert all(torch.equal(here[name], spawned[name]) for name in here)


def job_settings(words: list[str]) -> RunConfig:
    """What a command line comes to, no setting open."""
    return build_job(run_config("vitlet train", "", words[1:])[0]).config


def test_resume_auto_without_an_output(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--model vit_tiny_patch16_224 --model-kwargs patch_size=4 embed_dim=24 depth=1 num_heads=2 --img-size 16"
    words = ["train", str(data), *small.split(), "-b", "8", "--epochs", "2", "--device", "cpu", "--resume", "auto"]
    calls = [0]
    forward = Objective.forward

    def fail_late(self: Objective, *positional: Any, **named: Any) -> Outcome:
        calls[0] += self.training
        if calls[0] == 6:
            raise KeyboardInterrupt
        return forward(self, *positional, **named)

    monkeypatch.setattr(Objective, "forward", fail_late)
    assert main(words) == 130
    monkeypatch.setattr(Objective, "forward", forward)
    assert main([*words, "--seed", "1"]) == 0  # other settings: another run
    shutil.rmtree("runs/data-vit_tiny_patch16_224-2")
    for others in ("--seed", "1"), ("--aug", "drloc"), ("--drop-path", "0.1"), ("--task", "drloc=1"):
        calls[0] = 0
        monkeypatch.setattr(Objective, "forward", fail_late)
        assert main([*words[:-2], *others, "--output", "runs/data-vit_tiny_patch16_224-9", "--overwrite"]) == 130
        assert find_unfinished(job_settings(words)) == Path("runs/data-vit_tiny_patch16_224-1")
    shutil.rmtree("runs/data-vit_tiny_patch16_224-9")
    monkeypatch.setattr(Objective, "forward", forward)
    assert main([*words, "--seed", "1"]) == 0
    assert main(words) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "data-vit_tiny_patch16_224-1",
        "data-vit_tiny_patch16_224-2",
    ]
    assert "continued from runs/data-vit_tiny_patch16_224-1/checkpoints/step-00000004" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 9, "grad_accum_steps": 2}, r"batch_size \(9\) must be divisible by grad_accum_steps \(2\)"),
        ({"fsdp": True, "amp": True, "amp_dtype": "float16"}, "fsdp does not work with float16"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"lr_base": 0.0}, "lr_base must be greater than 0, got 0"),
        ({"model_ema_decay": 1.5}, "between 0 and 1"),
        ({"checkpoint_hist": 0}, "must be at least 1, got 0"),
        ({"nproc": 0}, "must be at least 1, got 0"),
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(vitlet.VitletError, match=words):
        RunConfig(**settings)


def test_more_parts_than_images(data: Path, tmp_path: Path) -> None:
    settings = config(data, tmp_path / "run", batch_size=64, grad_accum_steps=64)
    with pytest.raises(vitlet.VitletError, match=r"33 training images .* are too few for 64 micro-batches"):
        train(settings)
    assert not (tmp_path / "run").exists()
