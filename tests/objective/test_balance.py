"""Weights of tasks that are found while training: by learned spreads, and by gradient norms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import faults
import vitlet
from builders.runs import assert_close, finished
from vitlet import RunConfig, VitletError
from vitlet.config import TaskConfig
from vitlet.objective.balance import LARGEST, Balance, GradientNorms, Uncertainty
from vitlet.training.checkpoint import Checkpoints
from vitlet.training.jobs import build_job
from vitlet.training.loop import train
from vitlet.training.run_folder import read_rows

NAMES = ("criterion", "drloc", "position")
TASKS = {"drloc": TaskConfig(0.5, options={"hidden": 16, "pairs": 8}), "position": TaskConfig(0.2)}
SMALL = RunConfig(
    model="vit_tiny_patch16_224",
    model_kwargs={"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2},
    img_size=(8, 8),
    in_chans=1,
    epochs=2,
    batch_size=64,
    fraction=0.2,
    hflip=0.0,
    workers=0,
    tasks=TASKS,
)


def objective(balance: Balance | None) -> vitlet.Objective:
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=32, patch_size=8, num_classes=3)
    terms = [vitlet.Term(vitlet.DRLoc(hidden=16, pairs=8), 0.5), vitlet.Term(vitlet.Position(), 0.2)]
    return vitlet.Objective(vitlet.TimmBackbone(model), terms, balance=balance)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(4, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize("balance", [Uncertainty(NAMES), GradientNorms(NAMES)])
def test_starts_at_the_weights_that_were_given(balance: Balance) -> None:
    torch.manual_seed(1)
    fixed = objective(None)(*batch())
    torch.manual_seed(1)
    found = objective(balance)(*batch())
    assert fixed.weights == {"drloc": 0.5, "position": 0.2}
    assert {name: float(weight) for name, weight in found.weights.items()} == pytest.approx(
        {"criterion": 1.0, "drloc": 0.5, "position": 0.2}
    )
    torch.testing.assert_close(found.parts, fixed.parts)


def test_spreads_settle_where_the_formula_says() -> None:
    """With losses that do not change, exp(-s) goes to 1 / 2L, whatever the weight."""
    balance = Uncertainty(["criterion", "drloc"])
    losses = {"criterion": torch.tensor(2.0), "drloc": torch.tensor(0.05)}
    optimizer = torch.optim.Adam(balance.parameters(), lr=0.05)
    for _ in range(600):
        total = balance(losses, {"drloc": 0.3}, nn.Identity()).total
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    weights = balance(losses, {"drloc": 0.3}, nn.Identity()).weights
    assert float(weights["criterion"]) == pytest.approx(1 / 4, rel=0.01)
    assert float(weights["drloc"]) == pytest.approx(0.3 / 0.1, rel=0.01)


def test_a_loss_of_nothing_does_not_take_over() -> None:
    balance = Uncertainty(["drloc"])
    optimizer = torch.optim.SGD(balance.parameters(), lr=5.0)
    for _ in range(200):
        total = balance({"drloc": torch.tensor(-1.0)}, {}, nn.Identity()).total
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    assert (
        0.9 * LARGEST
        < float(balance({"drloc": torch.tensor(0.0)}, {}, nn.Identity()).weights["drloc"])
        < 1.01 * LARGEST
    )


def test_gradients_are_made_equal() -> None:
    """After one step's norms are known, each task's gradient is its weight times that of the labels."""
    joined = objective(GradientNorms(NAMES))
    torch.manual_seed(1)
    first = joined(*batch())
    norms = {name: float(norm) for name, norm in first.norms.items()}
    assert joined.balance.shared.startswith("blocks.") and set(norms) == set(NAMES)
    joined.balance.update([norms])
    torch.manual_seed(1)
    second = joined(*batch())
    place = joined.backbone.model.get_parameter(joined.balance.shared)
    for name, weight in (("drloc", 0.5), ("position", 0.2)):
        torch.manual_seed(1)
        alone = joined.eval()(batch()[0], None, {name: 1.0})
        joined.train()
        slope = torch.autograd.grad(alone.loss, place)[0].norm().item()
        assert float(second.weights[name]) * slope == pytest.approx(weight * norms["criterion"], rel=1e-3)
    second.loss.backward()
    assert place.grad is not None


def test_norms_are_averaged_over_parts_and_steps() -> None:
    balance = GradientNorms(["criterion", "drloc"], memory=0.5)
    assert {name: float(factor) for name, factor in balance.factors().items()} == {"criterion": 1.0, "drloc": 1.0}
    balance.update([{"criterion": 1.0, "drloc": 3.0}, {"criterion": 3.0, "drloc": 5.0}])
    assert balance.average.tolist() == [2.0, 4.0]
    balance.update([{"criterion": 4.0, "drloc": 0.0}])
    assert balance.average.tolist() == [3.0, 2.0]
    assert float(balance.factors()["drloc"]) == 1.5
    balance.update([{"criterion": 3.0}, {"criterion": 3.0}])  # a step that left the task out
    assert balance.average.tolist() == [3.0, 2.0]
    without = GradientNorms(["drloc", "position"], labels=False)
    without.update([{"drloc": 1.0, "position": 3.0}])
    assert [float(factor) for factor in without.factors().values()] == pytest.approx([2.0, 2 / 3])


def test_timm_loops_keep_what_was_learned() -> None:
    learned = vitlet.TimmTrainingTask(objective(Uncertainty(NAMES)))
    with torch.no_grad():
        learned.get_trainable_module().balance.spread["drloc"].fill_(0.7)
    state = learned.get_task_state()
    other = vitlet.TimmTrainingTask(objective(Uncertainty(NAMES)))
    other.load_task_state(state)
    assert other.get_trainable_module().balance.spread["drloc"].item() == pytest.approx(0.7)
    before_balance = {name: value for name, value in state.items() if not name.startswith("_balance.")}
    assert before_balance.keys() == objective(None).tasks.state_dict().keys()
    vitlet.TimmTrainingTask(objective(Uncertainty(NAMES))).load_task_state(before_balance)


def test_timm_loops_hand_no_norms_back() -> None:
    with pytest.raises(VitletError, match=r"GradientNorms learns from gradient norms after each step.*Uncertainty"):
        vitlet.TimmTrainingTask(objective(GradientNorms(NAMES)))


def test_in_evaluation_the_weights_are_those_given() -> None:
    for balance in (Uncertainty(NAMES), GradientNorms(NAMES)):
        joined = objective(balance).eval()
        with torch.inference_mode():
            outcome = joined(*batch())
        assert outcome.weights == {"drloc": 0.5, "position": 0.2} and not outcome.norms


def test_tasks_that_share_nothing_are_refused() -> None:
    joined = objective(GradientNorms(NAMES))
    joined.backbone.model.requires_grad_(False)
    joined.backbone.model.head.requires_grad_(True)
    with pytest.raises(VitletError, match="share no trainable weights"):
        joined(*batch())


@pytest.mark.heavy
def test_spreads_compile_without_a_graph_break() -> None:
    balance = Uncertainty(["criterion", "drloc"])
    losses = {"criterion": torch.tensor(2.0), "drloc": torch.tensor(0.05)}
    compiled = torch.compile(balance, fullgraph=True, backend="eager")
    torch.testing.assert_close(
        compiled(losses, {"drloc": 0.3}, nn.Identity()), balance(losses, {"drloc": 0.3}, nn.Identity())
    )


def test_task_parameters_hold_the_spreads() -> None:
    joined = objective(Uncertainty(NAMES))
    assert {id(each) for each in joined.balance.parameters()} <= {id(each) for each in joined.task_parameters()}


def tensors(path: Path) -> dict[str, torch.Tensor]:
    checkpoint, _ = Checkpoints(path / "checkpoints", 2).newest()
    assert checkpoint is not None
    return checkpoint.tensors("objective.safetensors")


@pytest.mark.parametrize("kind", ["uncertainty", "gradients"])
def test_a_run_learns_its_weights_and_continues_exactly(kind: Any, tmp_path: Path) -> None:
    config = replace(SMALL, balance_tasks=kind, checkpoint_steps=1)
    whole = train(replace(config, output=str(tmp_path / "whole"), grad_accum_steps=2))
    row = read_rows(whole.path)[-1]
    given = {"weight/drloc": 0.5, "weight/position": 0.2}
    assert all(abs(math.log(row[name] / weight)) > 1e-4 for name, weight in given.items()), row
    half = tmp_path / "half"
    train(replace(config, output=str(half), grad_accum_steps=2))
    for later in sorted((half / "checkpoints").glob("step-*"))[1:]:
        for file in later.iterdir():
            file.unlink()
        later.rmdir()
    (half / "result.json").unlink()
    train(RunConfig(resume=str(half)))
    first, second = tensors(whole.path), tensors(half)
    assert any(name.startswith("balance.") for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["uncertainty", "gradients"])
def test_two_processes_equal_one_that_accumulates(kind: Any, tmp_path: Path) -> None:
    data = faults.write_images(tmp_path / "data")
    changes: dict[str, Any] = {"tasks": {"drloc": TASKS["drloc"], "sprel": TaskConfig(0.3)}, "balance_tasks": kind}
    one = finished(data, tmp_path / "one", grad_accum_steps=2, **changes)
    two = finished(data, tmp_path / "two", 2, **changes)
    learned = ("train/loss", "val/loss", "weight/drloc", "weight/sprel")
    assert_close(one, two, names=learned)


@pytest.mark.heavy
def test_spreads_are_sharded(tmp_path: Path) -> None:
    data = faults.write_images(tmp_path / "data")
    changes: dict[str, Any] = {"tasks": {"sprel": TaskConfig(0.3)}, "balance_tasks": "uncertainty"}
    plain = finished(data, tmp_path / "plain", 2, **changes)
    assert_close(plain, finished(data, tmp_path / "fsdp", 2, fsdp=True, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"balance_tasks": "gradients", "compile": True}, "gradients does not work with compile; use uncertainty"),
        ({"balance_tasks": "gradients", "fsdp": True}, "does not work with fsdp"),
        ({"balance_tasks": "gradients", "grad_checkpointing": True}, "does not work with grad_checkpointing"),
        ({"balance_tasks": "gradients", "amp": True, "amp_dtype": "float16"}, "does not work with amp_dtype float16"),
        (
            {"balance_tasks": "uncertainty", "tasks": {}},
            r"uncertainty requires at least two losses, found only criterion",
        ),
    ],
)
def test_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(VitletError, match=words):
        build_job(replace(SMALL, **changes))
