"""Every model that vitlet registers obeys timm's contract; a new one is tested by being registered."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import timm
import torch
from timm.layers.drop import DropPath
from timm.models import model_entrypoint
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitlet
import vitlet.models
from vitlet.backbones import model_img_size
from vitlet.models.arvit import ARViT
from vitlet.models.cvt import CvT
from vitlet.models.factory import build_model
from vitlet.models.initialise import layer_decay_groups, position_names, switch_positions_off
from vitlet.registration import register_networks
from vitlet.tokens.features import Needs
from vitlet.tokens.views import View

REGISTERED = [name for name in timm.list_models() if model_entrypoint(name).__module__.startswith("vitlet.")]
NAMES = [name for name in REGISTERED if not re.search("_(xs|m|l|xl)_for_", name)]  # made small, sizes are the same
CLASSES = 5
NARROW: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3}
MADE_SMALL: dict[str, dict[str, Any]] = {
    "arvit": {**NARROW, "patch_size": 16},
    "vit": NARROW,
    "t2t": {**NARROW, "token_dim": 16},
    "cct": NARROW,
    "cvt": {"embed_dims": (16, 32, 48), "depths": (1, 1, 2), "num_heads": (1, 2, 3)},
    "swin": {"embed_dim": 12, "depths": (2, 1, 1), "num_heads": (1, 2, 3)},
    "resnet": {"layers": (1, 1, 1, 1), "channels": (8, 16, 24, 32)},
    "botnet": {"layers": (1, 1, 1, 1), "channels": (8, 16, 24, 32)},
    "hybrid": {**NARROW, "channels": (8, 16, 24, NARROW["embed_dim"])},
    "convstem": {**NARROW, "stem_width": 8},
}
"""By the first word of a name; a model of another kind is tested as large as it is."""


def wide(name: str) -> tuple[int, int]:
    """An image size that is not square: the model's own, or less, and half as wide again."""
    side = min(64, timm.get_pretrained_cfg(name).input_size[1])
    return side, side * 3 // 2


