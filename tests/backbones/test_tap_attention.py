"""Attention maps out of real networks: the right weights, the right places, and nothing else changed."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import vitlet
from builders.families import FAMILIES, Family
from vitlet.backbones.windows import Windows
from vitlet.errors import VitletError
from vitlet.models.factory import attention_families, find_models
from vitlet.tasks.attention_distance import AttentionDistance, linear_penalty
from vitlet.tasks.attention_similarity import AttentionSimilarity
from vitlet.tokens.features import Features, Needs
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.views import View


def small_vit(name: str = "vit_tiny_patch16_224", **more: Any) -> Any:
    options = {"img_size": (32, 64), "patch_size": 8, "depth": 4, "embed_dim": 48, "num_heads": 3, **more}
    return timm.create_model(name, num_classes=5, **options)


def small_swin(size: tuple[int, int], **more: Any) -> Any:
    options = {"embed_dim": 12, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4, **more}
    return timm.create_model("swin_tiny_patch4_window7_224", img_size=size, num_classes=5, **options)


def look(model: Any, images: Tensor, asked: Any = "all", **options: Any) -> Features:
    backbone = vitlet.TimmBackbone(model, img_size=tuple(images.shape[2:]), **options)
    return backbone(View(images), Needs(attention=asked))


@pytest.mark.parametrize("prefix", [1, 5])
def test_the_map_is_the_softmax_of_the_blocks_own_scores(prefix: int) -> None:
    model = small_vit(reg_tokens=prefix - 1).eval()
    images = torch.randn(2, 3, 32, 64)
    expected_logits = model(images)
    inputs: list[Tensor] = []
    model.blocks[2].attn.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    found = look(model, images, (2,))
    query, key, _ = model.blocks[2].attn.qkv(inputs[-1]).view(2, -1, 3, 3, 16).permute(2, 0, 3, 1, 4)
    expected = (query @ key.transpose(-2, -1) / 4).softmax(-1)
    attention = found.attention[2]
    torch.testing.assert_close(attention.weights, expected)
    assert list(found.attention) == [2] and attention.shape.prefix == prefix
    assert torch.equal(attention.patches[:, 0], attention.weights[:, :, prefix:, prefix:])
    assert attention.coords.tolist() == [[grid_coords(4, 8).tolist()]]
    torch.testing.assert_close(found.logits, expected_logits, rtol=1e-5, atol=1e-5)


def test_a_large_map_is_never_written_but_can_be() -> None:
    images = torch.randn(2, 3, 32, 64)
    model = small_vit().eval()
    openly = look(copy.deepcopy(model), images, (1,)).attention[1]
    hidden = look(model, images, (1,), explicit_tokens=16)
    assert hidden.attention[1].maps is None and openly.maps is not None
    torch.testing.assert_close(hidden.attention[1].weights, openly.weights)
    torch.testing.assert_close(hidden.logits, small_logits(model, images), rtol=1e-5, atol=1e-5)


def small_logits(model: Any, images: Tensor) -> Tensor:
    logits: Tensor = model(images)
    return logits


class Count(TorchFunctionMode):
    """Counts calls of fused attention."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def test_all_other_layers_stay_fused_and_bit_equal() -> None:
    model = small_vit().eval()
    images, tokens = torch.randn(2, 3, 32, 64), torch.randn(2, 33, 48)
    before = [block.attn(tokens) for block in model.blocks]
    outputs: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, output: outputs.append(output))
    with torch.no_grad():
        plain = model(images)
        found = look(model, images, (2,))
    first, last = outputs[:4], outputs[-4:]
    assert torch.equal(first[0], last[0]) and torch.equal(first[1], last[1])  # blocks before the tapped one
    torch.testing.assert_close(found.logits, plain, rtol=1e-5, atol=1e-5)
    after = [block.attn(tokens) for block in model.blocks]
    for index in (0, 1, 3):
        assert torch.equal(before[index], after[index])
    torch.testing.assert_close(before[2], after[2], rtol=1e-5, atol=1e-5)
    assert ["forward" in vars(block.attn) for block in model.blocks] == [False, False, True, False]


def test_only_the_asked_layer_leaves_the_fused_kernel() -> None:
    model, images = small_vit().eval(), torch.randn(1, 3, 32, 64)
    backbone = vitlet.TimmBackbone(model)
    backbone.shapes(Needs(attention=(0, -1)))
    with torch.no_grad(), Count() as count:
        backbone(View(images), Needs(attention=(0, -1)))
    assert count.calls == 2
    backbone.remove()
    with torch.no_grad(), Count() as count:
        backbone(View(images))
    assert count.calls == 4 and not any("forward" in vars(module) for module in model.modules())


