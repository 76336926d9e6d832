"""The losses as pure functions: alone, compiled, exported, in mixed precision, under vmap; on a non-square grid.

That each equals a slow loop is tested beside its task (test_drloc, test_relvit, test_attention, test_jigsaw).
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vitlet import functional

BATCH, HEIGHT, WIDTH, PAIRS = 2, 3, 5, 7
COUNT = HEIGHT * WIDTH

Loss = Callable[[Tensor], Tensor]


def coords() -> Tensor:
    """Shuffled per image."""
    regular = functional.grid_coords(HEIGHT, WIDTH)
    orders = torch.stack([torch.randperm(COUNT, generator=torch.Generator().manual_seed(i)) for i in range(BATCH)])
    return regular[orders]


def offsets(places: Tensor) -> Tensor:
    pairs = functional.sample_pairs(BATCH, COUNT, PAIRS, generator=torch.Generator().manual_seed(3))
    return functional.pair_offsets(places, pairs)


def cases() -> dict[str, tuple[tuple[int, ...], Loss]]:
    """By name: the shape of what a head or a model says, and the loss of it."""
    places, size = coords(), (HEIGHT, WIDTH)
    apart = offsets(places)
    rows = (apart[..., 0] + HEIGHT).long()
    images = torch.randn(BATCH, 3, HEIGHT * 4, WIDTH * 4, generator=torch.Generator().manual_seed(4))
    turned = functional.grid_coords(2, 2)[torch.tensor([[0, 1, 2, 3], [1, 3, 0, 2]])]
    maps = (BATCH, 2, COUNT, COUNT)
    return {
        "localization_l1": ((BATCH, PAIRS, 2), lambda out: functional.localization_l1(out, apart)),
        "localization_ce": ((BATCH, PAIRS, 7), lambda out: functional.localization_ce(out, rows)),
        "localization_reg": ((BATCH, PAIRS, 7), lambda out: functional.localization_reg(out, rows)),
        "relation_loss": (
            (BATCH, 9, COUNT, COUNT),
            lambda out: functional.relation_loss(out, functional.relation_classes(places))[0],
        ),
        "distance_loss": (
            (BATCH, COUNT, COUNT),
            lambda out: functional.distance_loss(out, functional.pair_distances(places)),
        ),
        "angle_loss": (
            (BATCH, COUNT, COUNT),
            lambda out: functional.angle_loss(out, functional.pair_angles(places, HEIGHT, WIDTH)),
        ),
        "position_loss": (
            (BATCH, COUNT, COUNT),
            lambda out: functional.position_loss(out, functional.cell_index(places, WIDTH)),
        ),
        "jigsaw_loss": (
            (BATCH, COUNT, COUNT),
            lambda out: functional.jigsaw_loss(out, functional.places_in_order(places, HEIGHT, WIDTH)),
        ),
        "rotation_loss": ((BATCH, 4), lambda out: functional.rotation_loss(out, functional.quarter_turns(turned, 2))),
        "attention_distance_loss": (maps, lambda out: functional.attention_distance_loss(out.softmax(-1), size)),
        "attention_similarity_loss": (
            maps,
            lambda out: functional.attention_similarity_loss(out.softmax(-1), images, size),
        ),
    }


EVERY = pytest.mark.parametrize("name", cases())


def test_no_loss_is_left_out() -> None:
    losses = {name for name in functional.__all__ if name.endswith("_loss") or name.startswith("localization")}
    assert set(cases()) <= losses
    folder = Path(inspect.getfile(functional)).with_name("tasks")
    written = {
        node.name
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and (node.name.endswith("_loss") or node.name.startswith("localization"))
    }
    assert losses == written


@pytest.mark.parametrize("name", functional.__all__)
def test_typed_with_shapes_in_the_docstring(name: str) -> None:
    function = getattr(functional, name)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())
    assert "``(" in inspect.getdoc(function), name


def test_imports_neither_timm_nor_torchvision() -> None:
    code = (
        "import sys, vitlet, vitlet.functional; print(sorted({'timm', 'torchvision'} & set(sys.modules)));"
        "from vitlet import functional; assert functional.grid_coords(2, 3).shape == (6, 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def gradient(loss: Loss, said: Tensor) -> tuple[Tensor, Tensor]:
    said = said.clone().requires_grad_()
    value = loss(said)
    (found,) = torch.autograd.grad(value, said)
    return value.detach(), found


@pytest.mark.heavy
@EVERY
def test_compiles_without_a_graph_break(name: str) -> None:
    shape, loss = cases()[name]
    said = torch.randn(shape)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for found, expected in zip(gradient(compiled, said), gradient(loss, said), strict=True):
        torch.testing.assert_close(found, expected)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_in_full_precision(name: str, dtype: torch.dtype) -> None:
    shape, loss = cases()[name]
    said = torch.randn(shape).to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        found, slope = gradient(loss, said)
    assert found.dtype == torch.float32
    assert slope.isfinite().all()
    torch.testing.assert_close(found, loss(said.float()), rtol=0.02, atol=1e-3)


@EVERY
def test_works_under_vmap(name: str) -> None:
    """Over several heads, or several models: all of a stack at once equals one after the other."""
    shape, loss = cases()[name]
    said = torch.randn(3, *shape)
    torch.testing.assert_close(torch.func.vmap(loss)(said), torch.stack([loss(each) for each in said]))


class Exported(nn.Module):
    """A loss as a module, for export."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, said: Tensor) -> Tensor:
        return self.loss(said)


@pytest.mark.heavy
@EVERY
def test_can_be_exported(name: str) -> None:
    shape, loss = cases()[name]
    program = torch.export.export(Exported(loss), (torch.randn(shape),))
    said = torch.randn(shape)
    torch.testing.assert_close(program.module()(said), loss(said))
