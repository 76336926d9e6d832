"""Coordinates, pairs, offsets and chance levels against slow, obvious loops."""

from __future__ import annotations

import pytest
import torch

from vitlet.tokens.geometry import (
    MOST_SPREAD,
    chance_error,
    constant_error,
    from_unit_range,
    grid_coords,
    manhattan,
    pair_offsets,
    sample_pairs,
    spread_coords,
    to_unit_range,
)


def test_coords_run_row_by_row() -> None:
    assert grid_coords(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


@pytest.mark.parametrize(("height", "width"), [(2, 3), (64, 1), (128, 40), (40, 200)])
def test_spread_coords_are_those_of_a_grid_or_enough_of_them(height: int, width: int) -> None:
    coords, grid = spread_coords(height, width), grid_coords(height, width)
    assert len(coords) == min(height, MOST_SPREAD) * min(width, MOST_SPREAD)
    assert torch.equal(coords[[0, -1]], grid[[0, -1]])
    assert torch.equal(coords, grid) or max(height, width) > MOST_SPREAD
    torch.testing.assert_close(coords.mean(0), grid.mean(0))


def test_pairs_are_uniform_independent_and_seeded() -> None:
    pairs = sample_pairs(200, 6, 100, generator=torch.Generator().manual_seed(1))
    again = sample_pairs(200, 6, 100, generator=torch.Generator().manual_seed(1))
    assert torch.equal(pairs, again)
    counts = torch.zeros(6, 6).index_put_((pairs[..., 0].flatten(), pairs[..., 1].flatten()), torch.ones(1), True)
    assert (counts / counts.sum() - 1 / 36).abs().max() < 0.005  # both orders and identical tokens occur alike


@pytest.mark.parametrize("batched", [False, True])
def test_offsets_equal_a_loop(batched: bool) -> None:
    coords = grid_coords(3, 5)[None]
    if batched:  # a permuted view: every image has coordinates of its own
        coords = torch.stack([coords[0][torch.randperm(15)] for _ in range(4)])
    pairs = sample_pairs(4, 15, 7)
    offsets = pair_offsets(coords, pairs)
    for image in range(4):
        for pair in range(7):
            first, second = pairs[image, pair].tolist()
            own = coords[image if batched else 0]
            assert offsets[image, pair].tolist() == (own[first] - own[second]).tolist()


@pytest.mark.parametrize("size", [2, 3, 4, 7, 14])
@pytest.mark.parametrize("signed", [False, True])
def test_chance_is_the_best_constant(size: int, signed: bool) -> None:
    offsets = [a - b if signed else abs(a - b) for a in range(size) for b in range(size)]
    guesses = [step / 4 for step in range(-4 * size, 4 * size + 1)]
    best = min(sum(abs(offset - guess) for offset in offsets) / len(offsets) for guess in guesses)
    assert chance_error(size, signed=signed) == pytest.approx(best)


def test_chance_levels_of_the_literature() -> None:
    assert chance_error(7, signed=False) == pytest.approx(1.35, abs=0.005)
    assert chance_error(4, signed=False) == pytest.approx(0.75)


def test_values_are_scaled_by_the_largest_of_their_own_image() -> None:
    values = torch.stack([torch.rand(4, 4), 10 * torch.rand(4, 4), torch.rand(4, 4) + 3])
    scaled = to_unit_range(values)
    for image, found in zip(values, scaled, strict=True):
        torch.testing.assert_close(found, 2 * image / image.max() - 1)
        assert found.max() == 1
    torch.testing.assert_close(from_unit_range(scaled, values), values)
    torch.testing.assert_close(from_unit_range(scaled[:1], values[1:2]), values[:1] * values[1].max() / values[0].max())


def test_manhattan_distances_equal_a_loop() -> None:
    first, second = grid_coords(2, 3), grid_coords(3, 2)
    for one, row in zip(first, manhattan(first, second), strict=True):
        assert row.tolist() == [float((one - other).abs().sum()) for other in second]


def test_a_constant_is_best_at_the_median() -> None:
    values = torch.tensor([0.0, 1.0, 1.0, 2.0, 9.0])
    assert constant_error(values) == pytest.approx((1 + 0 + 0 + 1 + 8) / 5)
