"""Tasks attached to any module: which layer is found, that the model stays what it was, what is refused."""

from __future__ import annotations

import copy
import io
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from transformers import (
    AutoModelForImageClassification,
    ConvNextConfig,
    Dinov2Config,
    SwinConfig,
    ViTConfig,
    ViTMAEConfig,
    ViTMAEModel,
)
from transformers import Dinov2WithRegistersConfig as RegisterConfig

import vitlet
from vitlet import VitletError
from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.features import Features, Shapes

CLASSES = 5
Size = int | tuple[int, int]


class Watch(Task):
    """Keeps the features that it is shown."""

    name = "watch"

    def build(self, shapes: Shapes) -> None:
        self.scale = nn.Parameter(torch.ones(shapes.last.channels, 1, 1))

    def forward(self, features: Features) -> TaskResult:
        self.seen = features
        return TaskResult((features.last.tokens * self.scale).square().mean(), {"one": 1.0})


class Tokens(nn.Module):
    """Patches of 8 x 8 with tokens in front and behind, mixed by attention, in the manner of small ViT libraries."""

    def __init__(self, size: tuple[int, int], front: int, behind: int, channels: int = 8) -> None:
        super().__init__()
        self.front, self.behind = front, behind
        self.embed = nn.Conv2d(3, channels, 8, 8)
        self.extra = nn.Parameter(torch.randn(1, front + behind, channels))
        self.positions = nn.Parameter(torch.randn(1, front + behind + size[0] * size[1] // 64, channels))
        self.drop = nn.Dropout(0.1)
        self.attend = nn.MultiheadAttention(channels, 2, batch_first=True)
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        extra = self.extra.expand(len(images), -1, -1).split([self.front, self.behind], dim=1)
        patches = self.embed(images).flatten(2).transpose(1, 2)
        tokens = self.drop(torch.cat([extra[0], patches, extra[1]], dim=1) + self.positions)
        tokens = self.norm(tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0])
        return self.head(tokens.mean(1))


class Resampled(nn.Module):
    """Pools to the size that its classifier wants, as VGG does: larger than its grid, on small images."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.pool = nn.Conv2d(3, 8, 32, 32), nn.AdaptiveAvgPool2d((7, 7))
        self.head = nn.Linear(8 * 49, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.features(images)).flatten(1))


class Scored(nn.Module):
    """Gives every token class scores of its own beside those of the image, as VOLO does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, 8, 8, 8), nn.LayerNorm(8)
        self.head, self.each = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.embed(images).flatten(2).transpose(1, 2))
        return self.head(tokens.mean(1)) + self.each(tokens).amax(1) / 2


