"""Small promises of single tasks: limits of their options, chance levels, other grids, losses as functions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from builders.teachers import residual
from vitlet import AttentionDistance, DRLoc, Guidance, Jigsaw, Position, SpatialRelations, VitletError
from vitlet.tasks.angle import angle_loss, pair_angles
from vitlet.tasks.attention_similarity import GRAM_ROWS, AttentionSimilarity, GramPenalty, gram_matrices
from vitlet.tasks.distance import distance_loss
from vitlet.tasks.jigsaw import jigsaw_loss
from vitlet.tasks.offset_targets import CrossEntropyTarget, GaussianTarget
from vitlet.tasks.reconstruction import Reconstruction, sincos_positions
from vitlet.testing import _attention_shape, token_grid
from vitlet.tokens.features import Features, Grid, GridShape, Shapes
from vitlet.tokens.geometry import grid_coords


@pytest.mark.parametrize("loss", [distance_loss, angle_loss])
def test_losses_of_pairs_scale_each_image_by_itself(loss: Any) -> None:
    scores, values = torch.randn(2, 4, 4), torch.rand(2, 4, 4) * torch.tensor([1.0, 7.0])[:, None, None]
    wanted = torch.stack([2 * image / image.max() - 1 for image in values])
    torch.testing.assert_close(loss(scores, values), (scores - wanted).square().mean())
    torch.testing.assert_close(loss(scores, values[:1]), (scores - wanted[:1]).square().mean())  # one grid for all


@pytest.mark.parametrize("rows", [slice(0, 4), slice(4, 8), slice(None)])
def test_differences_by_rows_are_those_of_the_whole_image(rows: slice) -> None:
    grams = gram_matrices(torch.randn(2, 3, 12, 20), 3, 5)[:, None]
    whole = GramPenalty(grams, "reference")(slice(None), torch.empty(0))
    torch.testing.assert_close(GramPenalty(grams, "reference")(rows, torch.empty(0)), whole[:, :, rows])
    assert whole.amax((1, 2, 3)).tolist() == pytest.approx([0.83] * 2)


def test_the_largest_difference_may_lie_in_the_last_rows() -> None:
    grams = torch.rand(1, 1, GRAM_ROWS + 3, 2) / 100
    grams[0, 0, -1] = 9.0
    penalty = GramPenalty(grams, "reference")
    found = penalty(slice(0, 2), torch.empty(0))
    assert found.amax(-1).flatten().tolist() == pytest.approx([0.83] * 2, abs=0.05)


@pytest.mark.parametrize("region", [1, 2])
def test_regions_up_to_one_less_than_the_grid(region: int) -> None:
    shape = GridShape(8, 3, 3)
    task = AttentionSimilarity(layers="1", region=region)
    task.build(Shapes(shape, shape, (), (_attention_shape(shape),)))
    with pytest.raises(VitletError, match="there would be one region"):
        AttentionSimilarity(layers="1", region=3).build(Shapes(shape, shape, (), (_attention_shape(shape),)))


@pytest.mark.parametrize("options", [{"hidden": 1}, {"pairs": 1}])
def test_one_of_a_thing_is_enough(options: dict[str, int]) -> None:
    task = DRLoc(**options)
    task.build(Shapes(GridShape(8, 3, 5), GridShape(8, 3, 5)))
    assert task(token_grid()).loss.isfinite()


@pytest.mark.parametrize("task", [Position(), Jigsaw()])
def test_chance_is_one_cell_of_all(task: Position | Jigsaw) -> None:
    task.build(Shapes(GridShape(8, 3, 5), GridShape(8, 3, 5)))
    assert task.chance == pytest.approx(100 / 15)
    assert float(task(token_grid()).metrics["chance"]) == task.chance


def test_scores_for_another_grid_are_a_map_resized() -> None:
    task = Position()
    task.build(Shapes(GridShape(8, 2, 3), GridShape(8, 2, 3)))
    grid = Grid(torch.randn(2, 8, 4, 5), grid_coords(4, 5)[None])
    found = task.scores(grid)
    for image, tokens in enumerate(grid.sequence()):
        for place, token in enumerate(tokens):
            scores = task.head(token).view(1, 1, 2, 3)
            expected = F.interpolate(scores, (4, 5), mode="bilinear").flatten()
            torch.testing.assert_close(found[image, place], expected)


@pytest.mark.parametrize("head", ["reference", "paper"])
def test_width_of_the_heads_of_relations(head: Any) -> None:
    task = SpatialRelations(head=head)
    task.build(Shapes(GridShape(20, 3, 5), GridShape(20, 3, 5)))
    assert task.head.width == (2 if head == "reference" else 20)
    narrow = SpatialRelations()
    narrow.build(Shapes(GridShape(8, 3, 5), GridShape(8, 3, 5)))
    assert narrow.head.width == 1


@pytest.mark.parametrize("share", [0.0, -1.0, math.inf, math.nan])
def test_shares_of_epochs_for_a_teacher(share: float) -> None:
    with pytest.raises(VitletError, match=r"teacher_share must be greater than 0, got"):
        Guidance(teacher=residual((12, 20)), teacher_share=share)


@pytest.mark.parametrize(
    "options", [{"soft": math.inf}, {"temperature": math.inf}, {"temperature": 0.0}, {"soft": -0.1}]
)
def test_weights_and_temperatures_that_are_none(options: dict[str, float]) -> None:
    with pytest.raises(VitletError, match="guidance has levels 3"):
        Guidance(teacher=residual((12, 20)), **options)  # type: ignore[arg-type]


def test_usual_options_of_guidance() -> None:
    task = Guidance(teacher=residual((12, 20)))
    assert (task.levels, task.normalise, task.soft, task.temperature, task.teacher_share) == (3, True, 0.0, 3.0, 0.3)
    assert task.needs.every_grid
    assert not Guidance(teacher=residual((12, 20)), levels=1).needs.every_grid


@pytest.mark.parametrize(("options", "fine"), [({"depth": 0}, True), ({"depth": -1}, False), ({"width": 4}, True)])
def test_sizes_of_a_decoder(options: dict[str, int], fine: bool) -> None:
    if fine:
        Reconstruction(**options)  # type: ignore[arg-type]
        return
    with pytest.raises(VitletError, match="the decoder of reconstruction has"):
        Reconstruction(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [0, 3, 6])
def test_widths_that_are_no_multiple_of_four(width: int) -> None:
    with pytest.raises(VitletError, match="a width that is a multiple of 4"):
        Reconstruction(width=width)


def test_positions_as_sines_and_cosines_equal_a_loop() -> None:
    coords = grid_coords(2, 3)[None]
    found = sincos_positions(coords, 8)
    assert found.shape == (1, 6, 8)
    for (row, column), values in zip(coords[0].tolist(), found[0].tolist(), strict=True):
        angles = [place / 10000 ** (step / 2) for place in (row, column) for step in range(2)]
        assert values == pytest.approx([*map(math.sin, angles), *map(math.cos, angles)], abs=1e-6)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("height", "width"), [(4, 5), (6, 4), (6, 8), (5, 9)])
def test_places_of_offsets_are_seen_from_the_middle(height: int, width: int, signed: bool) -> None:
    """A head that says an offset of one row and two columns for every pair; without signs, the true ones are drawn."""
    task = DRLoc(variant="signed" if signed else "l1", targets="cells", hidden=4, pool="none")
    task.build(Shapes(GridShape(8, height, width), GridShape(8, height, width)))
    for parameter in task.parameters():
        parameter.data.zero_()
    zero = torch.tensor([height - 1.0, width - 1.0]) * signed
    task.heads[0].last.bias.data.copy_(torch.tensor([1.0, 2.0]) + zero)  # type: ignore[union-attr, operator]
    grid = Grid(torch.randn(2, 8, height, width), grid_coords(height, width)[None])
    found = task.places(Features(torch.zeros(2, 3, 8, 8), grid))
    count, places = height * width, grid_coords(height, width).tolist()
    middle = height // 2 * width + width // 2
    assert (found.origin, found.sides, found.signed) == (middle, (height, width), signed)
    origins = [middle, *list(range(0, count, count // 15))[:15]]
    for token, place in enumerate(places):
        steps = [-1 if not signed and here < there else 1 for here, there in zip(place, places[middle], strict=True)]
        expected = [places[middle][axis] + (axis + 1) * steps[axis] for axis in (0, 1)]
        assert found.predicted[1, token].tolist() == expected
        offsets = [[place[axis] - places[origin][axis] for axis in (0, 1)] for origin in origins]
        wanted = offsets if signed else [[abs(each) for each in pair] for pair in offsets]
        errors = [(abs(1 - rows) + abs(2 - columns)) / 2 for rows, columns in wanted]
        assert found.error[0, token].item() == pytest.approx(sum(errors) / len(origins))


def test_angles_of_a_fine_grid_are_numbers() -> None:
    """Of tokens in one direction the cosine may be rounded to more than 1."""
    angles = pair_angles(grid_coords(32, 32)[None], 32, 32)
    assert angles.isfinite().all()
    assert 0 <= angles.min() < angles.max() < 0.5


def test_the_papers_best_layers() -> None:
    assert AttentionDistance.best_depth == 0.5
    assert AttentionSimilarity.best_depth == pytest.approx(5 / 6)


def test_three_steps_of_sinkhorn_are_usual() -> None:
    scores, cells = 20 * torch.randn(2, 6, 6), torch.arange(6)[None]
    torch.testing.assert_close(jigsaw_loss(scores, cells), jigsaw_loss(scores, cells, 3))
    assert not torch.allclose(jigsaw_loss(scores, cells), jigsaw_loss(scores, cells, 4))
    assert Jigsaw().steps == 3


@pytest.mark.parametrize("kind", [CrossEntropyTarget, GaussianTarget])
@pytest.mark.parametrize(("classes", "zeros"), [("wide", (4, 5)), ("tight", (3, 4)), ("absolute", (0, 0))])
def test_classes_are_read_as_offsets(kind: Any, classes: Any, zeros: tuple[int, int]) -> None:
    target, sides = kind(classes), (4, 5)
    out = torch.full((1, 1, target.outputs(sides)), -50.0)
    first = {"wide": 9, "tight": 7, "absolute": 4}[classes]
    out[..., zeros[0] + 2] = 50.0
    out[..., first + zeros[1] + 3] = 50.0
    torch.testing.assert_close(target.in_cells(out, sides), torch.tensor([[[2.0, 3.0]]]))
    loss, error = target.loss_and_error(out, torch.tensor([[[2.0, 3.0]]]), sides)
    assert loss.isfinite()  # though the spread is nothing
    assert error < 1e-4
