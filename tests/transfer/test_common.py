"""What detection and segmentation share: backbones of every kind at any size, pyramids, starting from a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builders.shapes import write_masks
from vitlet.config import RunConfig
from vitlet.errors import VitletError
from vitlet.pictures import beside, free_name, make_folder
from vitlet.tokens.features import Needs
from vitlet.tokens.views import PlainView
from vitlet.training.loop import train
from vitlet.transfer.common.backbone import build, open_backbone
from vitlet.transfer.common.job import TransferJob
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.detection.job import DetectionJob
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.segmentation.job import SegmentationJob
from vitlet.transfer.segmentation.settings import SegmentConfig


@pytest.mark.parametrize(
    ("name", "arguments", "strides"),
    [
        ("swin_for_96px", {}, [4, 8, 16]),
        ("cvt_for_96px", {}, [4, 8, 16]),
        ("test_resnet", {}, [4, 8, 16, 32]),
        ("test_vit", {}, [4, 8, 16, 32]),
        ("test_vit", {"patch_size": 4}, [4, 8, 16, 32]),
        ("t2t_vit_7", {"embed_dim": 32, "num_heads": 2}, [4, 8, 16, 32]),
        ("cct_for_96px", {}, [4, 8, 16, 32]),
        ("mixer_s32_224", {}, None),  # takes one size alone
    ],
)
def test_maps_of_every_family_at_any_size(name: str, arguments: dict[str, Any], strides: list[int] | None) -> None:
    opened = build(name, arguments, (96, 96))
    levels = Levels(opened)
    assert (opened.fixed is None) == (strides is not None)
    if strides is not None:
        assert [level.stride for level in levels.levels] == strides
    for height, width in ((96, 96),) if strides is None else ((64, 96), (160, 128)):
        with torch.no_grad():
            grids = opened.backbone.eval()(PlainView()(torch.randn(1, 3, height, width)), Needs(every_grid=True)).every
            maps = levels([grid.tokens for grid in grids])
        for level, found in zip(levels.levels, maps, strict=True):
            assert found.shape == (1, level.channels, height // level.stride, width // level.stride)


def test_a_run_becomes_the_backbone(shared_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    train(
        RunConfig(
            data=str(shared_folder),
            model="vit_tiny_patch16_224",
            model_kwargs=small,
            img_size=(16, 16),
            epochs=1,
            batch_size=8,
            device="cpu",
            output=str(run),
        )
    )
    data = write_masks(tmp_path / "shapes")
    settings = SegmentConfig(
        data=str(data),
        backbone=str(run),
        img_size=(32, 64),
        decoder_channels=8,
        ignore_index=3,
        batch_size=2,
        device="cpu",
    )
    job = SegmentationJob.build(settings)
    learned = load_file(run / "best" / "model.safetensors")
    own = job.objective.backbone.model.state_dict()
    assert "weights loaded" in job.notes[0]
    assert {name for name in learned if not name.startswith("head")} == own.keys()
    assert all(torch.equal(tensor, learned[name]) for name, tensor in own.items())
    with pytest.raises(VitletError, match="a trained model with its own settings; leave out --pretrained"):
        open_backbone(SegmentConfig(backbone=str(run), model_kwargs={"depth": 3}), (32, 32))
    described = json.loads((run / "best" / "config.json").read_text())
    (run / "best" / "config.json").write_text(json.dumps({**described, "architecture": None}))
    with pytest.raises(VitletError, match=r"cannot determine the model of the weights"):
        open_backbone(settings, (32, 32))


@pytest.mark.parametrize(
    ("job", "library", "extra"),
    [
        (DetectionJob, "faster_coco_eval", "detection"),
        (SegmentationJob, "segmentation_models_pytorch.decoders.upernet.decoder", "segmentation"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    job: type[TransferJob], library: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SegmentConfig if job is SegmentationJob else DetectConfig
    data = write_masks(tmp_path / "shapes")
    monkeypatch.setitem(sys.modules, library, None)
    named = re.escape(f"{extra} needs {library.partition('.')[0]}: pip install 'vitlet[{extra}]'.")
    with pytest.raises(VitletError, match=named):
        job.build(settings(data=str(data), backbone="test_vit", device="cpu"))


def test_pictures_are_never_written_onto_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("own/1.png", "own/1-2.png", "own/2.jpg", "own/2.png", "other/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    taken = beside([Path("own/1.png"), Path("own/2.jpg")])
    for folder in (Path("own"), tmp_path / "own"):  # the same folder, said in two ways
        assert free_name(folder / "1.png", set(taken)) == folder / "1-3.png"
        assert free_name(folder / "2.png", set(taken)) == folder / "2-2.png"
    (tmp_path / "link").symlink_to(tmp_path / "own")
    assert free_name(Path("link/1.png"), set(taken)) == Path("link/1-3.png")
    names = [free_name(Path("other/1.png"), taken).name for _ in range(2)]
    assert names == ["1.png", "1-2.png"]  # pictures of before are replaced
    with pytest.raises(VitletError, match=r"own/2.jpg cannot be a folder of pictures: it is a file. Choose another"):
        make_folder(Path("own/2.jpg"))


@pytest.mark.parametrize("command", ["detect", "segment"])
def test_help_answers_without_torch(command: str, tmp_path: Path) -> None:
    code = (
        "import sys; from vitlet.cli import main\ntry: main(sys.argv[1:])\nfinally: assert 'torch' not in sys.modules"
    )
    for words, expected in ((["train", "--help"], "--backbone"), (["--help"], "train|evaluate|predict")):
        line = [sys.executable, "-c", code, command, *words]
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
        assert "--mixup" not in done.stdout
