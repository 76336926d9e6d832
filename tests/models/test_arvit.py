"""ARViT as a timm model, in the published and the released form; rotation as a view and a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from sklearn.datasets import load_digits
from timm.models import load_state_dict
from torch import Tensor, nn

import vitlet
import vitlet.models
from vitlet.errors import VitletError
from vitlet.models.arvit import ARViT
from vitlet.models.factory import build_model, describe_for_timm, load_exported
from vitlet.tasks.rotation import Rotation, quarter_turns
from vitlet.tokens.features import Needs
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.patch_views import ShuffledPatches
from vitlet.tokens.rotated import Rotated, RotatedView
from vitlet.tokens.views import Chain, View

NAMES = (
    "arvit_patch16_256",
    "arvit_reference_patch16_256",
    "arvit_gram_reference_patch16_256",
    "vit_tiny_d6_patch16_256",
)
SMALL: dict[str, Any] = {"embed_dim": 24, "num_heads": 2, "patch_size": 8}


@pytest.mark.parametrize(
    ("name", "parameters", "width", "heads"),
    [
        (NAMES[0], 8_940_736, 516, 12),
        (NAMES[1], 8_930_920, 516, 12),
        (NAMES[2], 8_812_548, 512, 8),
        (NAMES[3], 2_867_524, 192, 12),
    ],
)
def test_sizes(name: str, parameters: int, width: int, heads: int) -> None:
    """With the four classes of rotation at 256 px; the second and the third number are the release's."""
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=4)
        assert sum(parameter.numel() for parameter in model.parameters()) == parameters
        assert model.embed_dim == width and len(model.blocks) == 6 and model.blocks[0].attn.num_heads == heads
        assert model(torch.empty(2, 3, 256, 256)).shape == (2, 4)


def test_published_and_released_form_differ() -> None:
    with torch.device("meta"):
        paper, release = (timm.create_model(name, num_classes=4) for name in NAMES[:2])
    assert [type(layer) for layer in paper.blocks[0].mlp] == [nn.Linear, nn.Dropout]
    assert [layer.out_features for layer in release.blocks[0].mlp if isinstance(layer, nn.Linear)] == [256, 516]
    assert (paper.positions, release.positions) == ("input", "every_block")
    assert isinstance(paper.norm, nn.Identity) and isinstance(release.norm, nn.LayerNorm)
    assert (paper.blocks[0].attn.attn_drop.p, release.blocks[0].attn.attn_drop.p) == (0.0, 0.1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_obeys_timms_contract(name: str, size: tuple[int, int]) -> None:
    model = timm.create_model(name, img_size=size, in_chans=1, num_classes=5, **SMALL).eval()
    images = torch.randn(2, 1, *size)
    height, width = size[0] // 8, size[1] // 8
    final, maps = model.forward_intermediates(images)
    assert [tuple(one.shape) for one in maps] == [(2, 24, height, width)] * 6
    torch.testing.assert_close(model.forward_head(final), model(images))
    torch.testing.assert_close(model.forward_features(images), final)
    assert model.forward_head(final, pre_logits=True).shape[0] == 2
    one = model.forward_intermediates(images, indices=[1], stop_early=True, intermediates_only=True, output_fmt="NLC")
    torch.testing.assert_close(one[0].transpose(1, 2).view_as(maps[1]), maps[1])
    assert len(model.feature_info) == 6 and model.pretrained_cfg["architecture"] == name
    assert isinstance(model.no_weight_decay(), set) and "blocks" in model.group_matcher()
    model.reset_classifier(3)
    assert model(images).shape == (2, 3) and model.get_classifier().out_features == 3
    model.prune_intermediate_layers([2])
    assert len(model.blocks) == 3


def test_features_only_and_checkpointing() -> None:
    features = timm.create_model(NAMES[0], features_only=True, img_size=32, out_indices=(0, -1), **SMALL)
    assert [tuple(one.shape) for one in features(torch.randn(1, 3, 32, 32))] == [(1, 24, 4, 4)] * 2
    model = timm.create_model(NAMES[1], img_size=32, num_classes=5, proj_drop_rate=0.0, attn_drop_rate=0.0, **SMALL)
    images = torch.randn(2, 3, 32, 32)
    grads = []
    for enable in (False, True):
        model.zero_grad()
        model.set_grad_checkpointing(enable)
        model(images).square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second)


