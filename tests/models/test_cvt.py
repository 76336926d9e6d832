"""CvT: the numbers of its publication, the outputs of transformers' CvT, and what its attention can be asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CvtConfig, CvtForImageClassification, CvtModel

import vitlet
from vitlet.errors import VitletError
from vitlet.models.cvt import CvT, checkpoint_filter_fn
from vitlet.models.cvt_layers import OutsideEpsilonNorm, SharedConvAttention
from vitlet.models.factory import build_model
from vitlet.tasks.attention_distance import AttentionDistance

SMALL: dict[str, Any] = {"embed_dims": (16, 32, 48), "depths": (1, 2, 3), "num_heads": (1, 2, 3)}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("cvt_13", {}, 19_997_480),
        ("cvt_21", {}, 31_622_696),
        ("cvt_13", {"num_classes": 100, "class_token": False}, 19_650_596),
        ("cvt_13_lucidrains", {"num_classes": 100}, 19_589_796),  # as run by the authors of DRLoc
        ("cvt_13_lucidrains", {}, 19_936_296),
    ],
)
def test_parameter_counts(name: str, options: dict[str, Any], parameters: int) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, **options)
        final, maps = model.forward_intermediates(torch.empty(1, 3, 224, 224))
    assert count(model) == parameters
    assert [tuple(one.shape[1:]) for one in maps] == [(64, 56, 56), (192, 28, 28), (384, 14, 14)]
    assert final.shape[1] == 14 * 14 + model.num_prefix_tokens


def theirs(config: CvtConfig, kind: type[nn.Module] = CvtForImageClassification) -> Any:
    """A model of transformers, with batch norms that have seen something."""
    torch.manual_seed(0)
    model = kind(config).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.02)
    return model


@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
@pytest.mark.parametrize("class_token", [True, False])
def test_outputs_equal_those_of_transformers(class_token: bool, size: tuple[int, int]) -> None:
    config = CvtConfig(
        embed_dim=[16, 32, 48],
        depth=[1, 2, 3],
        num_heads=[1, 2, 3],
        num_labels=7,
        cls_token=[False, False, class_token],
    )
    reference, images = theirs(config), torch.randn(2, 3, *size)
    model = CvT(num_classes=7, class_token=class_token, **SMALL).eval()
    model.load_state_dict(checkpoint_filter_fn(reference.state_dict(), model))
    with torch.no_grad():
        expected = reference(images, output_hidden_states=True)
        _, maps = model.forward_intermediates(images)
        torch.testing.assert_close(model(images), expected.logits, rtol=0, atol=1e-5)
    for ours, other in zip(maps, expected.hidden_states, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5)


def test_the_whole_cvt_13_from_a_file_with_another_head(tmp_path: Path) -> None:
    reference = theirs(CvtConfig(depth=[1, 2, 10], num_labels=1000))
    save_file(reference.state_dict(), tmp_path / "model.safetensors")
    model, _ = build_model("cvt_13", num_classes=1000, pretrained=tmp_path / "model.safetensors")
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        difference = (model.eval()(images) - reference(images).logits).abs().max()
    assert difference < 1e-5
    grey, _ = build_model("cvt_13", num_classes=4, in_chans=1, pretrained=tmp_path / "model.safetensors")
    whole, first = grey.state_dict(), model.state_dict()["stages.0.patch_embed.proj.weight"]
    torch.testing.assert_close(whole["stages.0.patch_embed.proj.weight"], first.sum(1, keepdim=True))
    assert whole["head.weight"].shape == (4, 384)


def test_the_bare_network_of_transformers_maps_too() -> None:
    reference = theirs(CvtConfig(embed_dim=[16, 32, 48], depth=[1, 2, 3], num_heads=[1, 2, 3]), CvtModel)
    model = CvT(num_classes=0, **SMALL).eval()
    missing, unexpected = model.load_state_dict(checkpoint_filter_fn(reference.state_dict(), model), strict=False)
    assert missing == ["norm.weight", "norm.bias"] and not unexpected


def test_names_of_the_original_code() -> None:
    model = CvT(num_classes=3, **SMALL)
    original = {re.sub(r"^stages\.(\d)\.", r"stage\1.", name): one for name, one in model.state_dict().items()}
    assert {"stage0.patch_embed.proj.weight", "stage2.cls_token", "stage1.blocks.1.attn.conv_proj_k.bn.bias"} <= set(
        original
    )
    CvT(num_classes=3, **SMALL).load_state_dict(checkpoint_filter_fn({"state_dict": original}, model))


def test_the_activation_is_a_choice() -> None:
    quick = CvT(num_classes=3, act_layer="quick_gelu", **SMALL)
    value = torch.tensor(0.7)
    torch.testing.assert_close(quick.stages[0].blocks[0].mlp.act(value), value * torch.sigmoid(1.702 * value))  # type: ignore[union-attr, index]


def test_strided_keys_are_refused_for_tasks_on_attention() -> None:
    backbone = vitlet.TimmBackbone(timm.create_model("cvt_13", img_size=64, **SMALL))
    assert backbone.img_size == (64, 64)
    words = r"cvt_13 has no attention map over its token grid .found: ConvAttention with weights of 1x256x64 .*drloc"
    with pytest.raises(VitletError, match=words):
        vitlet.Objective(backbone, [vitlet.Term(AttentionDistance())])


def test_keys_of_every_token_give_maps() -> None:
    model, images = CvT(img_size=64, num_classes=3, kv_stride=1, **SMALL).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(images)
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(AttentionDistance(layers="all"))])
    outcome = objective(images)
    torch.testing.assert_close(outcome.logits, expected, rtol=1e-5, atol=1e-5)
    shapes = objective.backbone.shapes(AttentionDistance(layers="all").needs).attention
    assert [(one.height, one.width, one.prefix) for one in shapes] == [(16, 16, 0)] + [(8, 8, 0)] * 2 + [(4, 4, 1)] * 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"embed_dims": (16, 32, 50)}, "a width of 50 is not divisible by its 3 heads"),
        ({"global_pool": "token", "class_token": False}, "global_pool must be one of .*got 'token'"),
        ({"global_pool": "max"}, "global_pool must be one of .*got 'max'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(VitletError, match=f"cvt_13 cannot be built.*{words}"):
        build_model("cvt_13", num_classes=2, model_kwargs={**SMALL, **options})


def test_class_token_or_mean() -> None:
    tokens: Tensor = torch.randn(2, 17, 48)
    model = CvT(num_classes=3, **SMALL).eval()
    torch.testing.assert_close(model.forward_head(tokens), model.head(tokens[:, 0]))
    model.reset_classifier(3, "avg")
    torch.testing.assert_close(model.forward_head(tokens), model.head(tokens[:, 1:].mean(1)))


OUR_NAMES = (
    (r"^layers\.(\d)\.0\.", r"stages.\1.patch_embed.proj."),
    (r"^layers\.(\d)\.1\.", r"stages.\1.patch_embed.norm."),
    (r"^layers\.(\d)\.2\.layers\.", r"stages.\1.blocks."),
    (r"\.0\.norm\.", ".norm1."),
    (r"\.0\.to_(q|kv)\.net\.0\.", r".attn.conv_proj_\1.conv."),
    (r"\.0\.to_(q|kv)\.net\.1\.", r".attn.conv_proj_\1.bn."),
    (r"\.0\.to_(q|kv)\.net\.2\.", r".attn.proj_\1."),
    (r"\.0\.to_out\.0\.", ".attn.proj."),
    (r"\.1\.net\.0\.", ".norm2."),
    (r"\.1\.net\.1\.", ".mlp.fc1."),
    (r"\.1\.net\.4\.", ".mlp.fc2."),
    (r"\.g$", ".weight"),
    (r"\.b$", ".bias"),
    (r"^to_logits\.2\.", "head."),
)
"""From those of lucidrains' vit-pytorch."""


