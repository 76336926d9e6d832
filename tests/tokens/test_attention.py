"""Prices on attention against slow, obvious loops, the two ways to read a map against each other, and a short run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

import vitlet
from vitlet.errors import VitletError
from vitlet.tasks.attention_distance import (
    AttentionDistance,
    attention_distance_loss,
    linear_penalty,
    smooth_sign_penalty,
)
from vitlet.tasks.attention_penalty import Layers
from vitlet.tasks.attention_similarity import (
    SMALL_POWER,
    AttentionSimilarity,
    GramPenalty,
    attention_similarity_loss,
    gram_matrices,
)
from vitlet.tasks.task import Task
from vitlet.tokens.attention import AttentionMap, AttentionShape
from vitlet.tokens.features import Features, Grid, GridShape, Needs, Shapes
from vitlet.tokens.geometry import grid_coords, manhattan
from vitlet.tokens.streamed_attention import BLOCKS, _by_rows, attend

BATCH, HEADS, HEIGHT, WIDTH = 2, 3, 3, 5
TOKENS = HEIGHT * WIDTH
PATCH = 4


def maps() -> Tensor:
    return torch.randn(BATCH, HEADS, TOKENS, TOKENS).mul(2).softmax(-1)


def distance(first: int, second: int, width: int = WIDTH) -> int:
    return abs(first // width - second // width) + abs(first % width - second % width)


def slow_penalty(kind: str, height: int = HEIGHT, width: int = WIDTH) -> list[list[float]]:
    tokens = height * width
    rows = []
    for i in range(tokens):
        largest = max(distance(i, j, width) for j in range(tokens))
        row = []
        for j in range(tokens):
            if kind == "linear":
                row.append((distance(i, j, width) + 0.1) / (largest + 1))
            else:
                beyond = distance(i, j, width) - largest / 4
                row.append(beyond / math.sqrt(beyond**2 + 0.5))
        rows.append(row)
    return rows


def slow_loss(weights: Tensor, prices: list[list[list[float]]], preset: str, heads: str) -> float:
    """The loss by loops: weights ``(B, h, N, N)``, prices by image."""
    total = 0.0
    for image in range(len(weights)):
        columns = [weights[image].mean(0)] if heads == "averaged" else list(weights[image])
        of_image = []
        for one in columns:
            low, high = (one.min().item(), one.max().item()) if preset == "reference" else (0.0, 1.0)
            pairs = [(i, j) for i in range(len(one)) for j in range(len(one))]
            of_image.append(sum(prices[image][i][j] * (one[i, j].item() - low) / (high - low) for i, j in pairs))
        total += sum(of_image) / len(of_image)
    if preset == "reference":
        return math.log(max(1.0, total))
    return total / len(weights) / weights.shape[-1]


@pytest.mark.parametrize(("kind", "penalty"), [("linear", linear_penalty), ("smooth-sign", smooth_sign_penalty)])
def test_penalties_equal_slow_loops(kind: str, penalty: Any) -> None:
    coords = grid_coords(HEIGHT, WIDTH)
    torch.testing.assert_close(penalty(manhattan(coords, coords)), torch.tensor(slow_penalty(kind)))


def test_numbers_of_the_published_grid() -> None:
    """16 x 16 patches: about 18 % of pairs are rewarded, and even attention sums to about 2,700 with P = D."""
    coords = grid_coords(16, 16)
    distances = manhattan(coords, coords)
    assert (smooth_sign_penalty(distances) < 0).float().mean().item() == pytest.approx(0.18, abs=0.005)
    assert (distances / 256).sum().item() == pytest.approx(2720, abs=1)
    even = torch.full((1, 1, 256, 256), 1 / 256)
    assert attention_distance_loss(even, (16, 16)).item() == pytest.approx(linear_penalty(distances).mean().item())


@pytest.mark.parametrize("heads", ["averaged", "each"])
@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_distance_equals_a_slow_loop(preset: Any, heads: Any) -> None:
    weights = maps()
    kind = "linear" if preset == "paper" else "smooth-sign"
    expected = slow_loss(weights, [slow_penalty(kind)] * BATCH, preset, heads)
    assert expected > 0
    found = attention_distance_loss(weights, (HEIGHT, WIDTH), preset=preset, heads=heads)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def slow_gram(image: Tensor, row: int, column: int) -> list[float]:
    channels = image.shape[0]
    patch = image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH].flatten(1).tolist()
    size = channels * PATCH * PATCH
    pairs = [(a, b) for a in range(channels) for b in range(channels)]
    return [sum(x * y for x, y in zip(patch[a], patch[b], strict=True)) / size for a, b in pairs]


def slow_differences(image: Tensor, preset: str) -> list[list[float]]:
    grams = [slow_gram(image, token // WIDTH, token % WIDTH) for token in range(TOKENS)]
    rows = []
    for one in grams:
        if preset == "paper":
            rows.append([sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / len(one) for other in grams])
        else:
            sums = [sum(abs(a - b) ** SMALL_POWER for a, b in zip(one, other, strict=True)) for other in grams]
            rows.append([total ** (1 / SMALL_POWER) for total in sums])
    if preset == "reference":
        largest = max(map(max, rows))
        rows = [[value / largest - 0.17 for value in row] for row in rows]
    return rows


@pytest.mark.parametrize("heads", ["averaged", "each"])
@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_similarity_equals_a_slow_loop(preset: Any, heads: Any) -> None:
    weights, images = maps(), torch.randn(BATCH, 3, HEIGHT * PATCH, WIDTH * PATCH)
    prices = [slow_differences(image, preset) for image in images]
    expected = slow_loss(weights, prices, preset, heads)
    found = attention_similarity_loss(weights, images, (HEIGHT, WIDTH), preset=preset, heads=heads)
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_differences_of_gram_matrices_are_symmetric_hollow_and_not_negative() -> None:
    images = torch.randn(BATCH, 3, HEIGHT * PATCH, WIDTH * PATCH)
    prices = GramPenalty(gram_matrices(images, HEIGHT, WIDTH)[:, None], "paper")(slice(None), torch.empty(0))
    assert prices.shape == (BATCH, 1, TOKENS, TOKENS)
    assert torch.equal(prices, prices.transpose(2, 3))
    assert (prices.diagonal(dim1=2, dim2=3) == 0).all() and (prices >= 0).all() and prices.max() > 0


def test_regions_have_the_gram_matrix_of_all_their_pixels() -> None:
    images = torch.randn(1, 3, 4 * PATCH, 6 * PATCH)
    grams = gram_matrices(images, 4, 6, region=2).view(4, 6, 9)
    direct = gram_matrices(images, 2, 3).view(2, 3, 9)
    torch.testing.assert_close(grams, direct.repeat_interleave(2, 0).repeat_interleave(2, 1))
    odd = gram_matrices(images, 4, 6, region=4).view(4, 6, 9)  # the last region is narrower
    torch.testing.assert_close(odd[0, 5], gram_matrices(images[:, :, :, 4 * PATCH :], 1, 1)[0, 0])


def in_both_ways(tokens: int, prefix: int = 0, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], AttentionMap]:
    """Queries, keys and values, and the map without its weights."""
    side = math.isqrt(tokens)
    inputs = [torch.randn(BATCH, HEADS, tokens + prefix, 8).to(dtype).requires_grad_() for _ in range(3)]
    shape = AttentionShape(HEADS, side, tokens // side, prefix, 1, tokens, 0.0)
    return inputs, AttentionMap(shape, grid_coords(side, tokens // side)[None, None])


def read(inputs: list[Tensor], attention: AttentionMap, price: Any, openly: bool, **how: Any) -> list[Tensor]:
    """Output, cost, mean distance, extremes, and the gradients of a loss of them all."""
    query, key, value = inputs
    if openly:
        weights = (query * 8**-0.5 @ key.transpose(-2, -1)).softmax(-1)
        out, found = weights @ value, AttentionMap(attention.shape, attention.coords, maps=weights)
    else:
        out, attended = attend(query, key, value, 8**-0.5)
        found = AttentionMap(attention.shape, attention.coords, attended=attended)
    reading = found.read(price, **how)
    parts = [out, reading.cost, reading.penalty, reading.distance]
    loss = (out.double() ** 2).mean() + (
        reading.cost * torch.arange(1, reading.cost.numel() + 1).view_as(reading.cost)
    ).sum()
    if reading.low is not None and reading.high is not None:
        parts += [reading.low, reading.high]
        loss = loss + ((reading.cost - reading.low) / (reading.high - reading.low)).sum()
    return [*(part.detach() for part in parts), *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize(("prefix", "rows"), [(0, "normalised"), (5, "normalised"), (5, "plain")])
@pytest.mark.parametrize("extremes", [False, True])
@pytest.mark.parametrize("heads", ["averaged", "each"])
def test_without_a_map_it_is_the_same(
    heads: str, extremes: bool, prefix: int, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BLOCKS, "cpu", 900)  # several blocks, the last of them shorter
    inputs, attention = in_both_ways(63, prefix)
    grams = torch.randn(BATCH, 1, 63, 9)
    for price in (lambda rows, far: smooth_sign_penalty(far), GramPenalty(grams, "reference")):
        first, second = (
            read(inputs, attention, price, way, heads=heads, rows=rows, extremes=extremes) for way in (True, False)
        )
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(other.expand_as(one), one, rtol=1e-5, atol=1e-5)


def test_without_a_map_at_a_size_where_it_is_used() -> None:
    inputs, attention = in_both_ways(1024, 1)
    first, second = (read(inputs, attention, lambda rows, far: linear_penalty(far), way) for way in (True, False))
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_where_no_kernel_hands_out_its_logsumexp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCKS, "cpu", 900)
    inputs, _ = in_both_ways(63)
    out, logsumexp = _by_rows(*inputs)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*inputs, scale=1.0))
    expected = (inputs[0] @ inputs[1].transpose(-2, -1)).logsumexp(-1)
    torch.testing.assert_close(logsumexp[..., 0], expected.flatten(0, 1))


def test_without_a_map_in_bfloat16() -> None:
    inputs, attention = in_both_ways(100, dtype=torch.bfloat16)
    exact = [part.detach().float().requires_grad_() for part in inputs]
    found = read(inputs, attention, lambda rows, far: linear_penalty(far), False)
    expected = read(exact, attention, lambda rows, far: linear_penalty(far), True)
    assert found[0].dtype == found[-1].dtype == torch.bfloat16 and found[1].dtype == torch.float32
    for one, other in zip(found, expected, strict=True):
        assert (one.float() - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("rows", ["normalised", "plain"])
@pytest.mark.parametrize("openly", [True, False])
def test_gradients_in_double_precision(openly: bool, rows: Any) -> None:
    shape = AttentionShape(2, 2, 3, 1, 1, 6, 0.0)
    coords = grid_coords(2, 3)[None, None].double()
    inputs = [torch.randn(2, 2, 7, 4, dtype=torch.double, requires_grad=True) for _ in range(3)]

    def cost(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if openly:
            weights = (query @ key.transpose(-2, -1)).softmax(-1)
            out, found = weights @ value, AttentionMap(shape, coords, maps=weights)
        else:
            out, attended = attend(query, key, value, 1.0)
            found = AttentionMap(shape, coords, attended=attended)
        reading = found.read(lambda rows, far: smooth_sign_penalty(far), heads="each", rows=rows, extremes=True)
        assert reading.low is not None and reading.high is not None
        return out, reading.cost, reading.low, reading.high

    assert torch.autograd.gradcheck(cost, inputs)


def features(weights: Tensor, images: Tensor) -> tuple[Features, Shapes]:
    shape = AttentionShape(HEADS, HEIGHT, WIDTH, 0, 1, TOKENS, 2.7)
    coords = grid_coords(HEIGHT, WIDTH)[None]
    attention = {index: AttentionMap(shape, coords[None], maps=weights) for index in range(6)}
    grid = Grid(torch.zeros(BATCH, 1, HEIGHT, WIDTH), coords)
    return Features(images, grid, attention=attention), Shapes(GridShape(1, HEIGHT, WIDTH), attention=(shape,) * 6)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_tasks_join_layers_and_tell_how_far_attention_reaches(preset: Any) -> None:
    weights, images = maps(), torch.randn(BATCH, 3, HEIGHT * PATCH, WIDTH * PATCH)
    found, shapes = features(weights, images)
    size = (HEIGHT, WIDTH)
    pairs: list[tuple[Task, Tensor]] = [
        (AttentionDistance(preset=preset, layers="2,-1"), attention_distance_loss(weights, size, preset=preset)),
        (
            AttentionSimilarity(preset=preset, layers="2,6"),
            attention_similarity_loss(weights, images, size, preset=preset),
        ),
    ]
    far = manhattan(*[grid_coords(*size)] * 2)
    expected = (weights * far).sum(-1).mean().item()
    for task, one in pairs:
        task.build(shapes)
        assert task.needs == Needs(attention=(1, 5))
        loss, metrics = task(found)
        torch.testing.assert_close(loss, one * (1 if preset == "paper" else 2))
        assert set(metrics) == {"layer2_distance", "layer2_uniform", "layer6_distance", "layer6_uniform"}
        assert float(metrics["layer6_distance"]) == pytest.approx(expected, rel=1e-5)


def test_what_goes_to_the_class_token() -> None:
    """Half of all attention goes there: plain rows leave it out, normalised rows and the mean distance ignore it."""
    weights = torch.zeros(1, 1, 5, 5)
    weights[..., 0] = 0.5
    weights[..., 1:, 4] = 0.5
    attention = AttentionMap(AttentionShape(1, 2, 2, 1, 1, 4, 1.0), grid_coords(2, 2)[None, None], maps=weights)
    for rows, share in (("plain", 0.5), ("normalised", 1.0)):
        reading = attention.read(lambda rows, far: far, rows=rows)
        assert reading.cost.item() == share * (2 + 1 + 1 + 0)
        assert reading.distance.item() == (2 + 1 + 1 + 0) / 4


def test_only_a_plain_price_lets_attention_flee_to_the_class_token() -> None:
    """With queries and keys free to move: where the gradient of each form leads."""
    left = {}
    for rows in ("plain", "normalised"):
        query, key = (torch.randn(1, 1, TOKENS + 1, 8).mul(0.1).requires_grad_() for _ in range(2))
        optimizer = torch.optim.Adam([query, key], lr=0.1)
        shape = AttentionShape(1, HEIGHT, WIDTH, 1, 1, TOKENS, 0.0)
        for _ in range(100):
            weights = (query @ key.transpose(-2, -1)).softmax(-1)
            found = AttentionMap(shape, grid_coords(HEIGHT, WIDTH)[None, None], maps=weights)
            reading = found.read(lambda rows, far: linear_penalty(far), rows=rows)
            optimizer.zero_grad()
            reading.cost.sum().backward()
            optimizer.step()
        left[rows] = weights[..., 1:, 1:].sum(-1).mean().item()
    assert left["plain"] < 0.5 < 0.8 < left["normalised"]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [("3", 6, (2,)), ("2, 4", 6, (1, 3)), ("-1", 6, (5,)), ("1,-6", 6, (0,)), ("all", 3, (0, 1, 2)), ("auto", 6, (2,))],
)
def test_layers_as_a_person_writes_them(text: str, count: int, expected: tuple[int, ...]) -> None:
    shape = AttentionShape(1, 2, 2, 0, 1, 4, 1.0)
    assert Layers(text, 0.5, "x").resolve([shape] * count) == expected


def test_the_default_layer_is_as_deep_as_the_papers_best() -> None:
    shape = AttentionShape(1, 2, 2, 0, 1, 4, 1.0)
    for count, near, alike in ((6, 2, 4), (12, 5, 9), (1, 0, 0), (2, 0, 1)):
        shapes = Shapes(GridShape(1, 2, 2), attention=(shape,) * count)
        first, second = AttentionDistance(), AttentionSimilarity()
        first.build(shapes)
        second.build(shapes)
        assert (first.layers, second.layers) == ((near,), (alike,))


@pytest.mark.parametrize("text", ["0", "third", "", "1,,2", "2.5"])
def test_layers_that_are_none(text: str) -> None:
    with pytest.raises(VitletError, match="they need to be numbers from 1 such as 3 or 2,3"):
        AttentionDistance(layers=text)


def test_refused_regions() -> None:
    with pytest.raises(VitletError, match="regions of at least 1 token"):
        AttentionSimilarity(region=0)
    with pytest.raises(VitletError, match="there would be one region"):
        AttentionSimilarity(region=5).build(features(maps(), torch.zeros(1))[1])
    moved, _ = features(maps(), torch.zeros(1))
    coords = moved.last.coords.expand(BATCH, -1, -1)
    with pytest.raises(VitletError, match="found a view that moves them"):
        AttentionSimilarity(region=2)(Features(moved.images, Grid(moved.last.tokens, coords)))


def test_a_negative_weight_is_refused() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=8, patch_size=2, depth=1, embed_dim=32, num_heads=2)
    with pytest.raises(VitletError, match="the weight of 'attention-distance' must be at least 0, got -1"):
        vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(AttentionDistance(), -1.0)])


def train_on_digits(weight: float, steps: int = 120) -> tuple[float, float]:
    """Mean attention distance of the priced layer and accuracy on held-out scans, after a short run."""
    digits = load_digits()
    images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    torch.manual_seed(3)
    options = {"img_size": 8, "patch_size": 2, "embed_dim": 48, "depth": 3, "num_heads": 3}
    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **options)
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(AttentionDistance(), weight)])
    optimizer = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(1500, (64,))
        optimizer.zero_grad()
        objective(images[batch], labels[batch]).loss.backward()
        optimizer.step()
    with torch.no_grad():
        outcome = objective.eval()(images[1500:], labels[1500:])
    assert outcome.logits is not None
    reach = float(outcome.metrics["attention-distance/layer2_distance"])
    return reach, (outcome.logits.argmax(1) == labels[1500:]).float().mean().item()


@pytest.mark.heavy
def test_attention_reaches_less_far_on_real_images_at_the_suggested_weight() -> None:
    plain, accuracy = train_on_digits(0.0)
    priced, with_price = train_on_digits(AttentionDistance.suggested_weight)
    print(f"mean attention distance {plain:.2f} without, {priced:.2f} with; accuracy {accuracy:.3f}, {with_price:.3f}")
    assert priced < 0.95 * plain
    assert accuracy > 0.5 and with_price > accuracy - 0.1


def test_similarity_lowers_attention_to_unlike_patches() -> None:
    """With queries and keys free to move, even attention (cost: the mean difference) is left behind."""
    query, key = (torch.randn(BATCH, HEADS, TOKENS, 8).requires_grad_() for _ in range(2))
    images = torch.randn(BATCH, 3, HEIGHT * PATCH, WIDTH * PATCH)
    optimizer = torch.optim.Adam([query, key], lr=0.1)
    losses = []
    for _ in range(60):
        weights = (query @ key.transpose(-2, -1)).softmax(-1)
        loss = attention_similarity_loss(weights, images, (HEIGHT, WIDTH))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]


def test_functional_losses_take_any_maps() -> None:
    weights = F.softmax(torch.randn(1, 1, 4, 4), -1).requires_grad_()
    attention_distance_loss(weights, (2, 2)).backward()
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad[0, 0], torch.tensor(slow_penalty("linear", 2, 2)) / 4)