def test_the_head_reads_every_token_in_its_place() -> None:
    model = timm.create_model(NAMES[0], img_size=(16, 24), num_classes=3, **SMALL)
    tokens = torch.randn(2, 6, 24)
    weight, bias = model.head.weight, model.head.bias
    expected = sum(tokens[:, n] @ weight[:, 24 * n : 24 * (n + 1)].T for n in range(6)) + bias
    torch.testing.assert_close(model.forward_head(tokens), expected)
    model.reset_classifier(3, "avg")
    torch.testing.assert_close(model.forward_head(tokens), model.head(tokens.mean(1)))
    with pytest.raises(ValueError, match=r"global_pool must be one of .*got 'max'"):
        model.reset_classifier(3, "max")


def test_positions_are_fixed_sinusoids_of_row_and_column() -> None:
    model = ARViT(img_size=(16, 24), num_classes=2, positions="every_block", position_scale=0.3, **SMALL)
    table = model.get_buffer("pos_embed").view(2, 3, 24)
    assert "pos_embed" not in dict(model.named_parameters()) and table.abs().max() <= 0.3 + 1e-6
    one_axis = [(table[0, 0] - table[0, 1]) != 0, (table[0, 0] - table[1, 0]) != 0]
    assert not (one_axis[0] & one_axis[1]).any() and one_axis[0].any() and one_axis[1].any()
    block = model.blocks[0]
    tokens = torch.randn(1, 6, 24)
    positions = model.get_buffer("pos_embed")
    attended = block.norm1(tokens + block.attn(tokens + positions))
    torch.testing.assert_close(block(tokens, positions), block.norm2(attended + block.mlp(attended)))


def test_a_width_that_cannot_be_is_refused() -> None:
    with pytest.raises(VitletError, match=r"arvit_patch16_256 cannot be built.*embed_dim 30"):
        build_model(NAMES[0], num_classes=2, model_kwargs={"embed_dim": 30})


def test_exports_as_any_timm_model(tmp_path: Path) -> None:
    model, arguments = build_model(NAMES[1], num_classes=3, img_size=(24, 40), model_kwargs=SMALL)
    statistics: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
    text = describe_for_timm(model, arguments, img_size=(24, 40), classes=["a", "b", "c"], **statistics)
    (tmp_path / "config.json").write_text(text)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert load_state_dict(str(tmp_path / "pytorch_model.bin")).keys() == model.state_dict().keys()
    images = torch.randn(1, 3, 24, 40)
    torch.testing.assert_close(load_exported(tmp_path).eval()(images), model.eval()(images))


def test_both_prices_on_arvit() -> None:
    model = timm.create_model(NAMES[0], img_size=(32, 48), num_classes=4, **SMALL)
    tasks = [vitlet.AttentionDistance(layers="3"), vitlet.AttentionSimilarity(layers="5")]
    outcome = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(task, 0.1) for task in tasks])(
        torch.randn(2, 3, 32, 48), torch.tensor([0, 3])
    )
    outcome.loss.backward()
    assert outcome.metrics["attention-distance/layer3_uniform"] == pytest.approx((4 - 1 / 4 + 6 - 1 / 6) / 3)
    assert all(parameter.grad is not None for parameter in model.parameters())


def turned_by_hand(image: Tensor, turns: int) -> Tensor:
    """Quarters counter-clockwise: what was at the right is at the top."""
    for _ in range(turns):
        side = image.shape[-1]
        new = torch.empty_like(image)
        for row in range(side):
            for column in range(side):
                new[:, row, column] = image[:, column, side - 1 - row]
        image = new
    return image