def make(name: str, size: tuple[int, int] | None = None, **more: Any) -> Any:
    """A small one, with every parameter moved off its initial value, so that no branch is 0."""
    torch.manual_seed(0)
    options = {**MADE_SMALL.get(name.split("_")[0], {}), **more}
    model, _ = build_model(
        name,
        num_classes=options.pop("num_classes", CLASSES),
        in_chans=options.pop("in_chans", 3),
        drop_path=options.pop("drop_path", 0.0),
        img_size=size or wide(name),
        model_kwargs=options,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model.eval()


def noise(name: str, channels: int = 3, count: int = 2) -> Tensor:
    return torch.randn(count, channels, *wide(name), generator=torch.Generator().manual_seed(2))


every = pytest.mark.parametrize("name", NAMES)


def test_there_are_all_of_them() -> None:
    assert {"cvt_13", "cvt_21", "t2t_vit_7", "t2t_vit_12", "t2t_vit_14", "t2t_vit_19", "t2t_vit_24"} <= set(NAMES)
    assert sum(name.endswith("px") for name in REGISTERED) == 18 + 4 * 5 * 5


@pytest.mark.parametrize("looked_up", ["", "from importlib.util import find_spec; assert find_spec('timm');"])
def test_timm_finds_them_when_it_comes_after_vitlet(looked_up: str) -> None:
    code = (
        f"import sys, vitlet; {looked_up} assert 'timm' not in sys.modules and 'torch' not in sys.modules; import timm;"
        "assert timm.is_model('cvt_13') and timm.is_model('vit_for_32px');"
        "assert type(timm.__spec__.loader).__module__ != 'vitlet.registration';"
        "assert not any(type(finder).__module__ == 'vitlet.registration' for finder in sys.meta_path)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    before = list(sys.meta_path)
    register_networks()  # timm is there: nothing to wait for
    assert sys.meta_path == before


@every
def test_head_of_features_is_forward_and_grids_are_where_they_should_be(name: str) -> None:
    model, images = make(name), noise(name)
    with torch.no_grad():
        scores = model(images)
        features = model.forward_features(images)
        final, maps = model.forward_intermediates(images)
    assert scores.shape == (2, CLASSES) and (scores[0] - scores[1]).abs().max() > 1e-3
    torch.testing.assert_close(model.forward_head(features), scores)
    torch.testing.assert_close(final, features)
    assert len(maps) == len(model.feature_info)
    for grid, info in zip(maps, model.feature_info, strict=True):
        expected = (2, info["num_chs"], *(side // info["reduction"] for side in wide(name)))
        assert tuple(grid.shape) == expected and model.get_submodule(info["module"]) is not None
    assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)
    assert model.num_features == maps[-1].shape[1]


@every
def test_intermediates_by_index_format_and_norm(name: str) -> None:
    model, images = make(name), noise(name)
    with torch.no_grad():
        final, maps = model.forward_intermediates(images)
        (first,) = model.forward_intermediates(images, indices=[0], stop_early=True, intermediates_only=True)
        last_two = model.forward_intermediates(images, indices=2, intermediates_only=True)
        model.forward_intermediates(images, indices=[0], stop_early=not isinstance(model, SWIN))
    torch.testing.assert_close(first, maps[0])
    torch.testing.assert_close(last_two, maps[-2:])
    with pytest.raises((ValueError, AssertionError)):
        model.forward_intermediates(images, output_fmt="NHWC")
    if isinstance(model, CvT | ARViT | VisionTransformer):
        with torch.no_grad():
            flat = model.forward_intermediates(images, output_fmt="NLC", intermediates_only=True)
            normed = model.forward_intermediates(images, indices=1, norm=True, intermediates_only=True)
        torch.testing.assert_close(flat, [grid.flatten(2).transpose(1, 2) for grid in maps])
        tokens = maps[-1][0, 0].numel()
        torch.testing.assert_close(normed[0].flatten(2).transpose(1, 2), final[:, final.shape[1] - tokens :])


SWIN = timm.models.SwinTransformer  # its norm is as wide as its last stage, whichever it stops at


@every
@pytest.mark.parametrize("channels", [1, 5])
def test_other_channels_and_no_classes(name: str, channels: int) -> None:
    model = make(name, in_chans=channels, num_classes=0)
    images = noise(name, channels)
    assert model.in_chans == channels and model.num_classes == 0
    with torch.no_grad():
        assert model(images).shape == (2, model.head_hidden_size)
    model.reset_classifier(3)
    assert model(images).shape == (2, 3) and model.get_classifier().out_features == 3
    model.reset_classifier(0)
    assert isinstance(model.get_classifier(), nn.Identity)


@every
def test_gradient_checkpointing_gives_the_same_gradients(name: str) -> None:
    model, images = make(name), noise(name)
    for how in ("forward", "forward_intermediates"):
        found = []
        for enable in (False, True):
            model.zero_grad()
            model.train().set_grad_checkpointing(enable)
            torch.manual_seed(3)
            out = model(images) if how == "forward" else model.forward_head(model.forward_intermediates(images)[0])
            out.square().sum().backward()
            found.append([parameter.grad for parameter in model.parameters() if parameter.requires_grad])
        assert all(gradient is not None for gradient in found[0])
        for first, second in zip(*found, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cvt_13", "t2t_vit_14", "cct_for_32px", "hybrid_s_for_64px"])
def test_checkpointing_computes_blocks_again_in_intermediates_too(name: str) -> None:
    model, runs = make(name).train(), []
    blocks = model.stages[0].blocks if name == "cvt_13" else model.blocks
    blocks[0].register_forward_pre_hook(lambda module, given: runs.append(1))
    model.set_grad_checkpointing()
    model.forward_intermediates(noise(name))[0].sum().backward()
    assert len(runs) == 2


@every
def test_drop_path_acts_in_training_only(name: str) -> None:
    plain, dropping, images = make(name), make(name, drop_path=0.5), noise(name, count=4)
    rates = [module.drop_prob for module in dropping.modules() if isinstance(module, DropPath)]
    assert max(rates) == 0.5 and sorted(rates) == rates
    assert not any(isinstance(module, DropPath) for module in plain.modules())
    dropping.load_state_dict(plain.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(dropping(images), plain(images))
        torch.manual_seed(4)
        dropping.train()
        assert not torch.equal(dropping(images), dropping(images))


@every
def test_layer_decay_reaches_every_parameter(name: str) -> None:
    model = make(name)
    groups = layer_decay_groups(model, weight_decay=0.1, layer_decay=0.5)
    learned = {parameter for parameter in model.parameters() if parameter.requires_grad}
    assert {parameter for group in groups for parameter in group["params"]} == learned
    assert len({group["lr_scale"] for group in groups}) >= len(model.feature_info)
    scales = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    assert scales[id(first.weight)] == min(scales.values())
    assert scales[id(model.get_classifier().weight)] == 1.0
    if hasattr(model, "no_weight_decay"):
        undecayed = {name for name in model.no_weight_decay() if name in dict(model.named_parameters())}
        assert {name for name, _ in model.named_parameters() if name.endswith("cls_token")} <= undecayed


@every
def test_features_only_and_pruning(name: str) -> None:
    options = MADE_SMALL.get(name.split("_")[0], {})
    sized = {} if name.startswith(("resnet", "botnet")) else {"img_size": wide(name)}
    features = timm.create_model(name, features_only=True, out_indices=(0, 1), **options, **sized).eval()
    with torch.no_grad():
        maps = features(noise(name))
    assert [one.shape[1] for one in maps] == features.feature_info.channels()
    model = make(name)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert list(model.prune_intermediate_layers([0])) == [0]
    assert sum(parameter.numel() for parameter in model.parameters()) < count
    with torch.no_grad():
        model.forward_intermediates(noise(name), indices=[0], intermediates_only=True)


@every
def test_weights_come_back_and_bfloat16_agrees(name: str) -> None:
    model, again, images = make(name), make(name), noise(name)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
        again.load_state_dict(model.state_dict())
        scores = model(images)
        torch.testing.assert_close(again(images), scores)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            coarse = model(images)
    assert (coarse.float() - scores).abs().max() < 0.1 * scores.abs().max().clamp(min=1)


@every
def test_backbone_finds_size_and_positions_go(name: str) -> None:
    model, images = make(name), noise(name)
    if not name.startswith(("resnet", "botnet")):
        assert model_img_size(model) == wide(name)
    backbone = vitlet.TimmBackbone(model, img_size=wide(name))
    features = backbone(View(images), Needs(every_grid=True, after_norm=True))
    torch.testing.assert_close(features.logits, model(images), rtol=1e-5, atol=1e-5)
    assert features.after_norm is not None and features.after_norm.shape == features.last.shape
    assert bool(position_names(model)) == (not name.startswith(("cvt", "resnet", "swin")))
    if name.startswith(("cvt", "resnet")):
        with pytest.raises(vitlet.VitletError, match="has no positional embedding known"):
            switch_positions_off(model)
        return
    switch_positions_off(model)
    scores = model(images)
    assert (scores - features.logits).abs().max() > 0
    again = make(name)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(images), scores)  # off in the exported weights too


@every
def test_every_grid_task_reaches_the_first_layer(name: str) -> None:
    model, images = make(name), noise(name)
    keys = list(model.state_dict())
    tasks = [vitlet.DRLoc(hidden=16), vitlet.SpatialRelations(), vitlet.Distance(), vitlet.Angle(), vitlet.Position()]
    terms = [vitlet.Term(task) for task in tasks]
    objective = vitlet.Objective(vitlet.TimmBackbone(model, img_size=wide(name)), terms)
    outcome = objective(images)
    outcome.loss.backward()
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    for parameter in (first.weight, *objective.task_parameters()):
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    assert first.weight.grad.abs().max() > 0 and len(outcome.parts) == 5
    assert list(model.state_dict()) == keys


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name", ["cvt_13", "t2t_vit_14", "resnet_s_for_64px", "hybrid_s_for_64px", "convstem_vit_s_for_64px"]
)
def test_compiles_in_one_piece(name: str) -> None:
    model, images = make(name), noise(name)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))
