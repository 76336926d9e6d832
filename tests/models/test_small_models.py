"""Networks for small images: their sizes, every grid task on each of them, and the list of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import vitlet
from builders import ROOT
from builders.digits import write_digits
from vitlet.cli import main
from vitlet.models import small_list
from vitlet.models.cct import CompactTransformer, ConvTokenizer, SequencePool
from vitlet.models.factory import build_model, find_models
from vitlet.models.small_list import SmallModel, measured_speeds, small_models, small_names
from vitlet.tasks.attention_distance import AttentionDistance

RESULTS = ROOT / "benchmarks" / "results" / "small_models.csv"
SIZED = ("resnet", "botnet", "hybrid", "convstem_vit")
PARAMETERS = {"xs": 0.5e6, "s": 1.4e6, "m": 5e6, "l": 11e6, "xl": 25e6}
SIDES = (32, 64, 96, 128, 224)
PLAIN = [
    name
    for name in small_names()
    if not name.startswith(tuple(f"{kind}_{size}_" for kind in SIZED for size in PARAMETERS))
]
GRID_TASKS = (vitlet.DRLoc, vitlet.SpatialRelations, vitlet.Distance, vitlet.Angle, vitlet.Position)


@pytest.fixture(scope="module")
def listed() -> dict[str, SmallModel]:
    return {model.name: model for model in small_models()}


def test_sizes_are_as_promised(listed: dict[str, SmallModel]) -> None:
    kinds = ("vit", "swin", "cvt", "t2t", "cct", "resnet")
    names = {f"{kind}_for_{side}px" for kind in kinds for side in (32, 64, 96)}
    sized = {f"{kind}_{size}_for_{side}px" for kind in SIZED for size in PARAMETERS for side in SIDES}
    assert set(listed) == names | sized
    assert all(1e6 <= listed[name].parameters <= 8e6 for name in names)
    for name in sized:
        kind, _, size = name.partition("_for_")[0].rpartition("_")
        assert listed[name].parameters == pytest.approx(PARAMETERS[size], rel=0.35)
        side = listed[name].grid[0]
        assert side in ((8, 12, 14) if kind == "convstem_vit" else (4, 6, 7))
    for model in listed.values():
        assert min(model.grid) >= 4
        assert model.name.endswith(f"_{model.img_size}px")
        assert model.use.endswith(".") and "\n" not in model.use
    assert listed["vit_for_32px"].parameters == pytest.approx(2.7e6, rel=0.01)
    assert listed["vit_for_32px"].grid == (8, 8)


@pytest.mark.parametrize("name", [*PLAIN, *(f"{kind}_s_for_64px" for kind in SIZED)])
def test_every_grid_task_builds_and_drloc_falls(name: str) -> None:
    torch.manual_seed(0)
    model, _ = build_model(name, num_classes=0)
    backbone = vitlet.TimmBackbone(model)
    for task in GRID_TASKS:
        vitlet.Objective(backbone, [vitlet.Term(task())])
    objective = vitlet.Objective(backbone, [vitlet.Term(vitlet.DRLoc(hidden=32, pairs=16))])
    optimizer = torch.optim.AdamW([one for one in objective.parameters() if one.requires_grad], lr=3e-4)
    images = torch.randn(2, 3, *backbone.img_size)
    losses = []
    for _ in range(4):
        torch.manual_seed(1)  # the same pairs, the same dropout
        loss = objective(images).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.parametrize("kind", ["vit", "swin", "cvt", "t2t", "cct", "botnet_s", "hybrid_s", "convstem_vit_s"])
def test_all_but_the_resnet_have_attention_maps(kind: str) -> None:
    name = f"{kind}_for_32px"
    assert name in find_models("*_for_*px", attention=True) and "resnet_for_32px" not in find_models(attention=True)
    model, _ = build_model(name, num_classes=3)
    outcome = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(AttentionDistance())])(
        torch.randn(1, 3, 32, 32)
    )
    outcome.loss.backward()


def test_speeds_in_the_package_are_the_measured_ones() -> None:
    packaged = Path(small_list.__file__).parent / small_list.SPEEDS
    assert packaged.read_text() == RESULTS.read_text()
    measured = {*PLAIN, *(f"{kind}_s_for_{side}px" for kind in SIZED for side in SIDES)}
    assert measured <= set(measured_speeds()) <= set(small_names())


def test_a_network_without_a_speed_is_listed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(small_list, "small_names", lambda: ["vit_for_32px", "resnet_for_32px"])
    assert main(["models", "--small"]) == 0
    printed = capsys.readouterr().out
    assert "vit_for_32px" in printed and "8 x 8" in printed and "not measured" not in printed
    monkeypatch.setattr(small_list, "SPEEDS", "absent.csv")
    assert main(["models", "--small"]) == 0
    assert "not measured" in capsys.readouterr().out
    assert main(["models", "vit*", "--small"]) == 2
    assert "leave PATTERN and --attention out" in capsys.readouterr().err


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from vitlet.cli import main\n"
        "try: main(['models', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'timm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--small" in done.stdout


def test_training_needs_nothing_but_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = write_digits(tmp_path / "data", size=32), tmp_path / "run"
    words = ["--model", "cvt_for_32px", "--epochs", "1", "-b", "8", "-j", "0", "--device", "cpu", "--task", "drloc=0.5"]
    assert main(["train", str(data), *words, "--output", str(run)]) == 0
    model = timm.create_model(f"local-dir:{run}/best", pretrained=True)
    assert model.img_size == (32, 32) and model.num_classes == 3
    assert not any("drloc" in name for name in model.state_dict())


def test_pool_of_the_compact_transformer() -> None:
    pool, tokens = SequencePool(6), torch.randn(2, 5, 6)
    for image, pooled in zip(tokens, pool(tokens), strict=True):
        scores = [torch.exp(pool.score(token)) for token in image]
        expected = sum(score * token for score, token in zip(scores, image, strict=True)) / sum(scores)
        torch.testing.assert_close(pooled, expected)


@pytest.mark.parametrize("size", [(32, 32), (30, 21)])
def test_convolutional_tokens_lie_where_they_should(size: tuple[int, int]) -> None:
    tokenizer = ConvTokenizer(size, embed_dim=8, layers=2)
    tokens = tokenizer(torch.randn(1, 3, *size))
    assert tokens.shape == (1, tokenizer.num_patches, 8)
    with pytest.raises(ValueError, match="made for"):
        tokenizer(torch.randn(1, 3, 8, 8))


def test_compact_transformer_pools_otherwise_too() -> None:
    options = {"embed_dim": 24, "depth": 1, "num_heads": 2, "num_classes": 3}
    model = CompactTransformer(dynamic_img_size=True, **options).eval()
    assert isinstance(model.attn_pool, SequencePool)
    assert model(torch.randn(1, 3, 48, 40)).shape == (1, 3)
    model.reset_classifier(3, "avg")
    assert model.attn_pool is None and model(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    average = CompactTransformer(global_pool="avg", **options)
    assert average.attn_pool is None and isinstance(average.fc_norm, nn.LayerNorm)