def test_pixels_and_coordinates_turn_together() -> None:
    images = torch.randn(16, 3, 8, 8)
    view = Rotated()(images)
    assert isinstance(view, RotatedView) and set(view.turns.tolist()) == {0, 1, 2, 3}
    coords = view.coords(4, 4)
    for image, turned, turns, places in zip(images, view.images, view.turns.tolist(), coords, strict=True):
        assert torch.equal(turned, turned_by_hand(image, turns))
        rows, columns = places.long().unbind(-1)
        cells = image.unfold(1, 2, 2).unfold(2, 2, 2).mean((-1, -2))  # C, 4, 4
        now = turned.unfold(1, 2, 2).unfold(2, 2, 2).mean((-1, -2)).flatten(1)
        torch.testing.assert_close(now, cells[:, rows, columns])
    assert torch.equal(quarter_turns(coords, 4), view.turns)


def test_a_turn_after_a_shuffle_knows_where_patches_were() -> None:
    images = grid_coords(4, 4).view(1, 4, 4, 2).permute(0, 3, 1, 2).repeat(8, 1, 1, 1)  # pixels that say where they are
    view = Chain((ShuffledPatches(1), Rotated()))(images)
    torch.testing.assert_close(view.coords(4, 4), view.images.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("options", [{}, {"head": "tokens"}, {"tap": "after_norm"}])
def test_rotation_is_learned_on_real_scans(options: dict[str, Any]) -> None:
    digits = load_digits()
    scans = torch.tensor(digits.images[digits.target == 4] / 8 - 1, dtype=torch.float32)[:, None]  # 181 fours
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, embed_dim=32, depth=2, num_heads=2
    )
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(Rotation(**options), 1.0, Rotated())])
    optimizer = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    accuracies = []
    for _ in range(60):
        outcome = objective(scans[torch.randint(181, (64,))])
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
        accuracies.append(float(outcome.metrics["rotation/accuracy"]))
    learned = sum(accuracies[-10:]) / 10
    assert learned > 60
    assert Rotation().verdict({"accuracy": learned}) is None
    assert "26 % right where guessing gives 25 %" in (Rotation().verdict({"accuracy": 26.0}) or "")


def test_rotation_shares_its_forward_with_a_price_on_attention() -> None:
    model = timm.create_model(NAMES[0], img_size=32, num_classes=4, **SMALL)
    terms = [
        vitlet.Term(Rotation(head="tokens"), 1.0, Rotated()),
        vitlet.Term(vitlet.AttentionDistance(), 0.1, Rotated()),
    ]
    calls: list[Any] = []
    model.patch_embed.register_forward_hook(lambda module, given, output: calls.append(len(output)))
    objective = vitlet.Objective(vitlet.TimmBackbone(model), terms)
    calls.clear()
    objective(torch.randn(3, 3, 32, 32)).loss.backward()
    assert calls == [3]


def test_rotation_refuses_what_cannot_be_turned() -> None:
    wide = timm.create_model(NAMES[0], img_size=(16, 24), num_classes=4, **SMALL)
    with pytest.raises(VitletError, match="needs square images"):
        vitlet.Objective(vitlet.TimmBackbone(wide), [vitlet.Term(Rotation(), 1.0, Rotated())])
    square = timm.create_model(NAMES[0], img_size=16, num_classes=4, **SMALL)
    plain = vitlet.Objective(vitlet.TimmBackbone(square), [vitlet.Term(Rotation())])
    with pytest.raises(VitletError, match=r"found a view that turns none.*vitlet\.Rotated"):
        plain(torch.randn(2, 3, 16, 16))
    with pytest.raises(VitletError, match="square token grid, found 2x3"):
        Rotated()(torch.randn(2, 3, 8, 8)).coords(2, 3)
    assert vitlet.TimmBackbone(square)(View(torch.randn(1, 3, 16, 16)), Needs(after_norm=True)).after_norm is not None
