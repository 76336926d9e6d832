"""Models for few images: images of any size, convolutions without copies, and mimetic initialisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

import vitlet
from vitlet.models import grid_vit
from vitlet.models.attention_resnet import GridMixing
from vitlet.models.factory import build_model
from vitlet.models.grid_vit import DepthwiseMlp, GridAttention, GridBlock, TokenLinear
from vitlet.models.initialise import load_weights, switch_positions_off
from vitlet.models.mimetic import mimetic_init
from vitlet.tasks.attention_distance import AttentionDistance
from vitlet.tokens.features import Needs
from vitlet.tokens.views import View

TRANSFORMERS = ("hybrid_xs", "convstem_vit_xs")
kinds = pytest.mark.parametrize("kind", ["resnet_xs", "botnet_xs", *TRANSFORMERS])
transformers = pytest.mark.parametrize("kind", TRANSFORMERS)


def make(name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    return timm.create_model(name, **more).eval()


@kinds
@pytest.mark.parametrize("size", [(48, 48), (64, 64), (56, 96)])
def test_any_image_size_without_building_anew(kind: str, size: tuple[int, int]) -> None:
    model, images = make(f"{kind}_for_64px"), torch.randn(2, 3, *size)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with torch.no_grad():
        final, maps = model.forward_intermediates(images)
        assert model(images).shape == (2, 10)
        torch.testing.assert_close(model.forward_head(final), model(images))
    stride = model.feature_info[-1]["reduction"]
    assert tuple(maps[-1].shape[2:]) == tuple(-(-side // stride) for side in size)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@transformers
def test_positions_are_those_learned_or_interpolated(kind: str) -> None:
    model = make(f"{kind}_for_64px")
    seen: list[Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model.patch_embed.register_forward_hook(lambda module, given, out: torch.zeros_like(out))
    with torch.no_grad():
        for size in ((64, 64), (48, 80)):
            model(torch.zeros(1, 3, *size))
        torch.testing.assert_close(seen[0].flatten(1, 2), model.pos_embed, rtol=0, atol=0)
        rows = model.patch_embed.grid_size[0]  # of 64 pixels
        grid = [48 * rows // 64, 80 * rows // 64]
        torch.testing.assert_close(seen[1].flatten(1, 2), resample_abs_pos_embed(model.pos_embed, grid, [rows] * 2, 0))
    model.train()(torch.randn(2, 3, 48, 48)).sum().backward()  # learned at every size
    assert model.pos_embed.grad.abs().min() > 0


@transformers
def test_weights_start_a_model_for_other_images(kind: str, tmp_path: Path) -> None:
    source, model = make(f"{kind}_for_64px"), make(f"{kind}_for_96px", in_chans=1)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    report = load_weights(model, tmp_path / "weights.pth")
    assert report.resampled == ("pos_embed",) and report.adapted == ("patch_embed.layers.0.weight",)
    grid = list(model.patch_embed.grid_size)
    torch.testing.assert_close(model.pos_embed.data, resample_abs_pos_embed(source.pos_embed.data, grid, None, 0))


@transformers
@pytest.mark.parametrize("size", [(64, 64), (48, 64)])
def test_attention_maps_at_every_size(kind: str, size: tuple[int, int]) -> None:
    model, _ = build_model(f"{kind}_for_64px", num_classes=3)
    backbone = vitlet.TimmBackbone(model)
    features = backbone(View(torch.randn(2, 3, *size)), Needs(attention="all"))
    assert len(features.attention) == len(model.blocks)  # type: ignore[arg-type]
    tokens = size[0] * size[1] // model.patch_embed.patch_size[0] ** 2  # type: ignore[operator, union-attr, index]
    for seen in features.attention.values():
        assert seen.maps is not None and seen.maps.shape[-2:] == (tokens, tokens)
        torch.testing.assert_close(seen.maps.sum(-1), torch.ones(seen.maps.shape[:-1]))
    outcome = vitlet.Objective(backbone, [vitlet.Term(AttentionDistance())])(torch.randn(2, 3, 64, 64))
    outcome.loss.backward()
    assert model.get_parameter("blocks.0.attn.qkv.weight").grad.abs().max() > 0  # type: ignore[union-attr]


def test_attention_takes_the_place_of_the_last_convolution() -> None:
    model = make("botnet_l_for_64px")
    mixing = [name for name, one in model.named_modules() if isinstance(one, GridMixing)]
    assert mixing == ["layer4.0.conv2", "layer4.1.conv2"]
    assert model.no_weight_decay() == {f"{name}.pos_embed" for name in mixing}
    layer, maps = GridMixing(32).eval(), torch.randn(2, 32, 3, 5)
    with torch.no_grad():
        places = torch.nn.functional.interpolate(layer.pos_embed, (3, 5), mode="bicubic", antialias=True)
        tokens = torch.stack([(maps + places)[:, :, row, column] for row in range(3) for column in range(5)], 1)
        mixed, found = layer.attn(tokens), layer(maps)
        for row in range(3):
            for column in range(5):
                torch.testing.assert_close(found[:, :, row, column], mixed[:, 5 * row + column])
        exact = layer(torch.zeros(1, 32, 4, 4))
        torch.testing.assert_close(exact.flatten(2).mT, layer.attn(layer.pos_embed.flatten(2).mT))
    assert not model.layer4[0].bn2.weight.any()  # a block starts as its shortcut


def test_botnet_attends_and_has_positions() -> None:
    model, _ = build_model("botnet_xs_for_64px", num_classes=3)
    backbone = vitlet.TimmBackbone(model)
    features = backbone(View(torch.randn(2, 3, 48, 64)), Needs(attention="all"))
    (seen,) = features.attention.values()
    assert seen.maps is not None and seen.maps.shape[-2:] == (12, 12)
    assert switch_positions_off(model) == "positional embedding off: layer4.0.conv2.pos_embed"


def test_mlp_convolves_over_the_grid() -> None:
    torch.manual_seed(0)
    mlp, tokens = DepthwiseMlp(4, 6, act_layer=nn.ReLU).eval(), torch.randn(1, 3, 5, 4)
    hidden, out = mlp.fc1(tokens)[0], mlp(tokens)
    for row in range(3):
        for column in range(5):
            mixed = mlp.conv.bias.clone()
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    if 0 <= row + down < 3 and 0 <= column + right < 5:
                        mixed = mixed + mlp.conv.weight[:, 0, down + 1, right + 1] * hidden[row + down, column + right]
            torch.testing.assert_close(out[0, row, column], mlp.fc2(mixed.relu()))


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 15, 8), (2, 8)])
def test_linear_layer_as_a_convolution(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, tokens = TokenLinear(8, 6), torch.randn(shape, requires_grad=True)
    convolved: list[int] = []
    convolve = grid_vit.F.conv2d
    monkeypatch.setattr(grid_vit.F, "conv2d", lambda *given: convolved.append(1) or convolve(*given))  # type: ignore[func-returns-value]
    found = torch.autograd.grad(layer(tokens).square().sum(), (tokens, layer.weight, layer.bias))
    expected = torch.autograd.grad(
        (tokens @ layer.weight.T + layer.bias).square().sum(), (tokens, layer.weight, layer.bias)
    )
    torch.testing.assert_close(found, expected)
    assert len(convolved) == (len(shape) > 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(tokens).dtype is torch.bfloat16
    assert len(convolved) == (len(shape) > 2)  # in bfloat16 the product is as fast


def test_plain_products_are_the_fused_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, tokens = GridAttention(32, 4, qk_norm=True, norm_layer=nn.LayerNorm), torch.randn(2, 9, 32)
    plain = attention(tokens)
    monkeypatch.setattr(grid_vit, "MOST_UNFUSED", 0)
    torch.testing.assert_close(attention(tokens), plain)


@kinds
def test_channels_last_all_the_way(kind: str) -> None:
    model = make(f"{kind}_for_64px").to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 64, 64)
    plain = make(f"{kind}_for_64px")(images)
    copied = []

    def look(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        if isinstance(module, nn.Conv2d) and not given[0].is_contiguous(memory_format=torch.channels_last):
            copied.append(module)
        if isinstance(module, GridBlock) and not out.is_contiguous():
            copied.append(module)

    for module in model.modules():
        module.register_forward_hook(look)
    torch.testing.assert_close(model(images.to(memory_format=torch.channels_last)), plain, rtol=1e-4, atol=1e-5)
    assert not copied


def _diagonal(product: Tensor) -> float:
    """Mean of the diagonal over the root mean square of the rest."""
    rest = product[~torch.eye(len(product), dtype=torch.bool)]
    return float(product.diagonal().mean() / rest.square().mean().sqrt())


def _products(attention: GridAttention) -> tuple[list[float], float]:
    query, key, value = attention.qkv.weight.data.chunk(3)
    heads = zip(query.chunk(attention.num_heads), key.chunk(attention.num_heads), strict=True)
    return [_diagonal(one.T @ other) for one, other in heads], _diagonal(value.T @ attention.proj.weight.data.T)


@transformers
def test_mimetic_products_are_near_the_identity(kind: str) -> None:
    torch.manual_seed(0)
    plain, mimetic = (timm.create_model(f"{kind}_for_64px", mimetic=chosen) for chosen in (False, True))
    for random, close in zip(plain.blocks, mimetic.blocks, strict=True):
        (usual, usual_value), (found, value) = _products(random.attn), _products(close.attn)
        assert max(map(abs, usual)) < 1 and abs(usual_value) < 1
        assert min(found) > 5 and value < -5
        assert not close.attn.qkv.bias.any() and not close.attn.proj.bias.any()
    assert torch.isfinite(mimetic(torch.randn(2, 3, 64, 64))).all()


def test_mimetic_value_product_is_the_one_drawn() -> None:
    """With one head nothing is cut off: both products are exactly noise plus identity."""
    torch.manual_seed(0)
    attention = GridAttention(64, 1, qkv_bias=True)
    mimetic_init(attention)
    query, key, value = attention.qkv.weight.data.chunk(3)
    torch.manual_seed(0)
    GridAttention(64, 1, qkv_bias=True)  # draws as many numbers
    noise = [torch.randn(64, 64) / 8 for _ in range(2)]
    torch.testing.assert_close(query.T @ key, 0.7 * noise[0] + 0.7 * torch.eye(64), rtol=1e-4, atol=1e-5)
    product = value.T @ attention.proj.weight.data.T
    torch.testing.assert_close(product, 0.4 * noise[1] - 0.4 * torch.eye(64), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", [{"class_token": True}, {"reg_tokens": 2}, {"patch_drop_rate": 0.5}])
def test_tokens_without_a_place_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(vitlet.VitletError, match=rf"{next(iter(option))} is .*leave it out"):
        build_model("hybrid_xs_for_32px", num_classes=3, model_kwargs=option)


@kinds
def test_exports_and_stays_the_same(kind: str) -> None:
    model, images = make(f"{kind}_for_32px"), torch.randn(2, 3, 32, 32)
    program = torch.export.export(model, (images,), strict=False)
    kernels = [
        tuple(node.args[1].meta["val"].shape[2:]) for node in program.graph.nodes if "conv2d" in str(node.target)
    ]
    assert kernels.count((1, 1)) == (0 if kind == "convstem_vit_xs" else 3)  # shortcuts alone
    exported = program.module()
    with torch.no_grad():
        torch.testing.assert_close(exported(images), model(images))
