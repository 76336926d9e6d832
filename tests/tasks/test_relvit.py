"""RelViT's tasks against slow, obvious loops on a non-square grid, regular and shuffled, and what they promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import vitlet
from vitlet.tasks.angle import Angle, pair_angles
from vitlet.tasks.distance import Distance
from vitlet.tasks.heads import RelationHead
from vitlet.tasks.position import Position, cell_index
from vitlet.tasks.sprel import SpatialRelations, relation_classes
from vitlet.tasks.task import Task
from vitlet.tokens.features import Features, Grid, GridShape, Shapes
from vitlet.tokens.geometry import grid_coords, to_unit_range
from vitlet.tokens.patch_views import MegaPatches, ShuffledPatches
from vitlet.tokens.views import PlainView

BATCH, CHANNELS, HEIGHT, WIDTH = 3, 20, 3, 5
COUNT = HEIGHT * WIDTH
TASKS: dict[str, Callable[..., Task]] = {
    "sprel": SpatialRelations,
    "distance": Distance,
    "angle": Angle,
    "position": Position,
}
EVERY = pytest.mark.parametrize("name", TASKS)


def coordinates(kind: str) -> Tensor:
    """Of a regular grid, of one shuffled per image, or of mega-patches with centres between cells."""
    regular = grid_coords(HEIGHT, WIDTH)
    if kind == "regular":
        return regular[None]
    if kind == "shuffled":
        return torch.stack([regular[torch.randperm(COUNT)] for _ in range(BATCH)])
    rows, columns = torch.tensor([-0.3, 0.45, 1.8]), torch.tensor([0.0, 0.7, 1.5, 2.6, 4.2])
    return torch.cartesian_prod(rows, columns).expand(BATCH, -1, -1)


def features(tokens: Tensor, coords: Tensor) -> Features:
    grid = Grid(tokens, coords)
    return Features(images=tokens, last=Grid(tokens * 0, coords), after_norm=grid)


def built(name: str, *, height: int = HEIGHT, width: int = WIDTH, channels: int = CHANNELS, **options: Any) -> Task:
    task = TASKS[name](**options)
    shape = GridShape(channels, height, width)
    task.build(Shapes(shape, shape))
    return task


def score(head: RelationHead, first: Tensor, second: Tensor) -> list[float]:
    """The definition: each head's own q and k of two tokens."""
    query, key = head.query_key.weight.view(2, head.heads, head.width, head.channels)
    return [((q @ first) @ (k @ second)).item() / math.sqrt(head.width) for q, k in zip(query, key, strict=True)]


def cross_entropy(scores: list[float], label: int) -> float:
    return math.log(sum(math.exp(each) for each in scores)) - scores[label]


def slow(task: Any, tokens: Tensor, coords: Tensor) -> tuple[float, float]:
    """Loss and metric by loops over images and pairs of tokens."""
    loss = metric = 0.0
    sequence = tokens.flatten(2).transpose(1, 2)
    for image in range(BATCH):
        places = coords[image if len(coords) > 1 else 0].tolist()
        if task.name == "position":
            for token, (row, column) in zip(sequence[image], places, strict=True):
                scores = task.head(token).tolist()
                label = math.floor(row + 0.5) * WIDTH + math.floor(column + 0.5)
                loss += cross_entropy(scores, label) / COUNT
                metric += 100 * (scores.index(max(scores)) == label) / COUNT
            continue
        pairs = [(p, q) for p in range(COUNT) for q in range(COUNT)]
        truths = [truth(task.name, places[p], places[q], same=p == q) for p, q in pairs]
        most = max(truths)
        for (p, q), wanted in zip(pairs, truths, strict=True):
            scores = score(task.head, sequence[image, p], sequence[image, q])
            if task.name == "sprel":
                loss += cross_entropy(scores, int(wanted)) / len(pairs)
                metric += 100 * (scores.index(max(scores)) == wanted) / len(pairs)
            else:
                loss += (scores[0] - (wanted / most * 2 - 1)) ** 2 / len(pairs)
                metric += abs((scores[0] + 1) / 2 * most - wanted) / len(pairs)
    return loss / BATCH, metric / BATCH


