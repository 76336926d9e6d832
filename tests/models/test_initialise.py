"""Fine-tuning: weights from every kind of file, fitted to other sizes and channels; bad ones refused in a sentence."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models import adapt_input_conv
from torch import Tensor, nn

import vitlet.models  # noqa: F401, registers them
from builders.runs import VIT, config
from vitlet.cli import main
from vitlet.errors import VitletError
from vitlet.models.initialise import load_weights
from vitlet.training.build import find_weights
from vitlet.training.jobs import build_job
from vitlet.training.loop import train

SWIN = {"patch_size": 2, "embed_dim": 12, "depths": (1, 1), "num_heads": (1, 2)}


def vit(size: int | tuple[int, int] = 16, channels: int = 3, **more: Any) -> Any:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=size, in_chans=channels, **{**VIT, "num_classes": 5, **more}
    )


def saved(model: nn.Module, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".safetensors":
        save_file(model.state_dict(), file)
    else:
        torch.save(model.state_dict(), file)
    return file


def same(model: nn.Module, source: nn.Module, *but: str) -> bool:
    """Whether all weights are equal, but those whose names begin so."""
    weights = source.state_dict()
    return all(
        torch.equal(one, weights[name])
        for name, one in model.state_dict().items()
        if not name.startswith(("head", *but))
    )


@pytest.mark.parametrize("end", [".safetensors", ".pth", ".pt", ".bin", ".pth.tar"])
def test_every_kind_of_file(end: str, tmp_path: Path) -> None:
    source, model = vit(), vit(num_classes=3)
    report = load_weights(model, find_weights(saved(source, tmp_path / f"weights{end}")))
    assert same(model, source)
    assert report.fresh == ("head.weight", "head.bias")
    said = f"{len(report.loaded)} weights loaded, 2 fresh (head.weight, head.bias), 2 unused (head."
    assert str(report).startswith(said)
    assert len(report.loaded) == len(model.state_dict()) - 2


@pytest.mark.parametrize("key", ["state_dict", "model", "state_dict_ema", "module"])
def test_weights_among_other_things(key: str, tmp_path: Path) -> None:
    source, other, model = vit(), vit(), vit()
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in source.state_dict().items()}
    settings = argparse.Namespace(lr=0.1)
    plain = (
        {} if key == "state_dict" else {"state_dict": other.state_dict()} if key == "state_dict_ema" else {"epoch": 3}
    )
    torch.save({key: wrapped, "args": settings, **plain}, tmp_path / "all.pth")
    load_weights(model, tmp_path / "all.pth", keep_classifier=True)
    assert same(model, source) and torch.equal(model.head.weight, source.head.weight)


def test_folders(folder: Path, tmp_path: Path) -> None:
    source = vit()
    saved(source, tmp_path / "exported" / "model.safetensors")
    saved(source, tmp_path / "older" / "pytorch_model.bin")
    train(config(folder, tmp_path / "run", epochs=1))
    for place in ("exported", "older"):
        assert same(build_job(config(folder, tmp_path / "x", init=str(tmp_path / place))).model, source)
    trained = timm.create_model(f"local-dir:{tmp_path / 'run' / 'best'}", pretrained=True)
    prepared = build_job(config(folder, tmp_path / "x", init=str(tmp_path / "run")))
    assert same(prepared.model, trained)  # positions too: they were learned
    assert "2 fresh (head.weight, head.bias)" in prepared.notes[0]


@pytest.mark.parametrize("size", [(24, 24), (16, 32)])
def test_positions_are_resampled(size: tuple[int, int], tmp_path: Path) -> None:
    source, model = vit(), vit(size)
    report = load_weights(model, saved(source, tmp_path / "weights.pth"))
    assert report.resampled == ("pos_embed",) and same(model, source, "pos_embed")
    grid = [side // 4 for side in size]
    torch.testing.assert_close(model.pos_embed.data, resample_abs_pos_embed(source.pos_embed.data, grid))


@pytest.mark.parametrize("size", [(32, 16), (16, 16), (16, 32)])
def test_positions_of_a_grid_that_is_not_square(size: tuple[int, int], tmp_path: Path) -> None:
    source, model = vit((16, 32)), vit(size)
    file = saved(source, tmp_path / "weights.safetensors")
    if size == (16, 16):
        with pytest.raises(VitletError, match=r"pos_embed is \(1, 33, 36\), needed \(1, 17, 36\).*--img-size"):
            load_weights(model, file)
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {"input_size": [3, 16, 32]}}))
    report = load_weights(model, file)
    assert report.resampled == (() if size == (16, 32) else ("pos_embed",))  # as many tokens, elsewhere
    grid = [side // 4 for side in size]
    expected = resample_abs_pos_embed(source.pos_embed.data, grid, [4, 8])
    torch.testing.assert_close(model.pos_embed.data, expected)


def test_patches_of_another_size_are_resampled(tmp_path: Path) -> None:
    source, model = vit(), vit(channels=1, patch_size=2)
    report = load_weights(model, saved(source, tmp_path / "weights.pth"))
    assert report.resampled == ("pos_embed", "patch_embed.proj.weight")
    assert report.adapted == ("patch_embed.proj.weight",)


@pytest.mark.parametrize("window", [2, 8])
def test_tables_of_relative_positions_are_resampled(window: int, tmp_path: Path) -> None:
    name = "swin_tiny_patch4_window7_224"
    source = timm.create_model(name, img_size=16, num_classes=0, window_size=4, **SWIN)
    model = timm.create_model(name, img_size=32, num_classes=3, window_size=window, **SWIN)
    report = load_weights(model, saved(source, tmp_path / "weights.safetensors"))
    assert [one.rpartition(".")[2] for one in report.resampled] == ["relative_position_bias_table"] * 2
    assert same(model, source, *report.resampled, "layers.0.blocks.0.attn_mask")
    assert report.fresh == ("head.fc.weight", "head.fc.bias")


@pytest.mark.parametrize(("before", "after"), [(3, 1), (3, 5), (1, 3), (4, 3)])
def test_stems_are_adapted(before: int, after: int, tmp_path: Path) -> None:
    source, model = vit(channels=before), vit(channels=after)
    report = load_weights(model, saved(source, tmp_path / "weights.pth"))
    assert report.adapted == ("patch_embed.proj.weight",)
    stem, known = model.patch_embed.proj.weight.data, source.patch_embed.proj.weight.data
    if before == 3:
        torch.testing.assert_close(stem, adapt_input_conv(after, known))
    else:  # equal channels give what they gave
        repeated = known.repeat(1, after, 1, 1)[:, :after] * before / after
        torch.testing.assert_close(stem, repeated)


def test_stems_without_a_convolution_are_adapted(tmp_path: Path) -> None:
    narrow = {"embed_dim": 48, "depth": 1, "num_heads": 3, "token_dim": 16}
    source, model = (timm.create_model("t2t_for_32px", in_chans=channels, **narrow).eval() for channels in (3, 1))
    report = load_weights(model, saved(source, tmp_path / "weights.pth"), keep_classifier=True)
    assert report.adapted and all("attention1" in name for name in report.adapted)
    images = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(model(images), source(images.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-3)


def efficientnet_names(weights: dict[str, Tensor], stages: list[int]) -> dict[str, Tensor]:
    """timm's names -> those of efficientnet_pytorch, the other way round than the code under test."""
    outer = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    expanding = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1"}
    expanding |= {"conv_pwl": "_project_conv", "bn3": "_bn2"}
    first = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    renamed = {}
    for name, tensor in weights.items():
        parts = name.split(".")
        if parts[0] != "blocks":
            renamed[".".join([outer[parts[0]], *parts[1:]])] = tensor
            continue
        number = sum(stages[: int(parts[1])]) + int(parts[2])
        table = first if number == 0 else expanding
        renamed[".".join(["_blocks", str(number), table[parts[3]], *parts[4:]])] = tensor
    return renamed


