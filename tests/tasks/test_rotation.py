"""Rotation: turns are read off the coordinates, and each head sees what it should."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vitlet
from vitlet.tasks.rotation import Rotation, quarter_turns, rotation_loss
from vitlet.testing import token_grid
from vitlet.tokens.features import Features, Grid, GridShape, Shapes
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.rotated import RotatedView


def shapes(height: int, width: int, channels: int = 8) -> Shapes:
    shape = GridShape(channels, height, width)
    return Shapes(shape, shape, (shape,), (), GridShape(3, 4 * height, 4 * width), False)


def turned_features(turns: list[int], side: int = 4) -> Features:
    view = RotatedView(torch.zeros(len(turns), 3, side, side), torch.tensor(turns))
    grid = Grid(torch.randn(len(turns), 8, side, side), view.coords(side, side))
    return Features(view.images, grid, after_norm=grid)


@pytest.mark.parametrize("side", [2, 3, 5])
def test_turns_are_found_by_the_ends_of_the_grid(side: int) -> None:
    coords = grid_coords(side, side)
    index = torch.arange(side * side).view(side, side)
    turned = torch.stack([coords[index.rot90(turns).flatten()] for turns in (2, 0, 3, 1)])
    assert quarter_turns(turned, side).tolist() == [2, 0, 3, 1]


@pytest.mark.parametrize("tap", ["before_norm", "after_norm"])
@pytest.mark.parametrize("head", ["mean", "tokens"])
def test_loss_and_accuracy_equal_a_loop(head: str, tap: str) -> None:
    task = Rotation(head=head, tap=tap)  # type: ignore[arg-type]
    assert task.needs.after_norm is (tap == "after_norm")
    task.build(shapes(4, 4))
    assert isinstance(task.head, nn.Linear)
    assert (task.head.in_features, task.head.out_features) == (8 if head == "mean" else 128, 4)
    assert isinstance(task.norm, nn.LayerNorm) is (tap == "before_norm")
    turns = [0, 1, 2, 3, 1, 1]
    features = turned_features(turns)
    losses, right = [], 0
    for image, turn in zip(features.last.tokens, turns, strict=True):
        tokens = task.norm(image.flatten(1).T)
        scores = task.head(tokens.mean(0) if head == "mean" else tokens.flatten())
        losses.append(-scores.log_softmax(0)[turn])
        right += int(scores.argmax()) == turn
    found = task(features)
    torch.testing.assert_close(found.loss, torch.stack(losses).mean())
    torch.testing.assert_close(rotation_loss(torch.eye(4), torch.arange(4)), -torch.eye(4).log_softmax(1)[0, 0])
    assert float(found.metrics["accuracy"]) == pytest.approx(100 * right / 6)
    assert found.metrics["chance"] == 25.0


def test_what_rotation_refuses() -> None:
    with pytest.raises(vitlet.VitletError, match="rotation needs square images: found a grid of 2x3"):
        Rotation().build(shapes(2, 3))
    task = Rotation()
    task.build(shapes(4, 4))
    with pytest.raises(vitlet.VitletError, match="found a view that turns none"):
        task(token_grid(height=4, width=4))


def test_thirty_percent_is_learned() -> None:
    assert Rotation().verdict({"accuracy": 30.1}) is None
    sentence = Rotation().verdict({"accuracy": 30.0})
    assert sentence is not None and "30 % right where guessing gives 25 %" in sentence
