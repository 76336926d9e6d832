"""Explanations of any model: class maps against hooks, places by heads that know, heads from a checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from builders.digits import write_digits
from builders.hostile import train_quickly
from vitlet.analysis.class_map import class_map
from vitlet.analysis.explain import Explainer
from vitlet.analysis.task_heads import Locator
from vitlet.backbones import TimmBackbone
from vitlet.cli import main
from vitlet.errors import VitletError
from vitlet.pictures import free_name
from vitlet.tasks.drloc import DRLoc
from vitlet.tasks.position import Position
from vitlet.tokens.features import Features, Grid, GridShape, Shapes
from vitlet.tokens.geometry import grid_coords

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
SWIN = {"img_size": 32, "window_size": 2, "embed_dim": 12, "depths": (1, 1, 1), "num_heads": (1, 1, 2)}


def by_hooks(model: nn.Module, layer: nn.Module, images: Tensor, laid_out: Callable[[Tensor], Tensor]) -> Tensor:
    """Grad-CAM the usual way, by knowing the layer and its layout."""
    kept: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: kept.append(output))
    scores = model(images.clone().requires_grad_(True))
    handle.remove()
    (gradient,) = torch.autograd.grad(scores.max(-1).values.sum(), kept[0])
    tokens, gradient = laid_out(kept[0]), laid_out(gradient)
    return (gradient.mean((2, 3), keepdim=True) * tokens).sum(1).clamp(min=0).detach()


@pytest.mark.parametrize(
    ("name", "options", "layer", "laid_out", "from_end"),
    [
        ("resnet10t", {}, "layer4", lambda found: found, 1),
        ("swin_tiny_patch4_window7_224", SWIN, "layers.2", lambda found: found.permute(0, 3, 1, 2), 1),
        (
            "vit_tiny_patch16_224",
            {**VIT, "class_token": False, "global_pool": "avg"},
            "blocks.2",
            lambda found: found.transpose(1, 2).reshape(2, -1, 4, 4),
            1,
        ),
        ("vit_tiny_patch16_224", VIT, "blocks.1", lambda found: found[:, 1:].transpose(1, 2).reshape(2, -1, 4, 4), 2),
    ],
    ids=["resnet", "swin", "vit, averaged", "vit, class token"],
)
def test_class_map_equals_grad_cam_by_hooks(
    name: str, options: dict[str, object], layer: str, laid_out: Callable[[Tensor], Tensor], from_end: int
) -> None:
    model = timm.create_model(name, num_classes=5, **options).eval()
    images = torch.randn(2, 3, 32, 32) if options else torch.randn(2, 3, 64, 64)
    found = class_map(TimmBackbone(model, img_size=tuple(images.shape[2:])), images)
    expected = by_hooks(model, model.get_submodule(layer), images, laid_out)
    assert found.from_end == from_end
    assert expected.max() > 0
    torch.testing.assert_close(found.evidence, expected, rtol=1e-4, atol=1e-6 * float(expected.max()))


def test_class_map_of_a_chosen_class_and_of_none() -> None:
    model = timm.create_model("resnet10t", num_classes=2).eval()
    backbone = TimmBackbone(model, img_size=64)
    images = torch.randn(2, 3, 64, 64)
    maps = [class_map(backbone, images, torch.full((2,), label)).evidence for label in (0, 1)]
    assert not torch.equal(*maps)
    with torch.no_grad():
        model.get_classifier().weight.zero_()
    with pytest.raises(VitletError, match="depend on none of its token grids"):
        class_map(backbone, images)


class Known(nn.Module):
    """A head that knows the answers: it reads each token's place from its first two channels."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, tokens: Tensor, pairs: Tensor) -> Tensor:
        image = torch.arange(len(tokens))[:, None]
        return self.answer(tokens[image, pairs[..., 0], :2] - tokens[image, pairs[..., 1], :2])