def slow_windows(height: int, width: int, size: int, shift: int) -> list[list[int]]:
    """Cells of every window, by loops; -1 for padding."""
    down, right = -(-height // size), -(-width // size)
    windows = []
    for i, j in itertools.product(range(down), range(right)):
        window = []
        for a, b in itertools.product(range(size), range(size)):
            row, column = i * size + a, j * size + b  # in the rolled and padded grid
            inside = row < height and column < width
            window.append((row + shift) % height * width + (column + shift) % width if inside else -1)
        windows.append(window)
    return windows


@pytest.mark.parametrize(("height", "width"), [(8, 12), (6, 9)])
@pytest.mark.parametrize("shift", [0, 2])
def test_cells_of_windows(height: int, width: int, shift: int) -> None:
    cells = Windows((4, 4), (shift, shift)).cells(height, width)
    assert cells.tolist() == slow_windows(height, width, 4, shift)


def test_cells_of_strided_windows() -> None:
    cells = Windows((2, 3), strided=True).cells(4, 6)
    assert cells.tolist() == [
        [i * 6 + j + a * 12 + b * 2 for a in range(2) for b in range(3)] for i in range(2) for j in range(2)
    ]


@pytest.mark.parametrize("size", [(32, 64), (24, 40)])  # 8 x 16 cells, and 6 x 10, which windows of 4 do not fill
def test_windows_of_swin_are_where_they_should_be(size: tuple[int, int]) -> None:
    model, images = small_swin(size).eval(), torch.randn(2, 3, *size)
    expected = model(images)
    found = look(model, images)
    torch.testing.assert_close(found.logits, expected, rtol=1e-5, atol=1e-5)
    height, width = size[0] // 4, size[1] // 4
    for index, shift in ((0, 0), (1, 2)):
        attention = found.attention[index]
        windows = slow_windows(height, width, 4, shift)
        assert attention.shape.windows == len(windows) and attention.cells is not None
        assert attention.weights.shape == (2 * len(windows), 1, 16, 16)
        for g, window in enumerate(windows):
            for n, cell in enumerate(window):
                if cell >= 0:
                    assert attention.cells[g, n] == cell
                    assert attention.coords[0, g, n].tolist() == [cell // width, cell % width]
        masked = model.layers[0].blocks[index].attn_mask
        placed = torch.tensor(windows) >= 0
        visible = placed[:, :, None] & placed[:, None] & (torch.tensor(True) if masked is None else masked == 0)
        assert attention.visible is None if visible.all() else torch.equal(attention.visible, visible)


def test_shifted_windows_price_only_what_they_see() -> None:
    """Costs and mean distance of a Swin layer against loops over windows and pairs."""
    model, images = small_swin((32, 64)).eval(), torch.randn(1, 3, 32, 64)
    attention = look(model, images, (1,)).attention[1]
    reading = attention.read(lambda rows, far: linear_penalty(far), rows="plain")
    assert attention.visible is not None and attention.cells is not None
    cost, reach = 0.0, []
    for g in range(attention.shape.windows):
        cells = attention.cells[g].tolist()
        for i, first in enumerate(cells):
            seen = [j for j in range(16) if attention.visible[g, i, j]]
            far = {j: abs(first // 16 - cells[j] // 16) + abs(first % 16 - cells[j] % 16) for j in seen}
            weights = attention.weights[g, :, i].mean(0)
            cost += sum((far[j] + 0.1) / (max(far.values()) + 1) * weights[j].item() for j in seen)
            reach.append(sum(far[j] * weights[j].item() for j in seen) / sum(weights[j].item() for j in seen))
            assert max(far.values()) <= 6  # nobody looks across the border of the image
    assert reading.cost.item() == pytest.approx(cost, rel=1e-5)
    assert reading.distance.item() == pytest.approx(sum(reach) / len(reach), rel=1e-5)


def named(family: Family) -> str:
    return family.name


KNOWN = set(find_models(attention=True))
WITH_MAPS = [family for family in FAMILIES if family.name in KNOWN and family.name != "twins_svt_small"]  # too shallow


@pytest.mark.parametrize("family", WITH_MAPS, ids=named)
def test_every_known_kind_gives_maps_in_their_place(family: Family) -> None:
    size = family.sizes[-1]
    model: Any = family.make(size)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(images)
        found = look(model, images)
        torch.testing.assert_close(found.logits, expected, rtol=1e-5, atol=1e-5)
        assert found.attention
        for attention in found.attention.values():
            shape = attention.shape
            assert attention.weights.shape == (2 * shape.windows, shape.heads, *(shape.prefix + shape.tokens,) * 2)
            torch.testing.assert_close(attention.weights.sum(-1), torch.ones(()).expand_as(attention.weights[..., 0]))
        first = found.attention[0]
        changed = images.clone()
        changed[:, :, -size[0] // first.shape.height :, : size[1] // first.shape.width] += 3  # bottom left, one cell
        second = look(model, changed, (0,)).attention[0]
    difference = (second.patches - first.patches).abs().sum((0, 2))  # G, N, N
    moved = (difference.sum(1) + difference.sum(2)).argmax()
    place = first.coords[0].flatten(0, 1)[moved]
    assert (place - torch.tensor([first.shape.height - 1, 0])).abs().max() <= 1


def test_many_families_are_covered() -> None:
    assert len(attention_families()) >= 25
    assert {"vision_transformer", "swin_transformer", "eva", "beit", "cait", "arvit"} <= set(attention_families())
    assert "convformer_s18" not in KNOWN and "caformer_s18" in KNOWN and "resnet18" not in KNOWN


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet10t", "resnet10t has no attention map over its token grid .found: no attention at all."),
        ("xcit_nano_12_p16_224", "XCA attends over channels; ClassAttn with weights of 4x1x"),
    ],
)
def test_networks_without_maps_are_refused(name: str, words: str) -> None:
    backbone = vitlet.TimmBackbone(timm.create_model(name), img_size=64 if name[0] == "r" else None)
    with pytest.raises(VitletError, match=words):
        vitlet.Objective(backbone, [vitlet.Term(AttentionDistance())])


def test_a_layer_that_does_not_exist_is_refused() -> None:
    for layers, number in (("5", 5), ("-5", -5)):
        with pytest.raises(VitletError, match=f"no attention layer {number} in vit_tiny_patch16_224: it has 4"):
            vitlet.Objective(vitlet.TimmBackbone(small_vit()), [vitlet.Term(AttentionDistance(layers=layers))])


def test_a_model_known_by_a_layer_is_refused() -> None:
    backbone = vitlet.LayerBackbone(nn.Sequential(nn.Conv2d(3, 4, 8, 8)), layer="0", img_size=(32, 64))
    with pytest.raises(VitletError, match=r"has no attention maps.*vitlet\.TimmBackbone"):
        vitlet.Objective(backbone, [vitlet.Term(AttentionDistance())])


def objective(model: Any, **options: Any) -> vitlet.Objective:
    terms = [vitlet.Term(AttentionDistance(layers="2,3"), 0.5), vitlet.Term(vitlet.DRLoc(hidden=16), 0.1)]
    return vitlet.Objective(vitlet.TimmBackbone(model, **options), terms)


def test_gradients_reach_only_what_comes_before() -> None:
    model = small_vit()
    keys = list(model.state_dict())
    outcome = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(AttentionDistance(layers="2"))])(
        torch.randn(2, 3, 32, 64)
    )
    outcome.loss.backward()
    has = [block.attn.qkv.weight.grad is not None for block in model.blocks]
    assert has == [True, True, False, False] and list(model.state_dict()) == keys


@pytest.mark.parametrize("explicit_tokens", [784, 16])
def test_copies_have_taps_of_their_own(explicit_tokens: int) -> None:
    first = objective(small_vit(), explicit_tokens=explicit_tokens)
    second = copy.deepcopy(first)
    images = torch.randn(2, 3, 32, 64)
    with torch.no_grad():
        for parameter in second.backbone.model.parameters():
            parameter.mul_(1.5)
    torch.manual_seed(1)
    expected = first(images).parts["attention-distance"]
    changed = second(images).parts["attention-distance"]
    assert changed != expected and first(images).parts["attention-distance"] == expected


@pytest.mark.parametrize("explicit_tokens", [784, 16])
def test_gradient_checkpointing_gives_the_same_gradients(explicit_tokens: int) -> None:
    images = torch.randn(2, 3, 32, 64)
    model = small_vit()
    found = []
    for checkpointing in (False, True):
        one = copy.deepcopy(model)
        one.set_grad_checkpointing(checkpointing)
        torch.manual_seed(1)
        objective(one, explicit_tokens=explicit_tokens).train()(images, torch.tensor([0, 1])).loss.backward()
        found.append([parameter.grad for parameter in one.parameters()])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second)


