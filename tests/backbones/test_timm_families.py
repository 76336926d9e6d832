"""Every kind of timm network, made small, gives the grid, logits and gradients that it should; so do other modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import vitlet
from builders.families import CLASSES, FAMILIES, LARGER, SQUARE, WIDE, Family, Size
from vitlet.backbones import Backbone, model_img_size
from vitlet.tokens.features import Features, Needs
from vitlet.tokens.views import View

PAIRS = [(family, size) for family in FAMILIES for size in family.sizes]
CARRIED = [pair for pair in PAIRS if min(pair[0].grid(pair[1])) >= 2]
LOCAL = [pair for pair in CARRIED if pair[0].local]
REFUSED = [pair for pair in PAIRS if pair not in CARRIED]


def named(pair: tuple[Family, Size]) -> str:
    return f"{pair[0].name}-{pair[1][0]}x{pair[1][1]}"


@dataclass(frozen=True)
class Network:
    """A model of a family at one size, and what it makes of two images."""

    family: Family
    size: Size
    model: Any
    images: Tensor
    features: Features

    @property
    def backbone(self) -> vitlet.TimmBackbone:
        return vitlet.TimmBackbone(self.model, img_size=self.size)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module", params=CARRIED, ids=named)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    family, size = request.param
    torch.manual_seed(0)
    model, images = family.make(size), noise(2, 3, *size)
    with torch.no_grad():
        features = vitlet.TimmBackbone(model, img_size=size)(View(images), Needs(every_grid=True))
    yield Network(family, size, model, images, features)


def test_logits_are_the_bare_models(network: Network) -> None:
    with torch.no_grad():
        expected = network.model(network.images)
    assert network.features.logits is not None
    assert network.features.logits.shape == (2, CLASSES)
    assert (expected[0] - expected[1]).abs().max() > 1e-3, "images do not reach the logits: nothing would be compared"
    torch.testing.assert_close(network.features.logits, expected, rtol=1e-5, atol=1e-5)


def test_grid_has_the_size_and_the_coordinates_it_should(network: Network) -> None:
    height, width = network.family.grid(network.size)
    last = network.features.last
    assert last.tokens.shape == (2, network.family.channels, height, width)
    assert last.coords.tolist() == [[[row, column] for row in range(height) for column in range(width)]]
    assert network.features.every[-1].shape == last.shape == network.backbone.shapes().last
    for grid in network.features.every:
        assert (grid.shape.width > grid.shape.height) == (network.size[1] > network.size[0])
        assert grid.coords.shape == (1, grid.tokens[0, 0].numel(), 2)


@pytest.mark.parametrize("network", LOCAL, ids=named, indirect=True)
def test_tokens_lie_where_the_image_changed(network: Network) -> None:
    corner = network.family.stride // 2
    changed = network.images.clone()
    changed[:, :, -corner:, :corner] += 3 * noise(2, 3, corner, corner)  # bottom left, within one cell
    with torch.no_grad():
        tokens = network.backbone(View(changed)).last.tokens
    change = (tokens - network.features.last.tokens).square().sum(1).flatten(1)  # B, N
    places = network.features.last.coords[0][change.argmax(1)]
    assert places.tolist() == [[network.family.grid(network.size)[0] - 1, 0]] * 2


def test_drloc_gradients_reach_the_first_layer_and_the_model_gains_no_key(network: Network) -> None:
    keys = list(network.model.state_dict())
    objective = vitlet.Objective(network.backbone, [vitlet.Term(vitlet.DRLoc(hidden=16), 0.5)])
    network.model.zero_grad()
    outcome = objective(network.images)
    outcome.loss.backward()
    first = next(module for module in network.model.modules() if isinstance(module, nn.Conv2d | nn.Linear))
    assert outcome.loss.isfinite()
    assert first.weight.grad is not None
    assert first.weight.grad.isfinite().all()
    assert first.weight.grad.abs().max() > 0
    assert list(objective.backbone.model.state_dict()) == keys


def test_grid_after_the_norm_is_had_or_refused(network: Network) -> None:
    family = network.family
    if family.normed is None:
        with pytest.raises(vitlet.VitletError, match="Use tap 'before_norm'"):
            vitlet.Objective(network.backbone, [vitlet.Term(vitlet.DRLoc(tap="after_norm"))])
        return
    with torch.no_grad():
        features = network.backbone(View(network.images), Needs(after_norm=True))
    assert features.after_norm is not None
    channels = family.channels if family.normed == -1 else family.normed
    assert features.after_norm.tokens.shape == (2, channels, *family.grid(network.size))
    assert torch.equal(features.after_norm.coords, features.last.coords)
    if family.norm:
        with torch.no_grad():
            expected = getattr(network.model, family.norm)(features.last.tokens.permute(0, 2, 3, 1))
        torch.testing.assert_close(features.after_norm.tokens.permute(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pair", REFUSED, ids=named)
def test_grid_under_2x2_is_refused(pair: tuple[Family, Size]) -> None:
    family, size = pair
    backbone = vitlet.TimmBackbone(family.make(size), img_size=size)
    height, width = family.grid(size)
    with pytest.raises(vitlet.VitletError, match=f"grid of {height}x{width} tokens .* need at least 2x2"):
        vitlet.Objective(backbone, [vitlet.Term(vitlet.DRLoc())])


def test_every_kind_of_network_is_covered_at_a_size_that_is_not_square() -> None:
    wide = {family.name for family, size in CARRIED if size[0] != size[1]}
    assert {family.name for family in FAMILIES} - wide == {"mvitv2_tiny"}
    assert len(wide) >= 24


def test_shapes_leave_the_modes_of_the_modules_alone() -> None:
    model = FAMILIES[0].make(SQUARE).train()
    model.blocks[0].eval()
    vitlet.TimmBackbone(model).shapes()
    assert model.training and model.blocks[1].training and not model.blocks[0].training


def test_img_size_comes_from_the_model() -> None:
    assert model_img_size(FAMILIES[0].make(WIDE)) == WIDE  # of its patch embedding
    assert model_img_size(timm.create_model("resnet10t")) == (176, 176)  # of its configuration


def test_an_image_the_model_cannot_take_is_refused_in_one_sentence() -> None:
    backbone = vitlet.TimmBackbone(FAMILIES[0].make(SQUARE), img_size=64)
    with pytest.raises(vitlet.VitletError, match="vit_tiny_patch16_224 cannot take 3-channel images of 64x64 pixels"):
        backbone.shapes()


def test_a_model_without_intermediates_is_refused() -> None:
    model = timm.create_model("convit_tiny", depth=1, local_up_to_layer=1)
    with pytest.raises(vitlet.VitletError, match=r"ConVit has no forward_intermediates.*vitlet\.LayerBackbone"):
        vitlet.TimmBackbone(model)


def test_a_model_without_a_classifier_is_refused() -> None:
    model = timm.create_model("qwen3_vit_416m_enc", depth=1, embed_dim=64, num_heads=4, img_size=64)
    with pytest.raises(vitlet.VitletError, match="qwen3_vit_416m_enc has no classifier"):
        vitlet.TimmBackbone(model).shapes()


class Patches(nn.Module):
    """An image cut into 8x8 patches, handed on in some layout by the layer ``body``, and classified by its mean."""

    def __init__(self, layout: str, channels: int = 16) -> None:
        super().__init__()
        self.layout = layout
        self.patches = nn.Conv2d(3, channels, 8, stride=8)
        self.class_token = nn.Parameter(torch.ones(1, 1, channels))
        self.body = nn.Identity()
        self.unused = nn.Identity()
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images)
        if self.layout == "NCHW":
            return self.head(self.body(tokens).mean((2, 3)))
        if self.layout == "NHWC":
            return self.head(self.body(tokens.permute(0, 2, 3, 1)).mean((1, 2)))
        sequence = torch.cat([self.class_token.expand(len(images), -1, -1), tokens.flatten(2).transpose(1, 2)], dim=1)
        return self.head(self.body(sequence).mean(1))


@pytest.mark.parametrize("size", [SQUARE, WIDE, (96, 64)])
@pytest.mark.parametrize(("layout", "prefix_tokens"), [("NCHW", 0), ("NHWC", 0), ("NLC", 1)])
def test_a_layer_gives_the_grid_in_any_layout(layout: str, prefix_tokens: int, size: Size) -> None:
    model, images = Patches(layout), noise(2, 3, *size)
    backbone = vitlet.LayerBackbone(model, layer="body", img_size=size, prefix_tokens=prefix_tokens)
    features = backbone(View(images))
    assert torch.equal(features.last.tokens, model.patches(images))
    assert features.last.coords.shape == (1, size[0] * size[1] // 64, 2)
    assert features.logits is not None and torch.equal(features.logits, model(images))
    check_drloc(backbone, model.patches, images)


@pytest.mark.parametrize("size", [LARGER, WIDE])
def test_a_layer_of_a_torchvision_model(size: Size) -> None:
    model, images = torchvision.models.resnet18(weights=None).eval(), noise(2, 3, *size)
    keys = list(model.state_dict())
    backbone = vitlet.LayerBackbone(model, layer="layer4", img_size=size)
    features = backbone(View(images))
    trunk = nn.Sequential(*list(model.children())[:-2])  # all but the pooling and the classifier
    assert features.last.tokens.shape == (2, 512, size[0] // 32, size[1] // 32)
    torch.testing.assert_close(features.last.tokens, trunk(images))
    check_drloc(backbone, model.conv1, images)
    assert list(backbone.model.state_dict()) == keys


def check_drloc(backbone: Backbone, first: nn.Conv2d, images: Tensor) -> None:
    objective = vitlet.Objective(backbone, [vitlet.Term(vitlet.DRLoc(hidden=16))])
    objective(images).loss.backward()
    assert first.weight.grad is not None
    assert first.weight.grad.isfinite().all() and first.weight.grad.abs().max() > 0


def test_an_ambiguous_layout_is_refused_until_it_is_said() -> None:
    model, images = Patches("NCHW", channels=4), noise(2, 3, 32, 32)  # B, 4, 4, 4
    with pytest.raises(vitlet.VitletError, match=r"shape \(2, 4, 4, 4\), which cannot be read as a grid .* layout"):
        vitlet.LayerBackbone(model, layer="body", img_size=32)(View(images))
    expected = model.patches(images)
    first = vitlet.LayerBackbone(model, layer="body", img_size=32, layout="NCHW")(View(images))
    second = vitlet.LayerBackbone(model, layer="body", img_size=32, layout="NHWC")(View(images))
    assert torch.equal(first.last.tokens, expected)
    assert torch.equal(second.last.tokens, expected.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("layout", "layer", "found"),
    [("NLC", "body", r"\(2, 17, 16\)"), ("NCHW", "head", r"\(2, 5\)")],
    ids=["class token not counted", "classifier"],
)
def test_an_output_that_is_no_grid_is_refused(layout: str, layer: str, found: str) -> None:
    backbone = vitlet.LayerBackbone(Patches(layout), layer=layer, img_size=32)
    with pytest.raises(vitlet.VitletError, match=f"{found}, which cannot be read as a grid over 32x32 images"):
        backbone(View(noise(2, 3, 32, 32)))


def test_a_wrong_layer_name_gets_the_nearest() -> None:
    with pytest.raises(vitlet.VitletError, match=r"has no layer 'patchs'\. Did you mean 'patches'\?"):
        vitlet.LayerBackbone(Patches("NCHW"), layer="patchs", img_size=32)
    with pytest.raises(vitlet.VitletError, match="has no layer ''"):
        vitlet.LayerBackbone(Patches("NCHW"), layer="", img_size=32)


def test_a_layer_that_does_not_run_is_named() -> None:
    backbone = vitlet.LayerBackbone(Patches("NCHW"), layer="unused", img_size=32)
    with pytest.raises(vitlet.VitletError, match="'unused' did not run in the forward pass of Patches"):
        backbone(View(noise(2, 3, 32, 32)))


def test_a_layer_has_one_grid() -> None:
    backbone = vitlet.LayerBackbone(Patches("NCHW"), layer="body", img_size=32)
    with pytest.raises(vitlet.VitletError, match="LayerBackbone has one grid"):
        vitlet.Objective(backbone, [vitlet.Term(vitlet.DRLoc(variant="all"))])


def test_remove_takes_the_hook_off() -> None:
    model, images = Patches("NCHW"), noise(2, 3, 32, 32)
    backbone = vitlet.LayerBackbone(model, layer="body", img_size=32)
    assert len(model.body._forward_hooks) == 1
    backbone.remove()
    assert len(model.body._forward_hooks) == 0
    with pytest.raises(vitlet.VitletError, match="'body' did not run"):
        backbone(View(images))


def test_a_layer_keeps_nothing_of_passes_that_nobody_asked_for() -> None:
    model, images = Patches("NCHW"), noise(2, 3, 32, 32)
    backbone = vitlet.LayerBackbone(model, layer="body", img_size=32)
    backbone(View(images))
    model(images)
    assert not any(isinstance(value, (Tensor, list)) for value in vars(backbone).values())