class UNet(nn.Module):
    """Down twice and up again: its answer is a map."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 16, 4, 4)
        self.up1, self.up2 = nn.ConvTranspose2d(16, 8, 4, 4), nn.ConvTranspose2d(8, CLASSES, 4, 4)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down1(images)
        return self.up2(self.up1(self.down2(fine)) + fine)


def hugging_face(config: Any) -> nn.Module:
    return AutoModelForImageClassification.from_config(config)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": CLASSES}
SWIN = {"image_size": 64, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
MODELS: dict[str, tuple[Callable[[], nn.Module], Size | None, str, int, int]] = {
    # how it is made, img_size (None: it says so itself), the layer that is found, prefix and suffix tokens
    "timm vit": (
        lambda: timm.create_model("test_vit", img_size=(32, 48), patch_size=8, num_classes=CLASSES),
        (32, 48),
        "norm",
        1,
        0,
    ),
    # behind the last norm: keys and values of a pooling, and class scores of every token
    "timm siglip": (
        lambda: timm.create_model(
            "vit_base_patch16_siglip_224", img_size=(32, 48), patch_size=8, embed_dim=16, depth=1, num_heads=2
        ),
        (32, 48),
        "norm",
        0,
        0,
    ),
    "scored": (Scored, (32, 48), "norm", 0, 0),
    "timm resnet": (lambda: timm.create_model("test_resnet", num_classes=CLASSES), (64, 96), "layer4", 0, 0),
    "torchvision resnet": (
        lambda: torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], CLASSES),
        (64, 96),
        "layer4",
        0,
        0,
    ),
    "resampled": (Resampled, (64, 96), "features", 0, 0),
    "torchvision vit": (
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=CLASSES),
        None,
        "encoder",
        1,
        0,
    ),
    "torchvision swin": (
        lambda: torchvision.models.SwinTransformer([4, 4], 8, [1, 1], [1, 2], [4, 4]),
        32,
        "permute",
        0,
        0,
    ),
    "hf vit": (lambda: hugging_face(ViTConfig(image_size=32, patch_size=8, **SMALL)), None, "vit.layernorm", 1, 0),
    "hf swin": (lambda: hugging_face(SwinConfig(**SWIN, num_labels=CLASSES)), None, "swin.layernorm", 0, 0),
    "hf dinov2": (
        lambda: hugging_face(Dinov2Config(image_size=42, patch_size=14, **SMALL)),
        None,
        "dinov2.layernorm",
        1,
        0,
    ),
    # 2 x 2 patches and five more tokens are nine: not a grid of 3 x 3
    "hf dinov2 registers": (
        lambda: hugging_face(RegisterConfig(image_size=28, patch_size=14, **SMALL)),
        None,
        "dinov2_with_registers.layernorm",
        5,
        0,
    ),
    "hf convnext": (
        lambda: hugging_face(
            ConvNextConfig(image_size=64, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], num_labels=CLASSES)
        ),
        None,
        "convnext.encoder.stages.3",
        0,
        0,
    ),
    "class token": (lambda: Tokens((32, 48), 1, 0), (32, 48), "norm", 1, 0),
    "registers behind": (lambda: Tokens((32, 48), 0, 4), (32, 48), "norm", 0, 4),
    "both": (lambda: Tokens((16, 32), 2, 3), (16, 32), "norm", 2, 3),
    "unet": (UNet, (64, 96), "down2", 0, 0),
}
EVERY = pytest.mark.parametrize("kind", MODELS)


def made(kind: str) -> tuple[nn.Module, dict[str, Any]]:
    make, size, *_ = MODELS[kind]
    torch.manual_seed(0)
    return make(), {} if size is None else {"img_size": size}


def traces(model: nn.Module) -> list[Any]:
    """Everything that attaching might leave: hooks, attributes, modes, keys."""
    found: list[Any] = [list(model.state_dict())]
    for name, module in model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._forward_hooks_with_kwargs)
        keys = sorted(key for key in vars(module) if not key.startswith("_"))
        found.append((name, [len(each) for each in hooks], keys, module.training, "forward" in vars(module)))
    return found


def images_for(attached: vitlet.Attached) -> Tensor:
    return torch.randn(2, 3, *attached._listening[0].img_size)


@EVERY
def test_finds_the_grid_and_leaves_no_trace(kind: str) -> None:
    model, options = made(kind)
    before = traces(model)
    attached = vitlet.attach(model, [Watch(), vitlet.DRLoc(hidden=16), vitlet.Position()], **options)
    _, _, layer, prefix, suffix = MODELS[kind]
    place = attached._listening[0].place
    assert (attached.layer, place.prefix, place.suffix) == (layer, prefix, suffix)

    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, inputs, output: kept.append(output))
    images = images_for(attached)
    torch.manual_seed(1)
    model.eval()
    logits = model(images)
    handle.remove()
    loss = attached.loss()
    loss.backward()
    tokens = attached.tasks["watch"].seen.last.tokens
    if kept[0].ndim == 3:
        assert torch.equal(tokens.flatten(2).transpose(1, 2), kept[0][:, prefix : kept[0].shape[1] - suffix])
    else:
        assert torch.equal(tokens, kept[0] if kept[0].shape[1] == tokens.shape[1] else kept[0].permute(0, 3, 1, 2))
    height, width = images.shape[2:]
    assert tokens.shape[2] * width == tokens.shape[3] * height
    assert any(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in attached.parameters())
    assert set(attached.parts) == {"watch", "drloc", "position"} and "drloc/error_cells" in attached.metrics
    assert loss.item() == pytest.approx(
        attached.parts["watch"].item() + 0.5 * attached.parts["drloc"].item() + attached.parts["position"].item()
    )
    model.train()
    attached.detach()
    assert traces(model) == before
    again = model.eval()(images)
    torch.testing.assert_close(getattr(again, "logits", again), getattr(logits, "logits", logits))


HEAVY = [
    pytest.param(kind, marks=pytest.mark.heavy) for kind in ("timm vit", "torchvision resnet", "hf vit", "hf swin")
]


@pytest.mark.parametrize("kind", ["unet", *HEAVY])
def test_forward_state_dict_and_export_are_the_models_own(kind: str) -> None:
    model, options = made(kind)
    model.eval()
    images = torch.randn(
        2, 3, *(32, 32) if kind == "hf vit" else (64, 64) if kind == "hf swin" else options["img_size"]
    )
    before = torch.export.export(model, (images,))
    expected = model(images)
    keys = list(model.state_dict())
    with vitlet.attach(model, [vitlet.DRLoc(hidden=16)], **options) as attached:
        found = model(images)
        assert list(model.state_dict()) == keys
        after = torch.export.export(model, (images,))
        assert attached.loss().isfinite()  # what was exported was not heard
    torch.testing.assert_close(getattr(found, "logits", found), getattr(expected, "logits", expected), rtol=0, atol=0)
    assert after.graph_module.code == before.graph_module.code
    assert [spec.target for spec in after.graph_signature.input_specs] == [
        spec.target for spec in before.graph_signature.input_specs
    ]


@pytest.mark.heavy
def test_compiled_models_are_heard() -> None:
    model, options = made("class token")
    attached = vitlet.attach(model.eval(), [Watch()], **options)
    images = images_for(attached)
    model(images)
    expected = attached.loss()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        model.zero_grad()
        compiled(images)
        loss = attached.loss()
        torch.testing.assert_close(loss, expected)
        loss.backward()
        assert model.embed.weight.grad is not None and model.embed.weight.grad.abs().sum() > 0


def test_copies_and_files_of_the_model_work_and_are_deaf() -> None:
    model, options = made("class token")
    attached = vitlet.attach(model, [Watch()], **options)
    images = images_for(attached)
    model(images)
    twin, stored = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    whole = io.BytesIO()
    torch.save(model.state_dict(), whole)
    for other in (twin.eval(), stored.eval()):
        torch.testing.assert_close(other(torch.zeros_like(images)), model.eval()(torch.zeros_like(images)))
    model(images)
    twin(torch.zeros_like(images))
    attached.loss()
    assert torch.equal(attached.tasks["watch"].seen.images, images)  # not the copy's


def test_a_named_layer_and_weights() -> None:
    model, options = made("timm vit")
    ramp = vitlet.Ramp(2.0, epochs=10, warmup_epochs=2)
    attached = vitlet.attach(model, [vitlet.Term(Watch(), ramp)], layer="blocks.0", **options)
    assert attached.layer == "blocks.0" and attached._listening[0].place.prefix == 1
    images = images_for(attached)
    model(images)
    for ask in (attached.loss, attached):
        with pytest.raises(VitletError, match=r"'watch' follows a schedule.*call attached\.loss\(epoch\)"):
            ask()
    for epoch, weight in ((0.0, 0.0), (1.0, 1.0), (2.0, 2.0)):
        model(images)
        loss = attached(epoch)
        assert loss.item() == pytest.approx(weight * attached.parts["watch"].item())


def test_learns_beside_the_labels() -> None:
    model, options = made("class token")
    attached = vitlet.attach(model, [vitlet.Position()], **options)
    optimizer = torch.optim.Adam([*model.parameters(), *attached.parameters()], lr=0.01)
    images, labels = torch.randn(8, 3, 32, 48), torch.randint(CLASSES, (8,))
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(images), labels) + attached.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert attached.metrics["position/accuracy"] > 60


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_in_another_precision(dtype: torch.dtype) -> None:
    model, options = made("class token")
    attached = vitlet.attach(model.to(dtype), [vitlet.DRLoc(hidden=8)], **options)
    model(images_for(attached).to(dtype))
    loss = attached.loss()
    assert loss.dtype == torch.float32
    loss.backward()


@pytest.mark.parametrize("kind", ["timm vit", "hf vit"])
def test_tasks_on_attention(kind: str) -> None:
    model, options = made(kind)
    before = traces(model)
    attached = vitlet.attach(model, [vitlet.AttentionDistance(), vitlet.AttentionSimilarity()], **options)
    model(images_for(attached))
    attached.loss().backward()
    reach = next(value for name, value in attached.metrics.items() if name.endswith("_distance"))
    assert 0 < float(reach) < 10
    attached.detach()
    assert traces(model) == before


@pytest.mark.parametrize("kind", ["timm vit", "hf vit"])
@pytest.mark.parametrize("explicit_tokens", [784, 4])
@pytest.mark.parametrize("order", [1, -1])
def test_two_attachments_to_one_layer(
    kind: str, explicit_tokens: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlet.objective.attached.EXPLICIT_TOKENS", explicit_tokens)
    model, options = made(kind)
    before = traces(model)
    tasks = [vitlet.AttentionDistance(layers="1"), vitlet.AttentionSimilarity(layers="1")]
    both = [vitlet.attach(model, [task], **options) for task in tasks]
    images = images_for(both[0])
    model(images)
    expected = [attached.loss().detach() for attached in both]
    first, second = both[::order]
    first.detach()
    model(images)
    torch.testing.assert_close(second.loss().detach(), expected[::order][1])
    second.detach()
    assert traces(model) == before


@pytest.mark.parametrize("kind", ["timm vit", "hf vit"])
def test_copies_of_a_model_keep_no_attention(kind: str) -> None:
    model, options = made(kind)
    attached = vitlet.attach(model, [vitlet.AttentionDistance(layers="1")], **options)
    images = images_for(attached)
    model(images)  # with a graph, which cannot be copied
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        tapped = [vars(module)["forward"].__self__ for module in other.modules() if "forward" in vars(module)]
        other(torch.zeros_like(images))
        assert len(tapped) == 1 and not tapped[0].taps
    expected = attached.loss()
    model(images)
    torch.testing.assert_close(attached.loss(), expected)


@pytest.mark.parametrize(
    ("kind", "tasks", "options", "words"),
    [
        ("torchvision resnet", ["drloc"], {"layer": "layer5"}, r"ResNet has no layer 'layer5'\. Did you mean 'layer"),
        ("torchvision resnet", ["drloc"], {"layer": "fc"}, r"'fc' is a tensor of shape \(7, 5\), which cannot be read"),
        ("torchvision resnet", ["drloc", "drloc"], {}, r"tasks with different names, got \['drloc', 'drloc'\]"),
        ("torchvision resnet", [], {}, r"tasks with different names, got \[\]"),
        (
            "torchvision resnet",
            ["attention"],
            {},
            r"ResNet has no attention map .*found: no attention at all.*such as drloc",
        ),
        ("torchvision resnet", ["rotation"], {}, r"rotation uses its own view of the images \(Rotated\)"),
        ("torchvision resnet", ["all"], {}, r"attached tasks read one layer \('layer4'\)"),
        ("torchvision resnet", ["drloc"], {"img_size": None}, r"ResNet has no known input size: pass img_size"),
        ("torchvision resnet", ["drloc"], {"in_chans": 1}, r"ResNet cannot take 1-channel images of 64x96"),
        ("torchvision resnet", ["drloc"], {"img_size": 32, "layer": "layer4"}, r"cannot be read|at least 2x2"),
        ("class token", ["drloc"], {"img_size": 64}, r"Tokens cannot take 3-channel images of 64x64"),
    ],
)
def test_refused(kind: str, tasks: list[str], options: dict[str, Any], words: str) -> None:
    model, usual = made(kind)
    before = traces(model)
    known: dict[str, Callable[[], Task]] = {
        "drloc": vitlet.DRLoc,
        "attention": vitlet.AttentionDistance,
        "rotation": vitlet.Rotation,
        "all": lambda: vitlet.DRLoc(variant="all"),
    }
    with pytest.raises(VitletError, match=words):
        vitlet.attach(model, [known[name]() for name in tasks], **(usual | options))
    assert traces(model) == before


SMALL_VIT = {"img_size": (32, 48), "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
@pytest.mark.parametrize("how", ["attach", "layer", "timm"])
def test_dropped_tokens_are_refused(name: str, how: str) -> None:
    """A quarter of 8 x 12 tokens is no grid of 4 x 6: those left are from anywhere."""
    model = timm.create_model(name, patch_drop_rate=0.75, num_classes=CLASSES, **SMALL_VIT)
    images = torch.randn(2, 3, 32, 48)
    if how == "attach":
        attached = vitlet.attach(model, [vitlet.DRLoc(hidden=8)], img_size=(32, 48))
        ask: Callable[[], Any] = lambda: (model(images), attached.loss())  # noqa: E731
    else:
        backbone: Any = vitlet.TimmBackbone(model)
        if how == "layer":
            prefix = int(model.num_prefix_tokens)
            backbone = vitlet.LayerBackbone(model, layer="blocks.0", img_size=(32, 48), prefix_tokens=prefix)
        objective = vitlet.Objective(backbone, [vitlet.Term(vitlet.DRLoc(hidden=8))])
        ask = lambda: objective(images)  # noqa: E731
    with pytest.raises(
        VitletError, match=r"tokens .*patch_drop_rate, turn that off: the remaining ones have no known position"
    ):
        ask()
    model.eval()
    ask()


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(8, 8, 0), (16, 12, 0), (7, 4, 3), (3, 2, 1), (10, 6, 0)])
@pytest.mark.parametrize("sizes", [(32, 64, 28), (64, 32, 128)])
def test_other_sizes_are_read_whatever_the_strides_make_of_them(
    kernel: int, stride: int, padding: int, sizes: tuple[int, ...]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, kernel, stride, padding), nn.Flatten(2), Turned())
    attached = vitlet.attach(model, [Watch()], layer="2", img_size=sizes[0])
    for size in sizes:
        images = torch.randn(2, 3, size, size)
        model(images)
        attached.loss()
        assert torch.equal(attached.tasks["watch"].seen.last.tokens, model[0](images))


def test_a_grid_that_leaves_pixels_out_is_not_guessed() -> None:
    """4 x 4 tokens on 33 pixels are not seven more tokens and 3 x 3."""
    model = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.Flatten(2), Turned())
    with pytest.raises(VitletError, match="layer '2' of Sequential are not in the order of the image"):
        vitlet.attach(model, [Watch()], layer="2", img_size=33)


class Turned(nn.Module):
    """From channels first to a sequence of tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.transpose(1, 2)