def test_compiles_without_a_graph_break() -> None:
    whole = vitlet.Objective(vitlet.TimmBackbone(small_vit(depth=2)), [vitlet.Term(AttentionDistance())])
    images, labels = torch.randn(2, 3, 32, 64), torch.tensor([0, 1])
    compiled = torch.compile(whole, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images, labels).loss, whole(images, labels).loss)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # where dynamo breaks the graph
def test_compiles_without_a_map() -> None:
    whole = vitlet.Objective(
        vitlet.TimmBackbone(small_vit(depth=2), explicit_tokens=16), [vitlet.Term(AttentionDistance())]
    )
    images, labels = torch.randn(2, 3, 32, 64), torch.tensor([0, 1])
    compiled = torch.compile(whole, backend="eager")
    torch.testing.assert_close(compiled(images, labels).loss, whole(images, labels).loss)


def test_attention_dropout_is_not_in_the_map() -> None:
    model = small_vit(attn_drop_rate=0.5).train()
    attention = look(model, torch.randn(2, 3, 32, 64), (1,), explicit_tokens=16).attention[1]
    assert attention.maps is not None  # weights that are dropped cannot be priced without the map
    assert (attention.maps > 0).all()


def test_masks_and_shared_keys_are_followed() -> None:
    """Relative positions come as a mask; what the tap computes openly equals the fused call."""
    from vitlet.backbones.tap_attention import SdpaCall

    query, key, value = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    bias, allowed = torch.randn(1, 4, 6, 6), torch.rand(6, 6).add(torch.eye(6)) > 0.5
    for options in ({"attn_mask": bias}, {"attn_mask": allowed}, {"is_causal": True}, {"scale": 0.1}):
        out, weights = SdpaCall(query, key, value, enable_gqa=True, **options).openly()
        expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6))


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_who_sees_nobody_gets_nothing(kind: torch.dtype) -> None:
    from vitlet.backbones.tap_attention import SdpaCall

    query, key, value = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    allowed = torch.ones(6, 6, dtype=torch.bool)
    allowed[2] = False
    mask = allowed if kind == torch.bool else torch.zeros(6, 6).masked_fill(~allowed, -torch.inf)
    out, weights = SdpaCall(query, key, value, attn_mask=mask).openly()
    torch.testing.assert_close(out, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))
    assert not weights[:, :, 2].any()
    out.sum().backward()
    assert query.grad is not None and query.grad.isfinite().all()


