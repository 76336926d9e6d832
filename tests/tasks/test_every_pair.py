"""Every kind of model with every task that it can carry: built, learned, exported, in bfloat16, in two processes."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

import faults
import vitlet.models  # noqa: F401, registers them
from builders.teachers import residual
from vitlet.backbones import TimmBackbone
from vitlet.config import TaskConfig
from vitlet.errors import VitletError
from vitlet.models.factory import build_model
from vitlet.objective import Objective, Outcome, Term
from vitlet.processes import LAUNCHER
from vitlet.tasks import TASKS
from vitlet.tasks.declared import load_task
from vitlet.training.distributed import World, joined, replicate
from vitlet.training.terms import make_view

SIDE, CLASSES, BATCH = 32, 5, 4
NARROW: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_for_32px", NARROW),
    "deit": ("deit_tiny_distilled_patch16_224", {**NARROW, "patch_size": 4}),
    "swin": ("swin_for_32px", {"embed_dim": 12, "depths": (2, 1, 1), "num_heads": (1, 2, 3)}),
    "cvt": ("cvt_for_32px", {"embed_dims": (16, 32, 48), "depths": (1, 1, 2), "num_heads": (1, 2, 3)}),
    "t2t": ("t2t_for_32px", {**NARROW, "token_dim": 16}),
    "cct": ("cct_for_32px", NARROW),
    "resnet": ("resnet_for_32px", {"layers": (1, 1, 1, 1), "channels": (8, 16, 24, 32)}),
    "hybrid": ("hybrid_s_for_32px", {**NARROW, "channels": (8, 16, 24, NARROW["embed_dim"])}),
    "convnext": ("convnext_atto", {"patch_size": 1, "depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)}),
    "arvit": ("arvit_patch16_256", {**NARROW, "patch_size": 4}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "drloc": {"hidden": 16},
    "guidance": {"teacher": residual((SIDE, SIDE), CLASSES), "soft": 0.5},
}
CONVOLUTIONS = ("resnet", "convnext")
PAIRS = [
    (network, task)
    for network in NETWORKS
    for task in TASKS
    if not (network in CONVOLUTIONS and task.startswith("attention"))
]
every = pytest.mark.parametrize(("network", "task"), PAIRS)


def make(network: str, task: str) -> Objective:
    torch.manual_seed(0)
    name, options = NETWORKS[network]
    model, _ = build_model(name, num_classes=CLASSES, img_size=(SIDE, SIDE), model_kwargs=options)
    backbone = TimmBackbone(model, img_size=(SIDE, SIDE))
    solver = load_task(task)(**OPTIONS.get(task, {}))
    return Objective(backbone, [Term(solver, 1.0, make_view(TaskConfig(1.0), solver, backbone))])


@cache
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 3, SIDE, SIDE, generator=generator), torch.arange(BATCH) % CLASSES


def learned(objective: Objective, labels: Tensor | None, steps: int) -> Iterator[Outcome]:
    """Steps on one batch, the same pairs and turns drawn every time."""
    optimizer = torch.optim.AdamW(objective.parameters(), lr=2e-4)
    for _ in range(steps):
        torch.manual_seed(2)
        outcome = objective(batch()[0], labels)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        yield outcome


@every
def test_learns_and_leaves_a_plain_network(network: str, task: str) -> None:
    objective = make(network, task)
    for labels, steps, parts in ((None, 5, {task}), (batch()[1], 3, {"criterion", task})):
        first, *_, last = learned(objective, labels, steps)
        assert first.parts.keys() == parts
        assert last.loss < first.loss
    name, options = NETWORKS[network]
    sized = {} if network in CONVOLUTIONS else {"img_size": SIDE}
    plain = timm.create_model(name, num_classes=CLASSES, **options, **sized)
    plain.load_state_dict(objective.backbone.model.state_dict())  # no key too many, none too few
    images, _ = batch()
    with torch.no_grad():
        scores = objective.eval()(images, weights={}).logits
        torch.testing.assert_close(plain.eval()(images), scores, rtol=1e-4, atol=1e-5)


@every
def test_survives_bfloat16(network: str, task: str) -> None:
    objective = make(network, task).train()
    torch.manual_seed(2)
    exact = objective(*batch()).loss.detach()
    torch.manual_seed(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = objective(*batch())
    outcome.loss.backward()
    assert float(outcome.loss.detach()) == pytest.approx(float(exact), rel=0.05)
    for name, parameter in objective.named_parameters():
        assert not parameter.requires_grad or parameter.grad is not None, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("network", CONVOLUTIONS)
@pytest.mark.parametrize("task", [name for name in TASKS if name.startswith("attention")])
def test_no_attention_no_price(network: str, task: str) -> None:
    with pytest.raises(VitletError, match="attention"):
        make(network, task)


def step_together(world: World, network: str, task: str) -> None:
    """Two steps on different images; the second would complain of parameters that the first left unused."""
    objective = make(network, task)
    module = replicate(objective, torch.device("cpu"), unused=False)
    optimizer = torch.optim.SGD(objective.parameters(), lr=1e-3)
    images, labels = batch()
    for step in range(2):
        torch.manual_seed(2 + step)
        optimizer.zero_grad()
        module(images[world.rank :: 2], labels[world.rank :: 2]).loss.backward()
        optimizer.step()
    parameters = torch.cat([parameter.detach().flatten() for parameter in objective.parameters()])
    first, second = world.gather(parameters)
    assert torch.equal(first, second), "the processes have drifted apart"


def together(rank: int, port: int, log: Path) -> int:
    """All pairs in one of two processes; the exit code."""
    faults.renew_threads()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ.update(place, WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ[LAUNCHER] = str(os.getppid())
    warnings.filterwarnings("ignore", "Grad strides do not match")  # of depthwise convolutions: slower, not wrong
    with log.open("w") as out:
        try:
            with joined() as world:
                for network, task in PAIRS:
                    print(network, task, file=out, flush=True)
                    step_together(world, network, task)
        except Exception:  # to be seen by who waits
            traceback.print_exc(file=out)
            return 1
    return 0


def test_two_processes_use_every_parameter(tmp_path: Path) -> None:
    batch()
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            os._exit(together(rank, store.port, tmp_path / f"{rank}.log"))
        children.append(child)
    codes = faults.await_end(children)
    said = [(tmp_path / f"{rank}.log").read_text() for rank in range(2)]
    assert codes == [0, 0], "\n".join(text[-3000:] for text in said)
    assert [len(text.splitlines()) for text in said] == [len(PAIRS)] * 2