def one_hot_offsets(offsets: Tensor) -> Tensor:
    """Class scores of the wide classes of a 4x6 grid."""
    rows, columns = offsets.round().long().unbind(-1)
    hot = nn.functional.one_hot
    return 50.0 * torch.cat([hot(rows + 4, 9), hot(columns + 6, 13)], -1)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"variant": "signed"}, lambda offsets: offsets / torch.tensor([4.0, 6.0])),
        ({"variant": "l1"}, lambda offsets: offsets.abs() / torch.tensor([4.0, 6.0])),
        ({"variant": "signed", "targets": "cells"}, lambda offsets: offsets + torch.tensor([3.0, 5.0])),
        ({"variant": "ce"}, one_hot_offsets),
        ({"variant": "reg"}, one_hot_offsets),
    ],
)
def test_a_head_that_knows_puts_tokens_where_they_are(options: dict[str, str], answer: Callable[..., Tensor]) -> None:
    task = DRLoc(**options)  # type: ignore[arg-type]
    task.build(Shapes(GridShape(3, 4, 6)))
    task.heads[-1] = Known(answer)
    coords = grid_coords(4, 6)[None]
    tokens = torch.cat([coords, torch.zeros(1, 24, 1)], -1).transpose(1, 2).reshape(1, 3, 4, 6)
    found = task.places(Features(images=tokens, last=Grid(tokens, coords)))
    torch.testing.assert_close(found.predicted, coords, atol=1e-4, rtol=0)
    assert found.error.max() < 1e-4
    assert found.origin == 2 * 6 + 3
    assert found.signed == (options["variant"] != "l1")
    task.heads[-1] = Known(
        lambda offsets: answer(offsets + (0.0 if options["variant"] == "l1" else 1.0) * offsets.sign())
    )
    if options["variant"] in ("signed",):
        wrong = task.places(Features(images=tokens, last=Grid(tokens, coords)))
        expected = coords + (coords - coords[:, 15:16]).sign()
        torch.testing.assert_close(wrong.predicted, expected, atol=1e-4, rtol=0)


def test_position_places() -> None:
    task = Position(tap="before_norm")
    task.build(Shapes(GridShape(12, 3, 4)))
    assert isinstance(task.head, nn.Linear)
    with torch.no_grad():
        task.head.weight.copy_(torch.eye(12).roll(1, 0))  # every token is put one cell on
        task.head.bias.zero_()
    coords = grid_coords(3, 4)[None]
    tokens = torch.eye(12).reshape(1, 12, 3, 4)
    found = task.places(Features(images=tokens, last=Grid(tokens, coords)))
    assert torch.equal(found.predicted, coords.roll(-1, 1))
    assert found.error[0, 0] == 0.5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explained")
    data = write_digits(root / "data")
    train_quickly(data, root / "run", epochs=1, task={"drloc": 0.5}, drloc={"hidden": 8}, balance="weights")
    train_quickly(data, root / "pretrained", epochs=1, task={"position": 1.0}, pretrain=True)
    return root / "run"


def test_heads_are_those_of_the_checkpoint(run: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    locator = Locator.load(run)
    stored = load_file(next((run / "checkpoints").glob("step-*")) / "objective.safetensors")
    own = locator.objective.state_dict()
    assert {name for name in own if name.startswith("tasks.drloc.heads")}
    assert all(torch.equal(own[name], stored[name]) for name in own)
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    for file in (damaged / "checkpoints").glob("step-*/objective.safetensors"):
        file.write_bytes(b"no weights")
    with pytest.raises(VitletError, match="is damaged"):
        Locator.load(damaged)
    shutil.rmtree(damaged / "checkpoints")
    found = Explainer.load(damaged).file(next((run.parent / "data").rglob("*.png")))
    assert found.places is None
    assert found.evidence is not None
    assert "saved in its checkpoints, but" in found.left_out[0]


def test_pictures_of_a_pretrained_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(next((run.parent / "data").rglob("*.png")))
    distance = shutil.copy(image, tmp_path / "distance.png")  # the name of the picture of distances
    words = ["explain", str(run.with_name("pretrained")), "--images", image, str(distance)]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "left out: " in printed
    assert "has no classifier" in printed
    first = tmp_path / "out" / f"{Path(image).stem}.png"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {first.name, "distance.png", "distance-2.png"}
    assert free_name(first, {first}).name == f"{first.stem}-2.png"  # images of one name from two folders
