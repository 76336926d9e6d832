"""Jigsaw: the joint assignment of tokens to cells."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vitlet import VitletError
from vitlet.tasks.jigsaw import Jigsaw, assignment, jigsaw_loss, places_in_order
from vitlet.testing import TaskSuite, token_grid
from vitlet.tokens.features import Features, Grid, Shapes
from vitlet.tokens.geometry import grid_coords

HEIGHT, WIDTH = 3, 5
COUNT = HEIGHT * WIDTH


def slow_assignment(scores: list[list[float]], steps: int) -> list[list[float]]:
    """Chances by the definition: divide rows by their sums, then columns and rows in turn."""
    chances = [[math.exp(score) for score in row] for row in scores]
    chances = [[each / sum(row) for each in row] for row in chances]
    for _ in range(steps):
        sums = [sum(row[cell] for row in chances) for cell in range(len(scores))]
        chances = [[each / total for each, total in zip(row, sums, strict=True)] for row in chances]
        chances = [[each / sum(row) for each in row] for row in chances]
    return chances


class JigsawSuite(TaskSuite):
    """The definition, by loops; the rest of the suite runs on every task in test_suite."""

    task = Jigsaw
    settings = ({}, {"steps": 0}, {"pool": "2x2"}, {"tap": "before_norm"})

    def slow_loss(self, task: Jigsaw, tokens: Tensor, coords: Tensor) -> float:
        total, (batch, _, height, width) = 0.0, tokens.shape
        for image in range(batch):
            pieces = tokens[image].flatten(1).T
            chances = slow_assignment([task.head(piece).tolist() for piece in pieces], task.steps)
            places = coords[image if len(coords) > 1 else 0].tolist()
            for row, (down, right) in zip(chances, places, strict=True):
                total -= math.log(row[int(down) * width + int(right)]) / (height * width)
        return total / batch


def test_equals_a_slow_loop() -> None:
    JigsawSuite().test_equals_the_slow_loop()


@pytest.mark.parametrize("steps", [0, 1, 3, 50])
def test_the_assignment_nears_a_doubly_stochastic_matrix(steps: int) -> None:
    chances = assignment(torch.randn(2, COUNT, COUNT), steps).exp()
    torch.testing.assert_close(chances.sum(2), torch.ones(2, COUNT))
    columns = (chances.sum(1) - 1).abs().max().item()
    assert columns > 0.1 if steps == 0 else columns < 0.1
    if steps == 50:
        assert columns < 1e-4


def test_a_taken_cell_is_taken_from_the_others() -> None:
    """Two tokens like cell 0; the first likes nothing else. Alone both choose it, together the second moves on."""
    scores = torch.tensor([[[9.0, 0.0], [2.0, 1.0]]])
    assert assignment(scores, 0).argmax(2).tolist() == [[0, 0]]
    assert assignment(scores, 5).argmax(2).tolist() == [[0, 1]]
    together = jigsaw_loss(scores, torch.tensor([[0, 1]]), 5)
    assert together < jigsaw_loss(scores, torch.tensor([[0, 1]]), 0)


def test_places_are_a_permutation_whatever_the_view() -> None:
    regular = grid_coords(HEIGHT, WIDTH)
    order = torch.randperm(COUNT)
    assert places_in_order(regular[None], HEIGHT, WIDTH).tolist() == [list(range(COUNT))]
    assert places_in_order(regular[order][None], HEIGHT, WIDTH)[0].tolist() == order.tolist()
    between = torch.cartesian_prod(torch.tensor([-0.3, -0.25, 1.8]), torch.tensor([0.0, 0.1, 0.2, 2.6, 4.2]))[None]
    assert places_in_order(between, HEIGHT, WIDTH).tolist() == [list(range(COUNT))]


def test_refusals() -> None:
    with pytest.raises(VitletError, match="0 or more Sinkhorn steps, found -1"):
        Jigsaw(steps=-1)


def test_on_another_grid_a_cell_is_the_same_part_of_the_image() -> None:
    """Twice as many rows and columns: a token that knows its quarter points to the cells of that quarter."""
    task = Jigsaw(steps=0)
    small = token_grid(channels=4, height=2, width=2)
    task.build(Shapes(small.last.shape, small.last.shape))
    task.head.weight.data.copy_(9 * torch.eye(4))
    task.head.bias.data.zero_()
    quarter = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]).flatten()
    tokens = torch.nn.functional.one_hot(quarter, 4).float().T.unflatten(1, (4, 4))[None]
    scores = task.scores(Grid(tokens, grid_coords(4, 4)[None]))
    assert scores.shape == (1, 16, 16)
    chosen = scores[0].argmax(1)
    assert quarter[chosen].tolist() == quarter.tolist()


def test_places_are_those_of_the_joint_assignment() -> None:
    """A head that reads the cell off the token puts every token where it came from."""
    task = JigsawSuite().built()
    features = token_grid(channels=COUNT, shuffled=True)
    cells = places_in_order(features.last.coords, HEIGHT, WIDTH)
    tokens = torch.nn.functional.one_hot(cells, COUNT).float().transpose(1, 2).unflatten(2, (HEIGHT, WIDTH))
    task.head = torch.nn.Linear(COUNT, COUNT)
    task.head.weight.data.copy_(9 * torch.eye(COUNT))
    found = task.places(Features(images=tokens, last=Grid(tokens, features.last.coords)))
    assert found.sides == (HEIGHT, WIDTH) and torch.equal(found.predicted, features.last.coords)
    assert found.error.max() == 0 < found.chance
