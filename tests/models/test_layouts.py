"""Released files of trained weights: recognized, renamed, and refused with what is missing and what is too much."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from builders.released import lite_medsam, mobile_sam
from vitlet.cli import main
from vitlet.errors import VitletError
from vitlet.models.initialise import load_weights
from vitlet.models.layouts import LAYOUTS, fitted_kwargs, frozen_kwargs, layout_of, recognize
from vitlet.models.weight_cache import best_known, find_weights_here
from vitlet.models.weight_files import read_shapes, read_weights

EFFICIENTNET, MOBILE_SAM, _ = LAYOUTS


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("released") / "mobile_sam.pt"
    torch.manual_seed(0)
    mobile_sam(path)
    return path


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, whatever this machine has."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "torch"))
    return tmp_path


def test_mobile_sam_maps_back_to_equal_features(tmp_path: Path) -> None:
    source = mobile_sam(tmp_path / "sam.pt")
    model = timm.create_model("tiny_vit_5m_224", num_classes=4).eval()
    report = load_weights(model, tmp_path / "sam.pt")
    assert report.layout is not None and report.layout.name == "MobileSAM"
    assert len(report.loaded) == len(source.state_dict()) == report.layout.tensors
    assert report.fresh == ("head.fc.weight", "head.fc.bias") and not report.unused
    for name, tensor in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    images = torch.randn(2, 3, 64, 64)
    features = model.forward_head(model.forward_features(images), pre_logits=True)
    torch.testing.assert_close(features, source(images))
    assert "MobileSAM, 294 of 294 tensors of tiny_vit_5m_224" in str(report)


def test_grey_images_get_an_adapted_stem(file: Path) -> None:
    model = timm.create_model("tiny_vit_5m_224", num_classes=4, in_chans=1)
    assert load_weights(model, file).adapted == ("patch_embed.conv1.conv.weight",)


def test_what_litemedsam_has_not_stays_fresh(tmp_path: Path) -> None:
    source = lite_medsam(tmp_path / "lite.pth")
    model = timm.create_model("tiny_vit_5m_224", num_classes=4)
    before = model.state_dict()["patch_embed.conv1.conv.weight"].clone()
    report = load_weights(model, tmp_path / "lite.pth")
    assert report.layout is not None and report.layout.fits == "290 of 294"
    assert len(report.loaded) == 290 and set(report.layout.differs) < set(report.fresh)
    assert torch.equal(model.state_dict()["patch_embed.conv1.conv.weight"], before)
    name = "stages.3.blocks.1.mlp.fc2.weight"
    assert torch.equal(model.state_dict()[name], source.state_dict()[name])


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_table_agrees_with_timm(layout: object) -> None:
    (entry,) = [each for each in LAYOUTS if each is layout]
    own = timm.create_model(entry.model, num_classes=0).state_dict()
    assert len(own) == entry.tensors and set(entry.differs) <= own.keys()
    assert entry.licence and entry.source and entry.learned


def test_a_file_of_no_layout_is_refused_with_the_nearest(file: Path, tmp_path: Path) -> None:
    weights = read_weights(file)
    cut = {name: one for name, one in weights.items() if "layers.2." not in name and "seq.0" not in name}
    torch.save(cut | {"image_encoder.gate.weight": torch.ones(3)}, tmp_path / "cut.pth")
    with pytest.raises(VitletError) as caught:
        load_weights(timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=4), tmp_path / "cut.pth")
    words = str(caught.value)
    assert "Nearest known layout: MobileSAM for --model tiny_vit_5m_224, of which" in words and "\n" not in words
    assert (
        "(patch_embed.conv1.conv.weight, patch_embed.conv1.bn.weight, patch_embed.conv1.bn.bias, ...) missing" in words
    )
    assert "and 1 (gate.weight) extra" in words
    with pytest.raises(VitletError, match=r"1 extra: gate.weight \(3,\) is unknown; \d+ missing: .* and \d+ more"):
        load_weights(timm.create_model("tiny_vit_5m_224", num_classes=4), tmp_path / "cut.pth")


def test_a_known_file_for_another_model_says_which(file: Path) -> None:
    with pytest.raises(VitletError, match=r"They are MobileSAM's: use --model tiny_vit_5m_224"):
        load_weights(timm.create_model("resnet10t", num_classes=4), file)


def test_a_file_that_is_near_nothing(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "odd.pth")
    with pytest.raises(VitletError, match=r"near no known layout \(EfficientNet-Lite0, MobileSAM, "):
        load_weights(timm.create_model("resnet10t", num_classes=4), tmp_path / "odd.pth")
    assert layout_of(tmp_path / "odd.pth") is None


def test_shapes_are_those_of_the_values(file: Path, tmp_path: Path) -> None:
    save_file(read_weights(file), tmp_path / "same.safetensors")
    shapes = {name: one.shape for name, one in read_weights(file).items()}
    for path in (file, tmp_path / "same.safetensors"):
        assert {name: one.shape for name, one in read_shapes(path).items()} == shapes
        assert recognize(read_shapes(path)) is MOBILE_SAM


def test_weights_lists_files_caches_and_layouts(
    file: Path, caches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = caches / "hub" / "models--timm--resnet10t.c3_in1k" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    save_file(timm.create_model("resnet10t").state_dict(), snapshot / "model.safetensors")
    about = {"architecture": "resnet10t", "pretrained_cfg": {"input_size": [3, 176, 176], "license": "apache-2.0"}}
    (snapshot / "config.json").write_text(json.dumps(about))
    (caches / "torch" / "checkpoints").mkdir(parents=True)
    torch.save({"a": torch.ones(2)}, caches / "torch" / "checkpoints" / "odd.pth")
    here = tmp_path / "here"
    here.mkdir()
    (here / "mobile_sam.pt").symlink_to(file)
    (here / "evil.pt").write_bytes(pickle.dumps(print))
    assert main(["weights", str(here), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = {Path(each["path"]).name: each for each in printed["found"]}
    assert found["mobile_sam.pt"]["model"] == "tiny_vit_5m_224"
    assert (found["model.safetensors"]["model"], found["model.safetensors"]["place"]) == ("resnet10t", "hub cache")
    assert "apache-2.0" in found["model.safetensors"]["licence"]
    assert found["odd.pth"]["model"] is None and not found["odd.pth"]["problem"]
    assert found["evil.pt"]["problem"]
    assert [each["name"] for each in printed["layouts"]] == [layout.name for layout in LAYOUTS]
    assert main(["weights", str(here)]) == 0
    text = capsys.readouterr().out
    assert "MobileSAM: mobile_sam.pt, for tiny_vit_5m_224 (294 of 294 tensors fit)" in text and "Apache-2.0" in text
    assert best_known(here) == here / "mobile_sam.pt"
    assert layout_of(snapshot / "model.safetensors").img_size == 176  # type: ignore[union-attr]


def test_no_weights_to_be_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_weights_here(tmp_path) == []
    with pytest.raises(VitletError, match=r"--init auto found no trained weights .* such as .* or mobile_sam\.pt"):
        best_known(tmp_path)
    assert main(["weights", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_smaller_windows_take_their_part_of_the_table(file: Path) -> None:
    whole = timm.create_model("tiny_vit_5m_224", num_classes=0).eval()
    fitted = timm.create_model("tiny_vit_5m_224", num_classes=0, **fitted_kwargs(MOBILE_SAM, (96, 96))).eval()
    load_weights(whole, file)
    assert len(load_weights(fitted, file).resampled) == 10
    large, small = (model.stages[2].blocks[0].attn for model in (whole, fitted))
    bias = large.attention_biases[:, large.attention_bias_idxs].unflatten(1, (14, 14)).unflatten(3, (14, 14))
    cut = bias[:, :6, :6, :6, :6].flatten(3).flatten(1, 2)  # of the tokens in the corner of the window
    assert torch.equal(small.attention_biases[:, small.attention_bias_idxs], cut)


@pytest.mark.parametrize(
    ("size", "windows"),
    [((96, 96), [7, 6, 6, 3]), ((128, 128), [7, 4, 8, 4]), ((64, 96), [7, 4, 2, 1]), ((224, 224), None)],
)
def test_windows_divide_the_grid(size: tuple[int, int], windows: list[int] | None) -> None:
    found = fitted_kwargs(MOBILE_SAM, size)
    if windows is None or 1 in windows:  # as usual, or nothing that divides
        assert found == {}
    else:
        assert found == {"window_sizes": windows}
    assert fitted_kwargs(EFFICIENTNET, size) == {}
    assert fitted_kwargs(MOBILE_SAM, (100, 100)) == {}


def test_frozen_features_are_those_of_an_earlier_stage(tmp_path: Path) -> None:
    source = mobile_sam(tmp_path / "sam.pt")
    arguments = frozen_kwargs(MOBILE_SAM, (224, 224))
    model = timm.create_model("tiny_vit_5m_224", num_classes=4, **arguments).eval()
    report = load_weights(model, tmp_path / "sam.pt")
    assert set(report.fresh) == {f"head.{name}" for name in ("norm.weight", "norm.bias", "fc.weight", "fc.bias")}
    images = torch.randn(1, 3, 224, 224)
    grid = source.forward_intermediates(images, intermediates_only=True)[2]  # type: ignore[operator]
    torch.testing.assert_close(model.forward_features(images), grid)
    assert frozen_kwargs(MOBILE_SAM, (96, 96))["window_sizes"] == [7, 6, 6]
    assert frozen_kwargs(EFFICIENTNET, (96, 96)) == {}