def test_names_of_released_efficientnets(tmp_path: Path) -> None:
    source, model = (timm.create_model("tf_efficientnet_lite0", num_classes=classes) for classes in (9, 4))
    weights = efficientnet_names(source.state_dict(), [len(stage) for stage in source.blocks])
    assert "_blocks.15._expand_conv.weight" in weights
    torch.save(weights, tmp_path / "released.pth")
    report = load_weights(model, tmp_path / "released.pth")
    assert report.fresh == report.unused == ("classifier.weight", "classifier.bias")
    assert same(model, source, "classifier")


def test_names_that_a_filter_of_timm_knows(tmp_path: Path) -> None:
    source, model = (timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8)) for _ in range(2))
    original = {}
    for name, tensor in source.state_dict().items():
        name = name.replace("stem.", "downsample_layers.0.").replace("head.norm.", "norm.").replace("head.fc.", "head.")
        name = name.replace(".blocks.", ".").replace("conv_dw.", "dwconv.").replace("mlp.fc", "pwconv")
        if ".downsample." in name:
            number, _, rest = name.removeprefix("stages.").partition(".downsample.")
            name = f"downsample_layers.{number}.{rest}"
        original[name] = tensor
    assert not original.keys() & source.state_dict().keys() - {"stages.0.0.gamma"}
    torch.save({"model": original}, tmp_path / "released.pth")
    load_weights(model, tmp_path / "released.pth", keep_classifier=True)
    assert all(torch.equal(one, source.state_dict()[name]) for name, one in model.state_dict().items())