def truth(name: str, first: list[float], second: list[float], *, same: bool) -> float:
    """What a task should say of two places: a class, cells, or degrees."""
    (row, column), (other_row, other_column) = first, second
    if name == "sprel":
        down = 0 if row < other_row else 1 if row == other_row else 2
        right = 0 if column < other_column else 1 if column == other_column else 2
        return 3 * down + right
    if name == "distance":
        return math.sqrt((row - other_row) ** 2 + (column - other_column) ** 2)
    if same:
        return 0.0
    row, other_row = row + HEIGHT / 2, other_row + HEIGHT / 2
    column, other_column = column + WIDTH / 2, other_column + WIDTH / 2
    lengths = math.hypot(row, column) * math.hypot(other_row, other_column)
    return math.degrees(math.acos((row * other_row + column * other_column) / (lengths + 1e-4)))


@pytest.mark.parametrize("kind", ["regular", "shuffled", "mega"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("sprel", {}), ("sprel", {"head": "paper"}), ("distance", {}), ("angle", {}), ("position", {})],
)
def test_equals_a_slow_loop(name: str, options: dict[str, Any], kind: str) -> None:
    tokens, coords = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), coordinates(kind)
    task = built(name, **options)
    result = task(features(tokens, coords))
    loss, metric = slow(task, tokens, coords)
    assert result.loss.item() == pytest.approx(loss, rel=1e-5)
    assert float(result.metrics.get("accuracy", result.metrics.get("error", 0.0))) == pytest.approx(metric, rel=1e-4)


def test_the_nine_relations() -> None:
    """The first token as seen from the second: up-left is 0, then row by row to down-right, 8."""
    centre = 4  # of a 3 x 3 grid
    assert relation_classes(grid_coords(3, 3)[None])[0, :, centre].tolist() == list(range(9))


def test_angles_of_a_grid_of_four_by_four() -> None:
    """The vectors of the corners are (2, 2), (2, 5), (5, 2) and (5, 5); the widest angle scales to 1."""
    angles = pair_angles(grid_coords(4, 4)[None], 4, 4)[0] * 180
    corners = torch.tensor([0, 3, 12, 15])
    expected = torch.tensor(
        [
            [0.0, 23.1995, 23.1995, 0.1812],
            [23.1995, 0.0, 46.3974, 23.1989],
            [23.1995, 46.3974, 0.0, 23.1989],
            [0.1812, 23.1989, 23.1989, 0.0],
        ]
    )
    torch.testing.assert_close(angles[corners][:, corners], expected, atol=0.001, rtol=0)
    scaled = to_unit_range(angles[None])[0, 0, :4]  # the first row of tokens as seen from its first
    assert scaled.tolist() == pytest.approx([-1.0, -0.51235, -0.20529, 0.00003], abs=1e-4)


@pytest.mark.parametrize(("size", "percent"), [((8, 8), 19.14), ((2, 2), 25.0), ((3, 5), 40 / 3), ((2, 8), 21.875)])
def test_chance_is_the_majority_class(size: tuple[int, int], percent: float) -> None:
    counts = relation_classes(grid_coords(*size)[None]).flatten().bincount()
    task: Any = built("sprel", height=size[0], width=size[1])
    assert task.chance == pytest.approx(100 * (counts.max() / counts.sum()).item())
    assert task.chance == pytest.approx(percent, abs=0.01)


@pytest.mark.parametrize("name", ["distance", "angle"])
def test_chance_is_the_best_constant(name: str) -> None:
    task: Any = built(name)
    places = grid_coords(HEIGHT, WIDTH).tolist()
    truths = [truth(name, p, q, same=p is q) for p in places for q in places]
    best = min(sum(abs(value - guess) for value in truths) / len(truths) for guess in truths)
    assert task.chance == pytest.approx(best, rel=1e-4)


def test_positions_between_cells_go_to_the_nearest() -> None:
    coords = torch.tensor([[[-0.49, 0.49], [0.5, 1.2], [1.49, 3.6]]])
    assert cell_index(coords, WIDTH).tolist() == [[0, WIDTH + 1, WIDTH + 4]]


