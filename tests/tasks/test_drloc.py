"""DRLoc: every variant against a slow, obvious loop on a non-square grid, and what it promises around that."""

from __future__ import annotations

import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from vitlet.backbones import TimmBackbone
from vitlet.errors import VitletError
from vitlet.objective import Objective, Term
from vitlet.tasks import drloc as module
from vitlet.tasks.drloc import DRLoc
from vitlet.tasks.offset_targets import ClassTarget, CrossEntropyTarget, GaussianTarget, OffsetTarget
from vitlet.tokens.features import Features, Grid, GridShape, Needs, Shapes
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.views import View

BATCH, CHANNELS, HEIGHT, WIDTH, PAIRS = 3, 8, 3, 5, 16


def grid(height: int = HEIGHT, width: int = WIDTH, channels: int = CHANNELS) -> Grid:
    return Grid(torch.randn(BATCH, channels, height, width), grid_coords(height, width)[None])


def features(*grids: Grid) -> Features:
    return Features(images=torch.zeros(BATCH, 3, 8, 8), last=grids[-1], after_norm=grids[-1], every=grids)


def built(found: Features, **options: Any) -> DRLoc:
    task = DRLoc(pairs=PAIRS, hidden=16, **options)
    task.build(Shapes(found.last.shape, found.last.shape, tuple(each.shape for each in found.every)))
    return task