def test_another_image_size_is_surveyed_anew() -> None:
    backbone = vitlet.TimmBackbone(small_vit(dynamic_img_size=True).eval(), img_size=(32, 64))
    for size in ((32, 64), (48, 32)):
        attention = backbone(View(torch.randn(1, 3, *size)), Needs(attention=(0,))).attention[0]
        assert (attention.shape.height, attention.shape.width) == (size[0] // 8, size[1] // 8)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_small_patch16_dinov3"])
@pytest.mark.parametrize("explicit_tokens", [784, 16])
def test_the_same_layers_at_every_size_and_for_every_backbone(name: str, explicit_tokens: int) -> None:
    model = small_vit(name, dynamic_img_size=True).eval()
    paths = [f"blocks.{index}.attn" for index in range(4)]
    for _ in range(2):
        backbone = vitlet.TimmBackbone(model, img_size=(32, 64), explicit_tokens=explicit_tokens)
        for size in ((32, 64), (64, 32), (48, 48)):
            found = backbone(View(torch.randn(2, 3, *size)), Needs(attention=(1,))).attention[1]
            assert [layer.path for layer in backbone._surveys[size].layers] == paths
            assert (found.shape.height, found.shape.width) == (size[0] // 8, size[1] // 8)
            assert found.weights.shape[-1] == size[0] * size[1] // 64 + found.shape.prefix
        assert list(backbone._taps) == [("blocks.1.attn", 0)]


def test_bfloat16_training_step() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, patch_size=2, depth=2, embed_dim=32, num_heads=2)
    terms = [vitlet.Term(AttentionDistance(), 0.1), vitlet.Term(AttentionSimilarity(preset="reference"), 0.01)]
    images = torch.randn(2, 3, 64, 64)
    objective = vitlet.Objective(vitlet.TimmBackbone(model), terms)  # 1,024 tokens: without a map
    exact = objective(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = objective(images)
    outcome.loss.backward()
    assert outcome.loss.dtype == torch.float32
    for name, part in outcome.parts.items():
        assert part.item() == pytest.approx(exact.parts[name].item(), rel=0.02)
    gradient = model.blocks[0].attn.qkv.weight.grad
    assert gradient is not None and gradient.isfinite().all() and gradient.abs().max() > 0