class SeparateHeads(nn.Module):
    """The plain form: a q and a k layer for each head."""

    def __init__(self, head: RelationHead) -> None:
        super().__init__()
        weights = head.query_key.weight.detach().view(2, head.heads, head.width, head.channels)
        layers = [[nn.Linear(head.channels, head.width, bias=False) for _ in range(2)] for _ in range(head.heads)]
        self.heads = nn.ModuleList(nn.ModuleList(pair) for pair in layers)
        for number, pair in enumerate(layers):
            for layer, weight in zip(pair, weights[:, number], strict=True):
                layer.weight.data.copy_(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        scores = []
        for query, key in self.heads:  # type: ignore[misc]
            scores.append(query(tokens) @ key(tokens).transpose(1, 2) / math.sqrt(query.out_features))
        return torch.stack(scores, dim=1)


@pytest.mark.parametrize(
    ("heads", "width", "tolerance"), [(9, 10, 5e-7), (9, 96, 1e-6), (1, 96, 1e-6)], ids=["narrow", "wide", "one wide"]
)
def test_the_head_equals_separate_heads(heads: int, width: int, tolerance: float) -> None:
    """Exactly in double precision; in single precision to rounding."""
    exact = SeparateHeads(head := RelationHead(96, heads, width)).double()
    plain = SeparateHeads(head)
    tokens = nn.functional.layer_norm(torch.randn(8, 49, 96), (96,)).requires_grad_()
    found, expected, truth = head(tokens), plain(tokens), exact(tokens.double())
    assert found.shape == (8, heads, 49, 49)
    assert (found - expected).abs().max() < tolerance * truth.abs().max()
    slope = torch.randn_like(found)
    mine, theirs = (torch.autograd.grad((out * slope).sum(), tokens)[0] for out in (found, expected))
    assert (mine - theirs).abs().max() < 4 * tolerance * theirs.abs().max()
    assert (head.double()(tokens.double()) - truth).abs().max() < 1e-14


def small_vit(**options: Any) -> nn.Module:
    arguments: dict[str, Any] = {"img_size": (16, 24), "patch_size": 4, "embed_dim": 36, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", **{**arguments, "num_classes": 5, **options})


def small_swin() -> nn.Module:
    arguments: dict[str, Any] = {"img_size": (32, 48), "window_size": 4, "embed_dim": 16, "depths": (2, 2)}
    return timm.create_model("swin_tiny_patch4_window7_224", **arguments, num_heads=(2, 4), num_classes=5)


BACKBONES: dict[str, Callable[[], vitlet.TimmBackbone]] = {
    "vit": lambda: vitlet.TimmBackbone(small_vit()),
    "swin": lambda: vitlet.TimmBackbone(small_swin()),
    "resnet": lambda: vitlet.TimmBackbone(timm.create_model("resnet10t", num_classes=5), img_size=(64, 96)),
}


@EVERY
def test_without_positions_shuffling_changes_nothing(name: str) -> None:
    """A ViT without positions is permutation-equivariant: shuffled patches and places give the same loss."""
    backbone = vitlet.TimmBackbone(small_vit(pos_embed="none"))
    terms = {view: vitlet.Term(TASKS[name](), view=view) for view in (PlainView(), ShuffledPatches(4))}
    plain, shuffled = (vitlet.Objective(backbone, [term]) for term in terms.values())
    shuffled.tasks.load_state_dict(plain.tasks.state_dict())
    images = torch.randn(4, 3, 16, 24)
    assert shuffled(images).loss.item() == pytest.approx(plain(images).loss.item(), abs=1e-5)
    with_positions = vitlet.TimmBackbone(small_vit())
    nn.init.normal_(with_positions.model.pos_embed)  # type: ignore[arg-type]
    moved = vitlet.Objective(with_positions, [vitlet.Term(TASKS[name](), view=ShuffledPatches(4))])
    assert moved(images).loss.item() != pytest.approx(moved(images).loss.item(), abs=1e-5)


@pytest.mark.parametrize("kind", BACKBONES)
def test_all_tasks_together_on_any_backbone(kind: str) -> None:
    backbone = BACKBONES[kind]()
    fresh = set(backbone.model.state_dict())
    patch = backbone.img_size[0] // backbone.shapes().last.height
    shuffle = ShuffledPatches(patch)
    terms = [vitlet.Term(make(), 1.0, shuffle if name == "angle" else PlainView()) for name, make in TASKS.items()]
    objective = vitlet.Objective(backbone, [*terms, vitlet.Term(vitlet.DRLoc(hidden=16), 0.5)])
    outcome = objective(torch.randn(2, 3, *backbone.img_size), torch.tensor([0, 1]))
    assert list(outcome.parts) == ["criterion", "sprel", "distance", "position", "drloc", "angle"]
    assert {"sprel/accuracy", "sprel/chance", "distance/error", "angle/chance", "position/accuracy"} <= set(
        outcome.metrics
    )
    outcome.loss.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())
    assert set(backbone.model.state_dict()) == fresh


@EVERY
def test_gradients_reach_every_patch_token(name: str) -> None:
    tokens = torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH, requires_grad=True)
    built(name)(features(tokens, coordinates("shuffled"))).loss.backward()
    assert tokens.grad is not None
    assert (tokens.grad.abs().sum(1) > 0).all()