def fixed_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every grid of a size gets the same pairs, so that a loop can use them too."""

    def sample(batch: int, tokens: int, pairs: int, device: Any = None) -> Tensor:
        return torch.randint(tokens, (batch, pairs, 2), generator=torch.Generator().manual_seed(tokens))

    monkeypatch.setattr(module, "sample_pairs", sample)


def slow_loss(task: DRLoc, one: Grid, head: nn.Module) -> float:
    """The loss of one grid by loops over images, pairs and axes."""
    height, width = one.shape.height, one.shape.width
    pairs = module.sample_pairs(BATCH, height * width, PAIRS)
    by_class, total = isinstance(task.target, ClassTarget), 0.0
    for image in range(BATCH):
        of_image = 0.0
        for pair in range(PAIRS):
            first, second = (divmod(index, width) for index in pairs[image, pair].tolist())
            tokens = torch.cat([one.tokens[image, :, *first], one.tokens[image, :, *second]])
            out = head.last(head.extra(head.second(head.first(tokens).relu()).relu()))
            of_axis = slow_classes if by_class else slow_offsets
            of_image += of_axis(task.target, out, [a - b for a, b in zip(first, second, strict=True)], (height, width))
        total += of_image / PAIRS
    if task.target.reduction == "formula":
        return total
    return total / BATCH / (1 if by_class else 2)  # classifying variants sum their two axes


def slow_offsets(target: OffsetTarget, out: Tensor, offsets: list[int], sides: tuple[int, int]) -> float:
    total = 0.0
    for said, offset, size in zip(out.tolist(), offsets, sides, strict=True):
        wanted = float(offset if target.signed else abs(offset))
        if target.unit == "fraction":
            wanted /= size
        elif target.signed:
            wanted += size - 1
        total += abs(said - wanted)
    return total


def slow_classes(target: Any, out: Tensor, offsets: list[int], sides: tuple[int, int]) -> float:
    total, start = 0.0, 0
    for offset, size in zip(offsets, sides, strict=True):
        count = {"wide": 2 * size + 1, "tight": 2 * size - 1, "absolute": size}[target.classes]
        lowest = {"wide": -size, "tight": -(size - 1), "absolute": 0}[target.classes]
        offset = abs(offset) if target.classes == "absolute" else offset
        chances = out[start : start + count].softmax(0).tolist()
        start += count
        classes = range(lowest, lowest + count)
        if isinstance(target, CrossEntropyTarget):
            total -= math.log(chances[classes.index(offset)])
            continue
        mean = sum(chance * each for chance, each in zip(chances, classes, strict=True))
        variance = sum(p * (c - mean) ** 2 for p, c in zip(chances, classes, strict=True)) + 1e-8
        spread = math.log(variance) if target.spread == "log_variance" else math.log(math.sqrt(variance))
        total += (offset - mean) ** 2 / variance + target.alpha * spread
    return total


@pytest.mark.parametrize("reduction", ["mean", "formula"])
@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("variant", ["l1", "signed", "ce", "reg"])
def test_equals_a_slow_loop(variant: str, preset: str, reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_pairs(monkeypatch)
    one = grid()
    task = built(features(one), variant=variant, preset=preset, reduction=reduction)
    expected = slow_loss(task, one, task.heads[0])
    assert task(features(one)).loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("classes", ["wide", "tight", "absolute"])
@pytest.mark.parametrize("variant", ["ce", "reg"])
def test_every_way_to_count_classes(variant: str, classes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_pairs(monkeypatch)
    one = grid()
    task = built(features(one), variant=variant, classes=classes)
    sides = [{"wide": 2 * k + 1, "tight": 2 * k - 1, "absolute": k}[classes] for k in (HEIGHT, WIDTH)]
    assert task.heads[0].last.out_features == sum(sides)
    assert task(features(one)).loss.item() == pytest.approx(slow_loss(task, one, task.heads[0]), rel=1e-5)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_all_sums_over_blocks_with_a_head_each(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_pairs(monkeypatch)
    grids = (grid(6, 10, 4), grid(3, 5, 8), grid(2, 3, 8))
    task = built(features(*grids), variant="all", preset=preset)
    assert len(task.heads) == 3
    expected = sum(slow_loss(task, one, head) for one, head in zip(grids, task.heads, strict=True))
    assert task(features(*grids)).loss.item() == pytest.approx(expected, rel=1e-5)


def test_presets_differ_where_paper_and_code_differ() -> None:
    paper, reference = DRLoc(variant="reg"), DRLoc(variant="reg", preset="reference")
    assert paper.target == GaussianTarget("wide", spread="log_sigma")
    assert reference.target == GaussianTarget("tight", spread="log_variance")
    assert not paper.extra_linear
    assert reference.extra_linear
    assert DRLoc(variant="ce").target == CrossEntropyTarget("wide")
    assert DRLoc(variant="signed").target == OffsetTarget(True, "fraction")
    assert DRLoc(preset="reference").target == OffsetTarget(False, "cells")
    assert (paper.preset_pool, reference.preset_pool) == ("2x2", "3x3/2")
    assert (paper.suggested_schedule, reference.suggested_schedule) == ("constant", "ramp")
    assert DRLoc(preset="reference", targets="fraction").target == OffsetTarget(False, "fraction")


@pytest.mark.parametrize(
    ("size", "options", "seen"),
    [
        ((14, 14), {}, (7, 7)),
        ((14, 14), {"preset": "reference"}, (7, 7)),
        ((14, 14), {"pool": "none"}, (14, 14)),
        ((13, 40), {}, (13, 40)),
        ((28, 56), {}, (7, 14)),
        ((5, 8), {"pool": "2x2"}, (3, 4)),
        ((5, 8), {"pool": "3x3/2"}, (3, 4)),
    ],
)
def test_pooling(size: tuple[int, int], options: dict[str, Any], seen: tuple[int, int]) -> None:
    one = grid(*size)
    task = built(features(one), **options)
    for pool in task.pools[0]:
        one = one.pooled(pool)
    assert (one.shape.height, one.shape.width) == seen
    assert one.coords.tolist() == [grid_coords(*seen).tolist()]
    assert math.isfinite(task(features(grid(*size))).loss.item())


def test_pools_average_what_they_cover() -> None:
    ramp = torch.arange(16.0).view(1, 1, 4, 4)
    plain = Grid(ramp, grid_coords(4, 4)[None])
    assert plain.pooled("2x2").tokens.flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    reference = plain.pooled("3x3/2").tokens  # the padding is not counted: the corner averages 0, 1, 4, 5
    assert reference.flatten()[0].item() == 2.5
    assert reference.flatten()[3].item() == 10.0


def test_pooling_a_moved_view_is_refused() -> None:
    one = Grid(torch.randn(BATCH, 4, 4, 4), torch.stack([grid_coords(4, 4)] * BATCH))
    with pytest.raises(VitletError, match="pooling mixes"):
        one.pooled("2x2")


@pytest.mark.parametrize("variant", ["l1", "signed", "ce", "reg", "all"])
@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_overfits_one_batch(variant: str, preset: str) -> None:
    """With tokens free to move, the offsets of a 3 x 5 grid are learned far below chance."""
    tokens = nn.Parameter(torch.randn(BATCH, 16, HEIGHT, WIDTH))
    coords = grid_coords(HEIGHT, WIDTH)[None]
    task = DRLoc(variant=variant, preset=preset, pairs=64, hidden=64)
    shape = GridShape(16, HEIGHT, WIDTH)
    task.build(Shapes(shape, shape, (shape,)))
    optimizer = torch.optim.Adam([tokens, *task.parameters()], lr=3e-3)
    for _ in range(500):
        loss, metrics = task(features(Grid(tokens, coords)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert metrics["error_cells"] < 0.35 * metrics["chance_cells"]
    assert task.verdict({key: float(value) for key, value in metrics.items()}) is None


def test_metrics_are_in_cells_whatever_the_targets() -> None:
    one = grid(7, 7)
    for options in ({}, {"preset": "reference"}, {"variant": "signed"}, {"variant": "ce"}, {"variant": "reg"}):
        task = built(features(one), **options)
        for parameter in task.parameters():
            nn.init.zeros_(parameter)
        error = float(task(features(one)).metrics["error_cells"])
        assert 1.0 < error < 8.0  # a head that predicts nothing is off by a few cells of a 7 x 7 grid
    constant = built(features(one))
    for parameter in constant.parameters():
        nn.init.zeros_(parameter)
    constant.pairs = 4096
    nn.init.constant_(constant.heads[0].last.bias, 2 / 7)  # the best constant guess
    result = constant(features(one))
    assert float(result.metrics["error_cells"]) == pytest.approx(constant.chance_cells, rel=0.03)


def test_verdict_says_when_nothing_was_learned() -> None:
    task = built(features(grid()))
    assert "no better than the 1.00 of a constant guess" in (
        task.verdict({"error_cells": 0.97, "chance_cells": 1.0}) or ""
    )
    assert task.verdict({"error_cells": 0.9, "chance_cells": 1.0}) is None


def test_tap_after_the_norm() -> None:
    one = grid()
    other = Grid(one.tokens * 0, one.coords)
    task = built(features(one), tap="after_norm")
    found = Features(images=torch.zeros(BATCH, 3, 8, 8), last=other, after_norm=one)
    assert task.needs.after_norm
    task(found).loss.backward()
    weight = task.heads[0].first.weight.grad
    assert weight is not None
    assert weight.abs().sum() > 0  # zero tokens would give the first layer no gradient


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairs": 0}, "at least one pair"),
        ({"hidden": 0}, "one hidden unit"),
        ({"variant": "all", "tap": "after_norm"}, "use tap 'before_norm'"),
    ],
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(VitletError, match=words):
        DRLoc(**options)


def test_refuses_a_grid_pooled_to_nothing() -> None:
    with pytest.raises(VitletError, match=r"needs at least 2x2\. Use pool 'none'"):
        built(features(grid(2, 4)), pool="2x2")


@pytest.mark.parametrize("classes", ["wide", "tight", "absolute"])
@pytest.mark.parametrize("variant", ["ce", "reg"])
def test_places_between_cells_have_a_class(variant: str, classes: str) -> None:
    """Tokens of mega-patches may lie almost a whole side apart: one more cell than those of a regular grid."""
    last = torch.tensor([HEIGHT, WIDTH]) - 0.55
    places = torch.rand(BATCH, HEIGHT * WIDTH, 2).round() * (last + 0.45) - 0.45  # in the corners of the image
    one = Grid(torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), places)
    result = built(features(one), variant=variant, classes=classes)(features(one))
    assert result.loss.isfinite() and float(result.metrics["error_cells"]) < 2 * WIDTH


def test_the_expected_class_is_exact_under_autocast() -> None:
    target = torch.randint(15, (4, 64), generator=torch.Generator().manual_seed(4))
    logits = -4 * (torch.arange(15) - target[..., None] - 0.05).abs()  # as learned, with a narrow spread
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module.localization_reg(logits, target)
    assert found.item() == pytest.approx(module.localization_reg(logits, target).item(), rel=1e-6)


def test_all_on_swin_has_a_head_for_each_block_or_for_each_merged_stage() -> None:
    """Equation 7 of the paper sums over blocks; the released code over stages, after their tokens were merged."""
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, img_size=(128, 64), embed_dim=12)
    backbone = TimmBackbone(model)
    found = {}
    for levels, options in (("blocks", {}), ("merged", {"preset": "reference"}), ("merged", {"levels": "stages"})):
        task = DRLoc(variant="all", hidden=8, **options)
        assert task.needs == Needs(every_grid=True, levels=levels)
        objective = Objective(backbone, [Term(task)])
        objective(torch.randn(2, 3, 128, 64)).loss.backward()
        assert all(parameter.grad is not None for parameter in task.parameters())
        found[levels] = [(shape.channels, shape.height, shape.width) for shape in backbone.shapes(task.needs).every]
        assert len(task.heads) == len(found[levels])
    assert found["blocks"] == [
        *[(12, 32, 16)] * 2,
        *[(24, 16, 8)] * 2,
        *[(48, 8, 4)] * 6,
        *[(96, 4, 2)] * 2,
    ]
    assert found["merged"] == [(24, 16, 8), (48, 8, 4), (96, 4, 2), (96, 4, 2)]


def test_levels_are_what_the_layers_gave() -> None:
    model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, img_size=64, embed_dim=12, depths=(1, 2))
    given: dict[str, Tensor] = {}
    for name in ("layers.0.blocks.0", "layers.1.downsample", "layers.1.blocks.0", "layers.1.blocks.1"):
        model.get_submodule(name).register_forward_hook(lambda *args, name=name: given.update({name: args[2]}))
    backbone, images = TimmBackbone(model.eval()), torch.randn(2, 3, 64, 64)
    blocks, merged = (backbone(View(images), Needs(every_grid=True, levels=each)) for each in ("blocks", "merged"))
    names = ("layers.0.blocks.0", "layers.1.blocks.0", "layers.1.blocks.1")
    for grid_, name in zip(blocks.every, names, strict=True):
        torch.testing.assert_close(grid_.tokens.permute(0, 2, 3, 1), given[name])
    for grid_, name in zip(merged.every, ("layers.1.downsample", "layers.1.blocks.1"), strict=True):
        torch.testing.assert_close(grid_.tokens.permute(0, 2, 3, 1), given[name])
    assert not any(module._forward_hooks for name, module in model.named_modules() if name not in given)


@pytest.mark.parametrize(("name", "count"), [("vit_tiny_patch16_224", 12), ("cvt_13", 13), ("t2t_vit_14", 14)])
def test_blocks_of_other_networks(name: str, count: int) -> None:
    with torch.device("meta"):
        backbone = TimmBackbone(timm.create_model(name, img_size=224))
        assert len(backbone.shapes(Needs(every_grid=True, levels="blocks")).every) == count


def test_levels_that_cannot_be_had_are_refused() -> None:
    with torch.device("meta"):
        backbone = TimmBackbone(timm.create_model("resnet10t"))
        with pytest.raises(VitletError, match=r"shows 5 stages, and no blocks .* Use levels 'stages'"):
            backbone.shapes(DRLoc(variant="all").needs)
        assert len(backbone.shapes(DRLoc(variant="all", levels="stages").needs).every) == 5
    with pytest.raises(VitletError, match="found blocks and merged"):
        DRLoc(variant="all").needs | DRLoc(variant="all", levels="stages").needs