@pytest.mark.parametrize("mask_ratio", [0.75, 0.0])
def test_tokens_that_change_places_are_refused(mask_ratio: float) -> None:
    config = ViTMAEConfig(image_size=32, patch_size=4, intermediate_size=16, mask_ratio=mask_ratio, **SMALL)
    model = ViTMAEModel(config)
    before = traces(model)
    with pytest.raises(VitletError, match="of ViTMAEModel change positions between runs"):
        vitlet.attach(model, [vitlet.DRLoc()])
    assert traces(model) == before


@pytest.mark.parametrize("size", [(128, 128), (128, 192)])
def test_tokens_in_the_order_of_windows_are_refused(size: tuple[int, int]) -> None:
    options = {"stages": (1, 2, 2, 1), "embed_dim": 8, "num_heads": 1, "num_classes": CLASSES}
    model = timm.create_model("hiera_tiny_224", img_size=size, **options)
    for layer in ("unroll", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4"):
        with pytest.raises(VitletError, match=rf"tokens of layer '{layer}' of hiera_tiny_224 are not in the order"):
            vitlet.attach(model, [vitlet.DRLoc()], layer=layer, img_size=size)
    for layer in ("patch_embed", "blocks.5", None):
        vitlet.attach(model, [vitlet.DRLoc()], layer=layer, img_size=size).detach()


def test_no_grid_at_all() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 7))
    with pytest.raises(VitletError, match=r"Sequential has no layer whose output can be read as a token grid over 8x8"):
        vitlet.attach(model, [vitlet.DRLoc()], img_size=8)


