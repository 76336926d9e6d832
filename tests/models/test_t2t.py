"""T2T-ViT: its numbers, its soft split and performer against loops, and weights under their released names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import vitlet
from vitlet.errors import VitletError
from vitlet.models.factory import build_model
from vitlet.models.soft_split import TokenPerformer, TokensToToken, TokenTransformer, performer_attention
from vitlet.models.t2t import T2TViT, checkpoint_filter_fn, sinusoid_positions
from vitlet.tasks.attention_distance import AttentionDistance

SMALL: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3, "token_dim": 16}


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("t2t_vit_14", 100, 21_199_050),
        ("t2t_vit_14", 1000, 21_545_550),
        ("t2t_vit_7", 1000, 4_310_222),  # publication: 4.3 M
        ("t2t_vit_12", 1000, 6_941_902),  # 6.9 M
        ("t2t_vit_19", 1000, 39_177_422),  # 39.2 M
        ("t2t_vit_24", 1000, 64_105_934),  # 64.1 M
        ("t2t_vit_t_14", 1000, 21_541_070),  # 21.5 M
        ("t2t_vit_t_19", 1000, 39_172_942),
        ("t2t_vit_t_24", 1000, 64_101_454),
    ],
)
def test_parameter_counts(name: str, classes: int, parameters: int) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.patch_embed.grid_size == (14, 14)


def slow_split(maps: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, int, int]:
    """Overlapping patches by loops: ``(B, N, C * kernel^2)``, channels outermost, and their rows and columns."""
    batch, channels, height, width = maps.shape
    rows = len(range(-padding, height + padding - kernel + 1, stride))
    columns = len(range(-padding, width + padding - kernel + 1, stride))
    out = torch.zeros(batch, rows * columns, channels * kernel**2)
    for row in range(rows):
        for column in range(columns):
            for c in range(channels):
                for i in range(kernel):
                    for j in range(kernel):
                        y, x = row * stride - padding + i, column * stride - padding + j
                        if 0 <= y < height and 0 <= x < width:
                            out[:, row * columns + column, c * kernel**2 + i * kernel + j] = maps[:, c, y, x]
    return out, rows, columns


def slow_performer(module: TokenPerformer, tokens: Tensor) -> Tensor:
    """One image ``(N, C)``, from the formula: weights of all pairs written down, then read."""
    made = module.kqv(module.norm1(tokens))
    width = made.shape[1] // 3
    keys, queries, values = made[:, :width], made[:, width : 2 * width], made[:, 2 * width :]

    def similar(query: Tensor, key: Tensor) -> Tensor:
        total = torch.zeros(())
        for direction in module.w:
            left = torch.exp(direction @ query - query @ query / 2) / math.sqrt(len(module.w))
            right = torch.exp(direction @ key - key @ key / 2) / math.sqrt(len(module.w))
            total = total + left * right
        return total

    rows = []
    for query, own in zip(queries, values, strict=True):
        weights = torch.stack([similar(query, key) for key in keys])
        read = sum(weight * value for weight, value in zip(weights, values, strict=True)) / (weights.sum() + 1e-8)
        token = own + module.proj(read)
        rows.append(token + module.mlp(module.norm2(token)))
    return torch.stack(rows)


def slow_transformer(module: TokenTransformer, tokens: Tensor) -> Tensor:
    queries, keys, values = module.attn.qkv(module.norm1(tokens)).chunk(3, dim=-1)
    weights = torch.softmax(queries @ keys.T / math.sqrt(tokens.shape[1]), dim=1)
    mixed = values + module.attn.proj(weights @ values)
    return mixed + module.mlp(module.norm2(mixed))


@pytest.mark.parametrize("mixer", ["performer", "transformer"])
@pytest.mark.parametrize("size", [(16, 16), (13, 22)])
@torch.no_grad()
def test_tokens_to_tokens_against_loops(mixer: Any, size: tuple[int, int]) -> None:
    embed = TokensToToken(size, in_chans=2, embed_dim=12, token_dim=4, mixer=mixer).eval()
    images = torch.randn(1, 2, *size)
    slow: Any = slow_performer if mixer == "performer" else slow_transformer
    maps = images
    for number, split in enumerate(embed.splits, start=1):
        tokens, rows, columns = slow_split(maps, *split)
        if number < 3:
            mixed = slow(embed.get_submodule(f"attention{number}"), tokens[0])
            maps = mixed.T.reshape(1, -1, rows, columns)
    assert embed.grid_size == (rows, columns)
    torch.testing.assert_close(embed(images), embed.project(tokens), rtol=1e-4, atol=1e-5)


def test_random_features_approximate_softmax_attention() -> None:
    torch.manual_seed(0)
    query, key, value = 0.5 * torch.randn(3, 1, 6, 8)
    directions = torch.randn(100_000, 8)
    expected = torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value
    torch.testing.assert_close(performer_attention(query, key, value, directions), expected, rtol=0, atol=0.05)


def test_directions_are_at_right_angles_and_fixed() -> None:
    mixer = TokenPerformer(27, 8, drop=0.1)
    torch.testing.assert_close(mixer.w @ mixer.w.T, 4 * torch.eye(4))  # length sqrt(m)
    assert not mixer.w.requires_grad and "w" in mixer.state_dict()
    before = mixer.w.clone()
    mixer.reset_parameters()
    assert not torch.equal(mixer.w, before)


def test_positions_are_sinusoids_and_fixed() -> None:
    table = sinusoid_positions(5, 6)[0]
    for place in range(5):
        for channel in range(6):
            angle = place / 10000 ** (2 * (channel // 2) / 6)
            assert table[place, channel].item() == pytest.approx(
                math.cos(angle) if channel % 2 else math.sin(angle), abs=1e-6
            )
    model = T2TViT(img_size=(32, 64), num_classes=2, **SMALL)
    torch.testing.assert_close(model.pos_embed, sinusoid_positions(9, 48))
    assert not model.pos_embed.requires_grad and "pos_embed" in model.state_dict()
    model.set_input_size((64, 64))
    assert model.pos_embed.shape == (1, 17, 48) and not model.pos_embed.requires_grad
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 2)


def released_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the released T2T-ViT-14."""
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, 384), "pos_embed": (1, 197, 384)}
    linear = {"tokens_to_token.project": (384, 576), "head": (1000, 384)}
    norms = {"norm": 384}
    for number, width in ((1, 147), (2, 576)):
        part = f"tokens_to_token.attention{number}"
        shapes[f"{part}.w"] = (32, 64)
        linear |= {f"{part}.kqv": (192, width)} | {f"{part}.{name}": (64, 64) for name in ("proj", "mlp.0", "mlp.2")}
        norms |= {f"{part}.norm1": width, f"{part}.norm2": 64}
    for index in range(14):
        block = f"blocks.{index}"
        shapes[f"{block}.attn.qkv.weight"] = (1152, 384)
        linear |= {f"{block}.attn.proj": (384, 384), f"{block}.mlp.fc1": (1152, 384), f"{block}.mlp.fc2": (384, 1152)}
        norms |= {f"{block}.norm1": 384, f"{block}.norm2": 384}
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name, width in norms.items():
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the released ones are: averaged weights under that name, from a distributed run."""
    generator = torch.Generator().manual_seed(5)
    weights = {
        f"module.{name}": 0.1 * torch.randn(shape, generator=generator) for name, shape in released_shapes().items()
    }
    path = tmp_path_factory.mktemp("released") / "t2t_vit_14.pth.tar"
    torch.save({"epoch": 300, "state_dict": {}, "state_dict_ema": weights}, path)
    return path


def test_released_names_and_shapes_load(released: Path) -> None:
    model, _ = build_model("t2t_vit_14", num_classes=1000, pretrained=released)
    weights = torch.load(released, weights_only=True)["state_dict_ema"]
    own = model.state_dict()
    assert len(own) == len(weights)
    for name, tensor in weights.items():
        ours = name.removeprefix("module.").replace("tokens_to_token", "patch_embed")
        assert torch.equal(own[ours], tensor)
    renamed = checkpoint_filter_fn(torch.load(released, weights_only=True), model)  # as it lies in the file
    assert renamed.keys() == own.keys()


def test_grey_images_are_seen_as_in_three_channels(released: Path) -> None:
    colour, _ = build_model("t2t_vit_14", num_classes=3, img_size=(32, 64), pretrained=released)
    grey, _ = build_model("t2t_vit_14", num_classes=3, img_size=(32, 64), in_chans=1, pretrained=released)
    assert colour.get_parameter("pos_embed").shape == (1, 9, 384)  # resampled from 14 x 14
    images = torch.randn(2, 1, 32, 64)
    with torch.no_grad():
        expected = colour.eval().patch_embed(images.expand(-1, 3, -1, -1))  # type: ignore[operator]
        torch.testing.assert_close(grey.eval().patch_embed(images), expected, rtol=1e-4, atol=1e-4)  # type: ignore[operator]


def test_any_size_if_asked_for() -> None:
    with pytest.raises(ValueError, match="images of 64x32 pixels, made for 32x32"):
        T2TViT(img_size=32, num_classes=2, **SMALL)(torch.randn(1, 3, 64, 32))
    model = T2TViT(img_size=32, num_classes=2, dynamic_img_size=True, **SMALL).eval()
    _, maps = model.forward_intermediates(torch.randn(1, 3, 64, 96))
    assert maps[-1].shape == (1, 48, 4, 6)
    view = vitlet.ShuffledPatches(16)
    terms = [vitlet.Term(vitlet.DRLoc(hidden=8)), vitlet.Term(vitlet.Position(), 1.0, view)]
    vitlet.Objective(vitlet.TimmBackbone(model, img_size=64), terms)(torch.randn(2, 3, 64, 64)).loss.backward()


@pytest.mark.parametrize("mixer", ["performer", "transformer"])
def test_attention_of_the_blocks_is_a_map_over_the_grid(mixer: str) -> None:
    model = T2TViT(img_size=(64, 96), num_classes=3, token_mixer=mixer, **SMALL).eval()  # type: ignore[arg-type]
    backbone = vitlet.TimmBackbone(model)
    objective = vitlet.Objective(backbone, [vitlet.Term(AttentionDistance(layers="all"))])
    shapes = backbone.shapes(AttentionDistance(layers="all").needs).attention
    assert [(one.height, one.width, one.prefix) for one in shapes] == [(4, 6, 1)] * 2
    objective(torch.randn(2, 3, 64, 96)).loss.backward()
    assert model.patch_embed.project.weight.grad is not None  # type: ignore[union-attr]


def test_prefix_tokens_come_on_request() -> None:
    model = T2TViT(img_size=32, num_classes=2, **SMALL).eval()
    ((grid, prefix),) = model.forward_intermediates(
        torch.randn(2, 3, 32, 32), indices=[0], return_prefix_tokens=True, intermediates_only=True
    )
    assert grid.shape == (2, 48, 2, 2) and prefix.shape == (2, 1, 48)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token_mixer": "conv"}, "the token mixer must be performer or transformer, got 'conv'"),
        ({"splits": [(9, 8, 0)] * 3}, "too small for the soft splits"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(VitletError, match=f"t2t_vit_14 cannot be built.*{words}"):
        build_model("t2t_vit_14", num_classes=2, model_kwargs={**SMALL, **options})


def test_half_precision_leaves_the_exponentials_alone() -> None:
    mixer = TokenPerformer(27, 8, drop=0.0)
    nn.init.normal_(mixer.kqv.weight, std=0.3)
    tokens = torch.randn(1, 40, 27)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = mixer(tokens)
    torch.testing.assert_close(coarse.float(), mixer(tokens), rtol=0.05, atol=0.05)
