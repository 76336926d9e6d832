"""Muon: what its steps are, and which weights it is for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vitlet.backbones import TimmBackbone
from vitlet.config import RunConfig
from vitlet.errors import VitletError
from vitlet.models.factory import build_model
from vitlet.objective import Objective, Term
from vitlet.tasks.sprel import SpatialRelations
from vitlet.training.muon import Muon, orthogonalised
from vitlet.training.optim import make_optimizer


@pytest.mark.parametrize("shape", [(5, 12), (12, 5), (7, 7)])
def test_singular_values_become_one_and_vectors_stay(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape)
    found = orthogonalised(matrix)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ found @ right.T
    assert float(turned.diagonal().min()) > 0.6 and float(turned.diagonal().max()) < 1.3
    assert float((turned - turned.diagonal().diag()).abs().max()) < 0.01
    coarse = orthogonalised(matrix, torch.bfloat16)
    assert coarse.dtype == torch.float32 and float((coarse - found).abs().max()) < 0.15


@pytest.mark.parametrize(("shape", "length"), [((6, 4), 0.02 * math.sqrt(6)), ((6, 2, 2, 1), math.sqrt(6 / 4))])
def test_a_step_is_what_a_slow_loop_says(shape: tuple[int, ...], length: float) -> None:
    weight, bias = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(6))
    other = nn.Parameter(bias.detach().clone())
    groups = [{"params": [weight], "weight_decay": 0.5, "muon": True}, {"params": [bias], "weight_decay": 0.1}]
    optimizer = Muon(groups, lr=0.01, momentum=0.8)
    plain = torch.optim.AdamW([other], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    expected, average = weight.detach().clone(), torch.zeros(shape)
    for _ in range(3):
        weight.grad, bias.grad = torch.randn(shape), torch.randn(6)
        other.grad = bias.grad.clone()
        average = 0.8 * average + 0.2 * weight.grad
        update = orthogonalised((0.2 * weight.grad + 0.8 * average).flatten(1)).reshape(shape)
        expected = expected * (1 - 0.1 * 0.15) - 0.1 * length * update
        optimizer.step()
        plain.step()
    assert torch.allclose(weight, expected, atol=1e-5)
    assert torch.equal(bias, other)
    assert len(optimizer.param_groups) == 2


def test_the_ends_positions_and_tasks_have_adamw() -> None:
    model, _ = build_model("vit_tiny_patch16_224", num_classes=3, img_size=(32, 32), model_kwargs={"depth": 1})
    backbone = TimmBackbone(model, img_size=(32, 32))
    objective = Objective(backbone, [Term(SpatialRelations(), 1.0)])
    optimizer = make_optimizer(objective, RunConfig(opt="muon"))
    chosen = {id(p) for group in optimizer.param_groups if group["muon"] for p in group["params"]}
    names = {name for name, parameter in objective.named_parameters() if id(parameter) in chosen}
    inner = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert names == {f"backbone.model.blocks.0.{name}.weight" for name in inner}
    counted = [p for group in optimizer.param_groups for p in group["params"]]
    assert len({id(p) for p in counted}) == len(counted) == len(list(objective.parameters()))


def test_fsdp_is_refused() -> None:
    with pytest.raises(VitletError, match="fsdp shards the weights, but muon needs them unsharded"):
        RunConfig(fsdp=True, opt="muon")