def test_a_loss_needs_a_forward_pass_of_its_own() -> None:
    model, options = made("class token")
    attached = vitlet.attach(model, [Watch()], **options)
    with pytest.raises(VitletError, match=r"heard: .*Call model\(images\) before loss.*attach first, then compile"):
        attached.loss()
    model(images_for(attached))
    attached.loss()
    with pytest.raises(VitletError, match="nothing was heard"):
        attached.loss()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["ViT", "SimpleViT", "registers", "Unet"])
def test_other_libraries(kind: str) -> None:
    """The real ones: class token in front, none, registers behind, and a map as an answer."""
    if kind == "Unet":
        library = pytest.importorskip("segmentation_models_pytorch")
        model, size = library.Unet("resnet18", encoder_weights=None, classes=3), (64, 96)
    else:
        library = pytest.importorskip("vit_pytorch")
        from vit_pytorch.simple_vit_with_register_tokens import SimpleViT as Registers

        make = Registers if kind == "registers" else getattr(library, kind)
        size = (32, 32)
        model = make(image_size=32, patch_size=8, num_classes=CLASSES, dim=16, depth=2, heads=2, mlp_dim=32)
    before = traces(model)
    with vitlet.attach(model, [Watch(), vitlet.DRLoc(hidden=8)], img_size=size) as attached:
        place = attached._listening[0].place
        assert (place.prefix, place.suffix) == {"ViT": (1, 0), "registers": (0, 4)}.get(kind, (0, 0))
        model(torch.randn(2, 3, *size))
        attached.loss().backward()
        assert attached.tasks["watch"].seen.last.tokens.shape[2:] == ((2, 3) if kind == "Unet" else (4, 4))
    assert traces(model) == before


