"""Reconstruction of hidden patches: the view that hides them, and the loss on their pixels alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

import vitlet
from vitlet import Masked, Reconstruction, VitletError
from vitlet.tasks.reconstruction import reconstruction_loss, sincos_positions
from vitlet.testing import token_grid
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.masked import MaskedView
from vitlet.tokens.views import PlainView

SIZE, PATCH, ROWS, COLUMNS = (12, 20), 4, 3, 5


def vit(**options: Any) -> torch.nn.Module:
    sizes = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": 12, "depth": 2, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options})


def slow_loss(predicted: Tensor, pixels: Tensor, cells: Tensor) -> float:
    """Patch by patch, value by value."""
    (batch, rows, columns), (_, channels, height, width) = cells.shape, pixels.shape
    down, right = height // rows, width // columns
    errors = []
    for image in range(batch):
        for row in range(rows):
            for column in range(columns):
                if not cells[image, row, column]:
                    continue
                places = [
                    (channel, row * down + y, column * right + x)
                    for channel in range(channels)
                    for y in range(down)
                    for x in range(right)
                ]
                values = [float(pixels[image][place]) for place in places]
                mean = sum(values) / len(values)
                spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-6)
                wanted = [(value - mean) / spread for value in values]
                said = [float(predicted[image][place]) for place in places]
                errors.append(sum((s - w) ** 2 for s, w in zip(said, wanted, strict=True)) / len(values))
    return sum(errors) / len(errors)


@pytest.mark.parametrize("patch", [2, 4])
def test_equals_a_slow_loop(patch: int) -> None:
    """Hidden patches as large as tokens, and smaller ones."""
    view: Any = Masked(patch, ratio=0.6)(torch.randn(3, 2, *SIZE))
    predicted = torch.randn(3, 2, *SIZE)
    found = reconstruction_loss(predicted, view.pixels, view.cells).item()
    assert found == pytest.approx(slow_loss(predicted, view.pixels, view.cells), rel=1e-5)


def test_the_task_draws_each_token_s_patch_where_it_is() -> None:
    """The loss is that of an image put together token by token, on a grid that is not square."""
    task = Reconstruction(depth=0, width=8)
    backbone = vitlet.TimmBackbone(vit())
    objective = vitlet.Objective(backbone, [task])
    images = torch.randn(2, 3, *SIZE)
    torch.manual_seed(3)
    outcome = objective(images)
    torch.manual_seed(3)
    view = Masked(PATCH)(images)  # the same draws
    features = backbone(view)
    tokens = task.entry(features.last.sequence()) + sincos_positions(features.last.coords, task.width)
    drawn = torch.zeros_like(images)
    for image in range(2):
        for index, token in enumerate(task.exit(tokens)[image]):
            row, column = divmod(index, COLUMNS)
            place = slice(row * PATCH, (row + 1) * PATCH), slice(column * PATCH, (column + 1) * PATCH)
            drawn[image][:, place[0], place[1]] = token.view(3, PATCH, PATCH)
    assert view.hidden is not None
    expected = slow_loss(drawn.detach(), images, view.hidden.cells)
    assert outcome.parts["reconstruction"].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("ratio", "count"), [(0.75, 11), (0.5, 8), (0.01, 1), (0.99, 14)])
def test_the_view_hides_exactly_that_many_patches(ratio: float, count: int) -> None:
    images = torch.randn(6, 3, *SIZE) + 5  # no pixel is 0
    view = Masked(PATCH, ratio=ratio)(images)
    assert isinstance(view, MaskedView) and view.hidden is not None
    assert view.cells.shape == (6, ROWS, COLUMNS) and (view.cells.flatten(1).sum(1) == count).all()
    for image, row, column in torch.cartesian_prod(torch.arange(6), torch.arange(ROWS), torch.arange(COLUMNS)).tolist():
        place = slice(row * PATCH, (row + 1) * PATCH), slice(column * PATCH, (column + 1) * PATCH)
        seen, was = view.images[image][:, place[0], place[1]], images[image][:, place[0], place[1]]
        assert (seen == 0).all() if view.cells[image, row, column] else torch.equal(seen, was)
    assert len({tuple(cells.flatten().tolist()) for cells in view.cells}) > 1
    assert torch.equal(view.coords(ROWS, COLUMNS), grid_coords(ROWS, COLUMNS)[None])


def test_a_share_of_the_batch() -> None:
    images = torch.randn(5, 3, *SIZE)
    view = Masked(PATCH, share=0.5)(images)
    assert view.hidden is not None and torch.equal(view.hidden.pixels, images[:3])
    assert len(Masked(PATCH, share=0.01)(images).images) == 1
    calls: list[int] = []
    model = vit()
    model.get_submodule("blocks.0").register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [Reconstruction(share=0.5)])
    calls.clear()
    outcome = objective(images, torch.zeros(5, dtype=torch.long))
    assert calls == [5, 3] and outcome.logits is not None and len(outcome.logits) == 5
    shuffled = vitlet.Chain((vitlet.ShuffledPatches(PATCH), Masked(PATCH, share=0.5)))(images)
    assert shuffled.coords(ROWS, COLUMNS).shape == (3, ROWS * COLUMNS, 2)
    assert shuffled.coords(ROWS, COLUMNS).sort(1).values[0, -1].tolist() == [ROWS - 1, COLUMNS - 1]


def test_masks_are_as_large_as_the_tokens_of_the_network() -> None:
    objective = vitlet.Objective(vitlet.TimmBackbone(vit()), [Reconstruction(ratio=0.5)])
    assert objective.terms[0].view == Masked(PATCH, ratio=0.5)
    chain = vitlet.Chain((Masked(), vitlet.Rotated())).fitted((32, 32), (4, 4))
    assert chain.makers == (Masked(8), vitlet.Rotated())
    assert Masked(2).fitted((32, 32), (4, 4)) == Masked(2)


def test_the_labels_see_the_whole_image_and_gradients_reach_everything() -> None:
    model = vit()
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [Reconstruction()])
    images = torch.randn(2, 3, *SIZE)
    outcome = objective(images, torch.tensor([0, 1]))
    torch.testing.assert_close(outcome.logits, model(images))
    outcome.loss.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_the_error_of_mean_colours_is_a_hundred() -> None:
    task = Reconstruction()
    objective = vitlet.Objective(vitlet.TimmBackbone(vit()), [task])
    last: Any = task.exit[1]  # type: ignore[index]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    outcome = objective(torch.randn(2, 3, *SIZE))
    assert float(outcome.metrics["reconstruction/error"]) == pytest.approx(100, rel=1e-4)
    assert outcome.metrics["reconstruction/chance"] == 100
    assert task.verdict({"error": 99.0, "chance": 100.0}) and task.verdict({"error": 80.0, "chance": 100.0}) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Reconstruction(depth=-1), "depth -1"),
        (lambda: Reconstruction(width=6), "a multiple of 4"),
        (lambda: Reconstruction(ratio=1.0), "ratio 1 and share 1"),
        (lambda: Reconstruction(share=0.0), "share 0; needed"),
        (lambda: Masked()(torch.randn(1, 3, *SIZE)), "by patches of unknown pixels"),
        (lambda: Masked(8)(torch.randn(1, 3, *SIZE)), "12x20 pixels cannot be masked by patches of 8 pixels"),
        (lambda: Masked(4)(torch.randn(1, 3, 4, 4)), "at least two patches"),
        (lambda: Masked().fitted((12, 20), (3, 3)), "not square patches that can be masked"),
        (
            lambda: vitlet.Objective(vitlet.TimmBackbone(vit()), [vitlet.Term(Reconstruction())]),
            "requires a view with masked patches, found one without",
        ),
        (
            lambda: vitlet.Objective(
                vitlet.TimmBackbone(timm.create_model("resnet10t"), img_size=(72, 104)),
                [vitlet.Term(Reconstruction(), view=Masked(8))],
            ),
            "found 3x4 tokens on images of 72x104 pixels",
        ),
        (lambda: vitlet.attach(vit(), [Reconstruction()]), "uses its own view of the images"),
    ],
)
def test_refusals(make: Callable[[], object], words: str) -> None:
    with pytest.raises(VitletError, match=words):
        make()
    task = Reconstruction()
    with pytest.raises(VitletError, match="found images of which nothing is"):
        task(token_grid())


@pytest.mark.parametrize("task", [Reconstruction, vitlet.Rotation, vitlet.Jigsaw])
def test_views_beside_labels_leave_the_statistics_of_a_cnn_to_the_plain_images(task: Any) -> None:
    """Evaluation sees plain images; means over blank, turned or shuffled ones would not be theirs."""

    def statistics(terms: list[vitlet.Term], labels: Tensor | None) -> list[Tensor]:
        torch.manual_seed(0)
        model = timm.create_model("resnet10t", num_classes=5)
        objective = vitlet.Objective(vitlet.TimmBackbone(model, img_size=64), terms).train()
        torch.manual_seed(1)
        objective(torch.randn(4, 3, 64, 64), labels).loss.backward()
        assert {layer.momentum for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)} == {0.1}
        return [buffer for name, buffer in model.named_buffers() if "running" in name]

    view = vitlet.ShuffledPatches(32) if task is vitlet.Jigsaw else task().suggested_view
    labels = torch.arange(4)
    alone, beside = statistics([], labels), statistics([vitlet.Term(task(), 1.0, view)], labels)
    assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))
    without = statistics([vitlet.Term(task(), 1.0, view)], None)  # in pre-training they are those of the view
    assert not torch.equal(without[0], torch.zeros_like(without[0])) and not torch.equal(without[0], alone[0])
    assert view != PlainView()
