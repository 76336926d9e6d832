"""An ensemble as one file: members of other sizes and normalisations, and the answers of the search itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from builders.runs import config
from vitlet.cli import main
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError
from vitlet.inference.export import export_run
from vitlet.inference.exported import Format
from vitlet.inference.mixture import Mixture, OwnInput
from vitlet.inference.predict import Predictor
from vitlet.training.loop import train
from vitlet.training.search_folder import SearchMember, SearchRecord

PROGRAMS = [
    *("safetensors", "torch"),
    *(
        pytest.param(form, marks=[pytest.mark.heavy, pytest.mark.skipif(not find_spec(module), reason="needs extras")])
        for form, module in (("onnx", "onnxscript"), ("openvino", "openvino"))
    ),
]


@pytest.fixture(scope="module")
def search(shared_folder: Path, small_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT of 16 px, and a ResNet of 32 px with another normalisation and crop."""
    root = tmp_path_factory.mktemp("search")
    shutil.copytree(small_runs[0], root / "members" / "1")
    small = {"channels": [8, 8, 16, 16], "layers": [1] * 4}
    more = {"model": "resnet_for_32px", "model_kwargs": small, "img_size": (32, 32), "crop": "resized", "epochs": 1}
    train(config(shared_folder, root / "members" / "2", **more))
    described = root / "members" / "2" / "best" / "config.json"
    found = json.loads(described.read_text())
    found["pretrained_cfg"] |= {"mean": [0.4, 0.45, 0.5], "std": [0.3, 0.25, 0.2]}
    described.write_text(json.dumps(found))
    members = tuple(SearchMember(f"members/{n}", "a model", {}, 0.0, 1.0, 50.0) for n in "12")
    weights = {"members/1": 0.75, "members/2": 0.25}
    test = {"count": 12, "top1": 50.0, "top5": 100.0, "balanced": 50.0, "loss": 1.0}
    record = SearchRecord({}, [], 1.0, 2, members=members, weights=weights, val_top1=50.0, test=test, done=True)
    (root / "search.json").write_text(json.dumps(asdict(record)))
    return root


def test_each_member_sees_its_own_images(search: Path, shared_folder: Path) -> None:
    mixed = Predictor.load(search, device="cpu")
    first, second = (Predictor.load(search / "members" / name, device="cpu") for name in "12")
    assert mixed.preprocess.size == (32, 32) and mixed.preprocess.crop_pct == 1.0
    assert mixed.preprocess.mean == first.preprocess.mean != second.preprocess.mean
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    own = OwnInput(mixed.preprocess, second.preprocess)(mixed.preprocess.normalize(pixels))
    assert own.shape == (2, 3, 32, 32)
    cut = pixels[:, :, 2:30, 2:30]  # 0.875 of the side, then at full size again
    wanted = torch.nn.functional.interpolate(cut.float(), (32, 32), mode="bilinear")
    torch.testing.assert_close(own, second.preprocess.normalize(wanted), atol=1e-4, rtol=1e-4)
    plain = Preprocess((16, 16), crop_pct=1.0, mean=[0.5], std=[0.5])
    batch = torch.randn(1, 1, 16, 16)
    assert torch.equal(OwnInput(plain, plain)(batch), batch)


def test_the_mean_is_of_probabilities(search: Path) -> None:
    mixture = Predictor.load(search, device="cpu").model
    assert isinstance(mixture, Mixture)
    batch = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        parts = [model(own(batch)).softmax(-1) for own, model in zip(mixture.inputs, mixture.models, strict=True)]
        found = mixture(batch).softmax(-1)
    torch.testing.assert_close(found, 0.75 * parts[0] + 0.25 * parts[1], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("form", PROGRAMS)
def test_an_ensemble_is_one_file_with_the_same_answers(
    form: Format, search: Path, shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / form
    assert main(["export", str(search), "--format", form, "--output", str(export)]) == 0
    assert "same first guess on 100%" in capsys.readouterr().out
    assert (export / {"onnx": "model.onnx", "openvino": "model.xml"}.get(form, "model.safetensors")).is_file()
    card = (export / "README.md").read_text()
    assert "`ensemble` of 0.75 x `vit_tiny_patch16_224`, 0.25 x `resnet_for_32px` (mean probabilities): 3" in card
    assert "| test | 12 |" in card
    answers = {}
    for place in (search, export):
        assert main(["evaluate", str(place), str(shared_folder / "test"), "--json"]) == 0
        scores = json.loads(capsys.readouterr().out)
        image = sorted((shared_folder / "test").rglob("*.png"))[5]
        assert main(["predict", str(place), str(image), "--json", "--topk", "3"]) == 0
        classes = json.loads(capsys.readouterr().out)[0]["classes"]
        probabilities = {each["class"]: each["probability"] for each in classes}
        answers[place] = {"top1": scores["top1"], "loss": scores["loss"], **probabilities}
    assert answers[export] == pytest.approx(answers[search], abs=1e-4)


def test_timm_holds_one_network_alone(search: Path, tmp_path: Path) -> None:
    with pytest.raises(VitletError, match=r"mean of 2 networks.*safetensors, torch, onnx or openvino.*members"):
        export_run(search, "timm", tmp_path / "export")
    assert not (tmp_path / "export").exists()