def test_old_files_without_counters(tmp_path: Path) -> None:
    source, model = timm.create_model("resnet10t"), timm.create_model("resnet10t")
    weights = {name: one for name, one in source.state_dict().items() if not name.endswith("num_batches_tracked")}
    save_file(weights, tmp_path / "old.safetensors")
    assert len(load_weights(model, tmp_path / "old.safetensors").loaded) == len(weights) - 2


def refused(model: nn.Module, file: Path, words: str) -> None:
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with pytest.raises(VitletError, match=words) as caught:
        load_weights(model, file)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())  # nothing half loaded


def test_weights_of_another_network(tmp_path: Path) -> None:
    file = saved(timm.create_model("resnet10t"), tmp_path / "weights.safetensors")
    refused(vit(), file, r"of another model: .* \(.*\) is unknown; .* and \d+ more\. Use the same --model")
    about = {"architecture": "resnet10t", "model_args": {"in_chans": 3, "stem_width": 32}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    refused(vit(), file, r"They are of --model resnet10t --model-kwargs stem_width=32\.$")
    deeper = saved(vit(depth=3), tmp_path / "deeper" / "weights.pth")
    refused(vit(), deeper, r"blocks\.2\.norm1\.weight \(36,\) is unknown")
    refused(vit(depth=4), deeper, r"blocks\.3\.norm1\.weight is missing")
    refused(vit(embed_dim=24), deeper, r"cls_token is \(1, 1, 36\), needed \(1, 1, 24\)")


def test_channels_that_cannot_be_adapted(tmp_path: Path) -> None:
    model = vit(channels=1)
    model.pretrained_cfg["first_conv"] = None
    words = r"patch_embed\.proj\.weight is \(36, 3, 4, 4\), needed \(36, 1, 4, 4\)\. .*--in-chans 3"
    refused(model, saved(vit(), tmp_path / "weights.pth"), words)


@pytest.mark.parametrize("end", [".safetensors", ".pth"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_files(end: str, share: float, tmp_path: Path) -> None:
    file = saved(vit(), tmp_path / f"weights{end}")
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    refused(vit(), file, r"cannot read the weights .*truncated.* again\.$")


def test_tampered_files(tmp_path: Path) -> None:
    file = saved(vit(), tmp_path / "weights.pth")
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        member = next(one for one in archive.infolist() if "/data/" in one.filename)
    content[member.header_offset + 200] ^= 1
    file.write_bytes(content)
    refused(vit(), file, r"damaged: the checksum of .*/data/\d+ is wrong")
    model = vit()
    model.norm.bias.data[3] = float("nan")
    refused(vit(), saved(model, tmp_path / "weights.safetensors"), r"norm\.bias holds 1 values that are not finite")
    header = (tmp_path / "weights.safetensors").read_bytes().replace(b'"F32"', b'"F64"', 1)
    (tmp_path / "weights.safetensors").write_bytes(header)
    refused(vit(), tmp_path / "weights.safetensors", "cannot read the weights")


class Evil:
    """Makes a folder when it is unpickled by who trusts it."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("pwned",))


@pytest.mark.parametrize("name", ["evil.pth", "old.pth", "evil.bin"])
def test_a_pickle_runs_nothing(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "evil.bin":
        Path(name).write_bytes(pickle.dumps(Evil(), protocol=2))
    else:
        torch.save(
            {"state_dict": vit().state_dict(), "x": Evil()}, name, _use_new_zipfile_serialization=name != "old.pth"
        )
    words = ["train", str(folder), "--init", name, "--img-size", "16", "--device", "cpu", "--output", "run"]
    assert main([*words, "--model-kwargs", *(f"{key}={value}" for key, value in VIT.items())]) == 2
    said = capsys.readouterr().err
    assert "hold more than tensors: found posix.mkdir, which was not run" in said and "Traceback" not in said
    assert not Path("pwned").exists() and not Path("run").exists()


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "weights.txt").write_text("no")
    refused(vit(), tmp_path / "weights.txt", r"ends in \.txt, needed \.safetensors, \.pth, .* or \.ckpt")
    torch.save({"epoch": 3}, tmp_path / "weights.pth")
    refused(vit(), tmp_path / "weights.pth", r"holds no weights: found the keys epoch, needed tensors by name")
    torch.save([1, 2], tmp_path / "weights.pth")
    refused(vit(), tmp_path / "weights.pth", r"holds no weights: found list")


def test_two_sources_of_weights_are_one_too_many(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VitletError, match="leave one of them out"):
        config(folder, tmp_path / "x", init="x", pretrained=True)