@pytest.mark.parametrize("tasks", ["drloc", ["drloc"], [vitlet.DRLoc], None, [None]])
def test_what_is_no_task_is_named(tasks: Any) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=12, num_heads=1, img_size=32)
    with pytest.raises(vitlet.VitletError, match=r"found .*, needed a task such as vitlet\.DRLoc\(\)"):
        vitlet.attach(model, tasks)
    with pytest.raises(vitlet.VitletError, match=r"found .*, needed a task such as vitlet\.DRLoc\(\)"):
        vitlet.Objective(vitlet.TimmBackbone(model), tasks)


def test_one_task_needs_no_list() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=12, num_heads=1, img_size=32)
    with vitlet.attach(model, vitlet.DRLoc(hidden=8)) as attached:
        assert [term.weight for term in attached.terms] == [vitlet.DRLoc.suggested_weight]
    assert len(vitlet.Objective(vitlet.TimmBackbone(model), vitlet.DRLoc(hidden=8)).terms) == 1


@pytest.mark.parametrize("size", ["32", 0, -32, (32,), (32, 32, 32), 32.5, (32, 0), 30])
def test_a_wrong_image_size_is_named(size: Any) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=12, num_heads=1, img_size=32)
    before = traces(model)
    with pytest.raises(vitlet.VitletError, match=r"img_size is .*; it must be a side|cannot take"):
        vitlet.attach(model, vitlet.DRLoc(), img_size=size)
    assert traces(model) == before


DISTRIBUTED = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import vitlet

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
attached = vitlet.attach(model, [vitlet.SpatialRelations(), vitlet.Position()], img_size=(32, 48))
wrapped, heads = DDP(model), DDP(attached)
images, labels = torch.randn(4, 3, 32, 48), torch.arange(4)
mine = slice(rank * 4 // size, (rank + 1) * 4 // size)
loss = nn.functional.cross_entropy(wrapped(images[mine]), labels[mine]) + heads()
loss.backward()
named = [*model.named_parameters(), *attached.named_parameters()]
if rank == 0:
    torch.save({name: each.grad for name, each in named}, sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.heavy
def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(DISTRIBUTED, encoding="utf-8")
    found = []
    for processes in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        target = tmp_path / f"{processes}.pt"
        started = []
        for rank in range(processes):
            place = {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            command = [sys.executable, str(script), str(target)]
            started.append(subprocess.Popen(command, env=os.environ | place | {"OMP_NUM_THREADS": "1"}))
        assert [process.wait(300) for process in started] == [0] * processes
        found.append(torch.load(target, weights_only=True))
    one, two = found
    assert one.keys() == two.keys() and all(slope is not None for slope in one.values())
    torch.testing.assert_close(two, one)