@EVERY
def test_overfits_one_batch(name: str) -> None:
    tokens = nn.Parameter(torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH))
    coords = coordinates("shuffled")
    task = built(name)
    optimizer = torch.optim.Adam([tokens, *task.parameters()], lr=1e-2)
    for _ in range(400):
        loss, metrics = task(features(tokens, coords))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if "accuracy" in metrics:
        assert metrics["accuracy"] == 100
    else:
        assert metrics["error"] < 0.1 * metrics["chance"]
    assert task.verdict({key: float(value) for key, value in metrics.items()}) is None


@EVERY
def test_verdict_says_when_nothing_was_learned(name: str) -> None:
    task = built(name)
    assert "was not learned" in (
        task.verdict({"accuracy": 20.1, "error": 1.0, "chance": 20.0 if name in ("sprel", "position") else 1.0}) or ""
    )


def test_tokens_that_are_all_alike_get_no_credit() -> None:
    result = built("sprel")(features(torch.zeros(BATCH, CHANNELS, HEIGHT, WIDTH), coordinates("regular")))
    assert float(result.metrics["accuracy"]) == pytest.approx(100 / 9)


@EVERY
def test_pooling_and_tap(name: str) -> None:
    one = Grid(torch.randn(BATCH, CHANNELS, 6, 10), grid_coords(6, 10)[None])
    task: Any = built(name, height=6, width=10, pool="2x2")
    small: Any = built(name)
    small.load_state_dict(task.state_dict())
    expected = small(features(one.pooled("2x2").tokens, coordinates("regular"))).loss
    assert task(features(one.tokens, one.coords)).loss.item() == pytest.approx(expected.item(), rel=1e-5)
    before: Any = built(name, tap="before_norm")
    assert not before.needs.after_norm
    assert task.needs.after_norm
    with pytest.raises(vitlet.VitletError, match=r"pooling leaves 1x3 of 2x6 tokens"):
        built(name, height=2, width=6, pool="3x3/2")


def test_a_layer_backbone_has_one_tap() -> None:
    def objective(tap: Any) -> vitlet.Objective:
        backbone = vitlet.LayerBackbone(small_vit(), layer="blocks.1", img_size=(16, 24), prefix_tokens=1)
        return vitlet.Objective(backbone, [vitlet.Term(SpatialRelations(tap=tap))])

    objective("before_norm")(torch.randn(2, 3, 16, 24)).loss.backward()
    with pytest.raises(vitlet.VitletError, match="one grid"):
        objective("after_norm")


def test_positions_of_another_grid_are_the_same_parts_of_the_image() -> None:
    """Built for 3x5 cells, asked on 6x10: a head that always answers one cell answers inside of that cell."""
    task: Any = built("position")
    for row, column in ((0, 0), (2, 4), (1, 2)):
        torch.nn.init.zeros_(task.head.weight)
        torch.nn.init.zeros_(task.head.bias)
        task.head.bias.data[row * WIDTH + column] = 9.0
        grid = Grid(torch.randn(BATCH, CHANNELS, 2 * HEIGHT, 2 * WIDTH), grid_coords(2 * HEIGHT, 2 * WIDTH)[None])
        chosen = task.scores(grid).argmax(2)
        assert set((chosen // (2 * WIDTH) // 2).flatten().tolist()) == {row}
        assert set((chosen % (2 * WIDTH) // 2).flatten().tolist()) == {column}


def test_a_term_of_each_view_in_one_objective() -> None:
    """Classifier and DRLoc on the plain view, sprel shuffled, position on mega-patches: three forwards."""
    model = small_vit(dynamic_img_size=True)
    calls: list[int] = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr, index]
    objective = vitlet.Objective(
        vitlet.TimmBackbone(model),
        [
            vitlet.Term(vitlet.DRLoc(hidden=16)),
            vitlet.Term(SpatialRelations(), view=ShuffledPatches(4)),
            vitlet.Term(Distance(), view=ShuffledPatches(4)),
            vitlet.Term(Position(), view=MegaPatches(4, side=3)),
        ],
    )
    calls.clear()
    objective(torch.randn(2, 3, 16, 24), torch.tensor([0, 1])).loss.backward()
    assert len(calls) == 3
