"""The tasks against numbers worked out by hand from the formulas of the papers and the settings of their releases.

Parameter counts of the papers' networks: `tests/models/test_arvit.py`, `test_cvt.py`, `test_t2t.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vitlet.tasks.angle import angle_loss, pair_angles
from vitlet.tasks.attention_distance import attention_distance_loss
from vitlet.tasks.attention_similarity import attention_similarity_loss
from vitlet.tasks.distance import Distance
from vitlet.tasks.drloc import DRLoc
from vitlet.tasks.position import Position
from vitlet.tasks.sprel import SpatialRelations, relation_classes
from vitlet.tasks.task import Task
from vitlet.tokens.features import Features, Grid, Shapes
from vitlet.tokens.geometry import grid_coords

OPPOSITE = torch.eye(4).flip(0)[None, None].repeat(2, 1, 1, 1)  # every token of 2 x 2 attends to the opposite corner


@pytest.mark.parametrize(
    ("variant", "preset", "expected"),
    [
        ("l1", "paper", 3 / 14),  # offsets of -1 and 2 cells of 7, a head that says 0
        ("l1", "reference", 3 / 2),
        ("signed", "paper", 3 / 14),
        ("signed", "reference", (5 + 8) / 2),  # counted from -6
        ("ce", "paper", 5.416100),  # 2 ln 15
        ("ce", "reference", 5.129899),  # 2 ln 13
        ("reg", "paper", 0.270784),  # 5 / (224/12) + 2 * 0.001 * ln(224/12) / 2
        ("reg", "reference", 0.362421),  # 5 / 14 + 2 * 0.001 * ln 14
        ("all", "paper", 3 / 14),  # of each block
    ],
)
def test_drloc(variant: Any, preset: Any, expected: float) -> None:
    task, sides = DRLoc(variant=variant, preset=preset), (7, 7)
    offsets = torch.tensor([[[-1.0, 2.0]]])
    offsets = offsets if task.target.signed else offsets.abs()
    loss, _ = task.target.loss_and_error(torch.zeros(1, 1, task.target.outputs(sides)), offsets, sides)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def silent(task: Task, height: int, width: int) -> float:
    """The loss of a head that says 0."""
    grid = Grid(torch.randn(2, 9, height, width), grid_coords(height, width)[None])
    task.build(Shapes(grid.shape, grid.shape))
    for parameter in task.parameters():
        nn.init.zeros_(parameter)
    loss: float = task(Features(images=grid.tokens, last=grid, after_norm=grid)).loss.item()
    return loss


def test_relvit() -> None:
    assert silent(SpatialRelations(), 2, 3) == pytest.approx(2.197225, rel=1e-5)  # ln 9
    assert silent(Position(), 2, 3) == pytest.approx(1.791759, rel=1e-5)  # ln 6
    # Distances of 2 x 2 are 0, 1, 1 and the square root of 2: as targets -1, 0.414214, 0.414214 and 1.
    assert silent(Distance(), 2, 2) == pytest.approx((1 + 2 * 0.414214**2 + 1) / 4, rel=1e-5)
    classes = relation_classes(grid_coords(2, 2)[None])[0]
    assert classes.tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    # Vectors of 2 x 2 are (1, 1), (1, 2), (2, 1) and (2, 2): 18.4349 degrees, 36.8699, or almost none.
    angles = pair_angles(grid_coords(2, 2)[None], 2, 2)
    assert (angles[0, 1] * 180).tolist() == pytest.approx([18.4349, 0, 36.8699, 18.4349], abs=0.01)
    near = 0.4051 / 36.8699 * 2 - 1
    expected = (4 * 1 + 2 * 1 + 2 * near**2) / 16
    assert angle_loss(torch.zeros(1, 4, 4), angles).item() == pytest.approx(expected, rel=1e-3)


def test_arvit_distance() -> None:
    """Rows of distances are 0, 1, 1 and 2 cells."""
    even = torch.full((2, 1, 4, 4), 0.25)
    assert attention_distance_loss(even, (2, 2)).item() == pytest.approx((0.1 + 1.1 + 1.1 + 2.1) / 3 / 4, rel=1e-5)
    # 1.5 / sqrt(1.5 ** 2 + 0.5) = 0.904534 for each of 2 x 4 opposite pairs; the logarithm of their sum.
    assert attention_distance_loss(OPPOSITE, (2, 2), preset="reference").item() == pytest.approx(1.979106, rel=1e-5)
    near = torch.eye(4)[None, None]
    assert attention_distance_loss(near, (2, 2), preset="reference").item() == 0  # rewarded: a sum below 1


def test_arvit_similarity() -> None:
    """One pixel a patch, one of four patches red: its Gram matrix has 1/3 where the others have 0."""
    images = torch.zeros(2, 3, 2, 2)
    images[:, 0, 0, 0] = 1
    even = torch.full((2, 1, 4, 4), 0.25)
    assert attention_similarity_loss(even, images, (2, 2)).item() == pytest.approx(6 / 81 / 4 / 4, rel=1e-5)
    # Unlike pairs 1 - 0.17, like ones -0.17; of the four opposite pairs of each of two images half are unlike.
    expected = 0.970779  # ln 2.64
    found = attention_similarity_loss(OPPOSITE, images, (2, 2), preset="reference").item()
    assert found == pytest.approx(expected, rel=1e-5)
