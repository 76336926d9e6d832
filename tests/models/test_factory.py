"""Networks by name: built, refused, with pretrained weights and stems for other channels."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers.drop import DropPath

from vitlet.errors import VitletError
from vitlet.models.factory import build_model, data_statistics, find_models, patch_size


@pytest.mark.parametrize("in_chans", [1, 3, 5])
def test_pretrained_stems_are_adapted(in_chans: int, tmp_path: Path) -> None:
    source = timm.create_model("resnet10t", num_classes=7)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    model, _ = build_model("resnet10t", num_classes=4, in_chans=in_chans, pretrained=tmp_path / "weights.safetensors")
    assert torch.equal(model.state_dict()["layer1.0.conv1.weight"], source.state_dict()["layer1.0.conv1.weight"])
    assert model.fc.out_features == 4  # type: ignore[union-attr]
    stem, original = model.state_dict()["conv1.0.weight"], source.state_dict()["conv1.0.weight"]
    assert stem.shape[1] == in_chans
    if in_chans == 1:
        assert torch.allclose(stem, original.sum(1, keepdim=True), atol=1e-6)
    elif in_chans == 5:
        assert torch.allclose(stem[:, 3:], original[:, :2] * 3 / 5, atol=1e-6)


def test_pretrained_weights_without_a_network_are_one_message(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from huggingface_hub import constants

    def unknown(*place: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("vitlet.models.factory.socket.getaddrinfo", unknown)
    monkeypatch.setattr("vitlet.models.factory.getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    before, offline = time.monotonic(), constants.HF_HUB_OFFLINE
    with pytest.raises(VitletError, match=r"of resnet10t could not be downloaded \(.*--init FILE") as problem:
        build_model("resnet10t", num_classes=4, pretrained=True)
    assert "in_chans" not in str(problem.value)
    assert time.monotonic() - before < 20  # no retries
    assert offline == constants.HF_HUB_OFFLINE
    found = capfd.readouterr()
    assert "Retry" not in found.err + found.out


def test_pretrained_weights_that_cannot_be_fetched() -> None:
    with pytest.raises(VitletError, match=r"cannot be built with .* and pretrained weights"):
        build_model("resnet10t", num_classes=4, pretrained=Path("absent.safetensors"))


@pytest.mark.parametrize("key", ["checkpoint_path", "pretrained_cfg_overlay", "num_classes"])
def test_settings_cannot_slip_in_files(key: str) -> None:
    with pytest.raises(VitletError, match=f"cannot hold '{key}'"):
        build_model("resnet10t", num_classes=4, model_kwargs={key: "x"})


def test_statistics_follow_the_channels() -> None:
    model, _ = build_model("resnet10t", num_classes=4)
    mean, std = data_statistics(model, 3)
    assert (len(mean), len(std)) == (3, 3)
    grey, _ = data_statistics(model, 1)
    assert grey == pytest.approx([sum(mean) / 3])


def test_a_network_drops_no_path_unless_asked() -> None:
    """timm's Swin would drop a tenth by itself."""
    arguments = {"embed_dim": 16, "depths": (1, 2), "num_heads": (1, 2), "window_size": 4, "patch_size": 4}
    for asked in (0.0, 0.3):
        model, _ = build_model(
            "swin_tiny_patch4_window7_224",
            num_classes=2,
            img_size=(32, 32),
            drop_path=asked,
            model_kwargs=arguments,
        )
        rates = [layer.drop_prob for layer in model.modules() if isinstance(layer, DropPath)]
        assert rates and max(rates) == pytest.approx(asked)


def test_the_list_has_only_networks_that_can_be_used() -> None:
    """CoaT has no forward_intermediates: it was refused with the advice to choose from a list that had it."""
    names = find_models()
    assert {"vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet50", "cvt_13", "vit_for_32px"} <= set(names)
    assert not any(name.startswith("coat_") for name in names)
    with pytest.raises(VitletError, match="no model matches 'coat_tiny'"):
        find_models("coat_tiny")


def test_patches_are_those_of_the_model_not_of_its_name() -> None:
    small = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    built, _ = build_model(
        "vit_tiny_patch16_224", num_classes=2, img_size=(32, 48), model_kwargs=small | {"patch_size": 4}
    )
    assert patch_size(built) == (4, 4)
    built, _ = build_model(
        "vit_tiny_patch16_224", num_classes=2, img_size=(32, 48), model_kwargs=small | {"patch_size": (8, 4)}
    )
    assert patch_size(built) == (8, 4)
    built, _ = build_model("resnet18", num_classes=2)
    assert patch_size(built) is None