@pytest.mark.heavy
def test_logits_equal_those_of_lucidrains() -> None:
    """With copied weights; the package now has its epsilon under the root, which is the difference that is left."""
    library = pytest.importorskip("vit_pytorch.cvt")
    reference = library.CvT(num_classes=7).eval()
    model, _ = build_model("cvt_13_lucidrains", num_classes=7)
    weights = {}
    for name, tensor in reference.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            tensor.uniform_(0.5, 2.0)
        for pattern, ours in OUR_NAMES:
            name = re.sub(pattern, ours, name)
        weights[name] = tensor.view_as(model.state_dict()[name])
    model.eval().load_state_dict(weights)
    images = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-3, atol=1e-4)


def test_the_epsilon_is_outside_the_root() -> None:
    tokens = torch.tensor([[1.0, 3.0, 5.0, 7.0]])  # mean 4, variance 5
    norm = OutsideEpsilonNorm(4, eps=0.5)
    torch.testing.assert_close(norm(tokens), (tokens - 4) / (5**0.5 + 0.5))


def test_keys_and_values_share_a_convolution() -> None:
    model = CvT(num_classes=3, attn_layer=SharedConvAttention, class_token=False, **SMALL).eval()
    attention: Any = model.stages[2].blocks[0].attn  # type: ignore[union-attr, index]
    assert attention.scale == 16**-0.5 and attention.proj_q.bias is None and attention.proj_kv.bias is None
    tokens, size = torch.randn(1, 15, 48), (3, 5)
    grid = tokens.transpose(1, 2).view(1, 48, *size)
    query = attention.proj_q(attention.conv_proj_q(grid))
    shared = attention.conv_proj_kv(grid)
    key, value = shared @ attention.proj_kv.weight[:48].T, shared @ attention.proj_kv.weight[48:].T
    heads = []
    for head in range(3):
        own = slice(16 * head, 16 * (head + 1))
        heads.append((query[..., own] @ key[..., own].transpose(1, 2) / 4).softmax(-1) @ value[..., own])
    torch.testing.assert_close(attention(tokens, size), attention.proj(torch.cat(heads, dim=-1)))
