"""Exports: the same answers as the model, from files that are checked and cannot run anything."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors import safe_open

import vitlet.inference.export
from vitlet.cli import main
from vitlet.data.decode import read_image
from vitlet.errors import VitletError
from vitlet.inference.export import Parity, export_run
from vitlet.inference.exported import Format, read_export
from vitlet.inference.predict import Predictor
from vitlet.training.files import checksum


@pytest.fixture
def image(shared_folder: Path) -> Path:
    return sorted((shared_folder / "test").rglob("*.png"))[5]


def same_answers(run: Path, export: Path, image: Path, tolerance: float = 1e-5) -> None:
    """Probabilities and embeddings, from pixels that are equal."""
    own, other = Predictor.load(run, device="cpu"), Predictor.load(export, device="cpu")
    seen, again = (each.preprocess(read_image(image, 3))[None] for each in (own, other))
    assert torch.equal(seen, again)
    assert own.classes == other.classes
    for mine, theirs in zip(own(seen), other(seen), strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=0)


@pytest.fixture(scope="module")
def exports(small_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Parity]]:
    """The formats that need no extra."""
    root = tmp_path_factory.mktemp("exports")
    forms: tuple[Format, ...] = ("safetensors", "timm", "torch")
    return {form: export_run(small_runs[0], form, root / form, licence="cc-by-4.0") for form in forms}


@pytest.mark.parametrize("form", ["safetensors", "timm", "torch"])
def test_the_same_answers(
    form: str, small_runs: list[Path], exports: dict[str, tuple[Path, Parity]], image: Path
) -> None:
    folder, parity = exports[form]
    assert parity.largest <= 1e-4
    assert parity.same == 1
    assert "images of" in parity.of
    same_answers(small_runs[0], folder, image)
    header = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert header["license"] == "cc-by-4.0"
    assert header["model-index"][0]["results"][0]["metrics"][0]["name"] == "top-1, test"
    card = (folder / "README.md").read_text()
    for words in ("## Data", "drloc (weight 0.1)", "## Intended use", "95 % interval", "`digit 1`", "0.5, 0.5, 0.5"):
        assert words in card
    assert str(small_runs[0].parent) not in card  # whoever gets it need not know where it lay


def test_the_layout_of_timm_and_the_hub(small_runs: list[Path], image: Path, tmp_path: Path) -> None:
    folder, _ = export_run(small_runs[0], "timm", tmp_path / "export")
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    own = Predictor.load(small_runs[0], device="cpu")
    seen = own.preprocess(read_image(image, 3))[None]
    with torch.inference_mode():
        torch.testing.assert_close(model(seen), own.model(seen))
    assert timm.data.resolve_model_data_config(model)["input_size"] == [3, 16, 16]


def test_a_file_of_weights_describes_itself(small_runs: list[Path], tmp_path: Path) -> None:
    folder, parity = export_run(small_runs[0], "safetensors", tmp_path / "export", dtype="bfloat16")
    assert 0 < parity.largest < 0.1
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["vitlet"])
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert about["label_names"] == ["digit 0", "digit 1", "digit 2"]
    assert about["preprocessing"]["input_size"] == [3, 16, 16]
    assert Predictor.load(folder, device="cpu").model(torch.zeros(1, 3, 16, 16)).dtype == torch.float32


def test_the_temperature_travels(small_runs: list[Path], image: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_runs[0], run)
    weights = run / "best" / "model.safetensors"
    (run / "calibration.json").write_text(json.dumps({"temperature": 2.5, "weights_sha256": checksum(weights)}))
    folder, _ = export_run(run, "safetensors", tmp_path / "export")
    assert read_export(folder).temperature == 2.5
    assert "softmax of logits / 2.5" in (folder / "README.md").read_text()
    same_answers(run, folder, image)


def test_an_export_that_differs_is_refused(
    small_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vitlet.inference.export, "_compare", lambda *_: Parity(2, "images", 2e-4, 1.0))
    with pytest.raises(VitletError, match=r"differs from the model: largest difference of a logit 2\.0e-04"):
        export_run(small_runs[0], "safetensors", tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported(small_runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(small_runs[0])
    folder, _ = export_run(small_runs[0], "safetensors", tmp_path / "export")
    for words, sentence in (
        (["absent", "--format", "timm"], "no such run folder"),
        ([str(tmp_path), "--format", "timm"], "is not a run folder"),
        ([run, "--format", "onnx", "--dtype", "bfloat16"], "onnxruntime has no bfloat16 on a CPU"),
        ([run, "--format", "timm", "--output", str(folder)], "already exists"),
        ([str(folder), "--format", "timm"], "is an export itself"),
        ([run, "--format", "timm", "--license", "my own"], "needs an identifier"),
        ([run, "--format", "tflite"], "invalid choice: 'tflite'"),
    ):
        assert main(["export", *words]) == 2
        assert sentence in capsys.readouterr().err
    for words, sentence in (
        (["evaluate", str(folder)], "is an export without data"),
        (["calibrate", str(folder)], "is an export: calibrate the run"),
    ):
        assert main(words) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("form", "module"), [("onnx", "onnxscript"), ("openvino", "openvino")])
def test_a_missing_extra_is_named(
    form: str,
    module: str,
    small_runs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("onnx", "onnxruntime", module):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", str(small_runs[0]), "--format", form, "--output", str(tmp_path / "x")]) == 2
    assert f"pip install 'vitlet[{form}]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Bomb:
    """A pickle that leaves a file behind when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_hostile_and_damaged_exports(
    small_runs: list[Path], exports: dict[str, tuple[Path, Parity]], image: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    shutil.copytree(exports["torch"][0], folder)
    program = folder / "model.pt2"
    program.write_bytes(program.read_bytes()[:-1])
    with pytest.raises(VitletError, match=r"model\.pt2 is not as it was exported"):
        Predictor.load(folder)
    program.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    manifest = json.loads((folder / "vitlet.json").read_text())
    manifest["sha256"]["model.pt2"] = checksum(program)
    (folder / "vitlet.json").write_text(json.dumps(manifest))
    same_answers(small_runs[0], folder, image)  # from the weights beside it: a .pt2 is never opened
    assert not (tmp_path / "ran").exists()
    for change, sentence in (
        ({"format": "pickle"}, "its format is 'pickle'"),
        ({"label_names": None}, "not the manifest of an export"),
        ({"preprocessing": {}}, "not the manifest of an export: 'input_size'"),
        ({"architecture": "no_such_net"}, "unknown model 'no_such_net'"),
        ({"model_args": {"checkpoint_path": "/x"}}, "cannot hold 'checkpoint_path'"),
        ({"label_names": ["one", "two"]}, "cannot load the model"),
        ({"sha256": {"../../absent": "0"}}, "absent is missing"),
        ({"temperature": 0}, "temperature must be finite and greater than 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be finite and greater than 0, got nan"),
        ({"temperature": float("inf")}, "temperature must be finite and greater than 0, got inf"),
        ({"temperature": 10**400}, "not the manifest of an export"),
        *(
            ({"preprocessing": {**manifest["preprocessing"], **change}}, sentence)
            for change, sentence in (
                ({"crop_pct": 0}, "crop_pct must be greater than 0 and at most 1, got 0"),
                ({"crop_pct": "all"}, "crop_pct must be greater than 0 and at most 1, got 'all'"),
                ({"input_size": [3, 16]}, r"input_size must be channels, height and width, got \[3, 16\]"),
                ({"input_size": [3, 16, 0]}, r"input_size must be channels, height and width, got \[3, 16, 0\]"),
                ({"input_size": [3, 10**9, 16]}, "at most 8192 pixels a side are taken"),
                ({"input_size": [3, 16, 16.5]}, r"input_size must be channels, height and width, got \[3, 16, 16.5\]"),
                ({"input_size": [3, 15, 16]}, "cannot load the model"),
                ({"mean": [0.5]}, r"mean is \[0.5\]; it needs a number for each of 3 channels"),
                ({"std": [0.5, 0.5, "x"]}, "std is .*; it needs a number for each of 3 channels"),
                ({"std": [0.5, 0.5, 0]}, "std must be greater than 0, got .*"),
            )
        ),
    ):
        (folder / "vitlet.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(VitletError, match=sentence):
            Predictor.load(folder)
    (folder / "vitlet.json").write_text("{")
    with pytest.raises(VitletError, match="not the manifest of an export"):
        Predictor.load(folder)


extras = pytest.mark.skipif(  # looked for without importing it: a plain import of OpenVINO reports to its makers
    find_spec("openvino") is None or find_spec("onnxscript") is None, reason="needs the extras 'onnx' and 'openvino'"
)
SMALL = {
    "vit": {"depth": 1},
    "swin": {"depths": [1, 2], "num_heads": [3, 6]},
    "cvt": {"depths": [1, 1, 1]},
    "t2t": {"depth": 1},
    "cct": {"depth": 1},
    "resnet": {"layers": [1, 1, 1, 1]},
    "hybrid_s": {"depth": 1},
}


@pytest.mark.heavy
@extras
@pytest.mark.parametrize("kind", SMALL)
def test_every_kind_of_network_to_every_program(
    kind: str, shared_folder: Path, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = [f"{key}={json.dumps(value)}" for key, value in SMALL[kind].items()]
    run = tmp_path / "run"
    words = ["train", str(shared_folder), "--model", f"{kind}_for_32px", "--model-kwargs", *kwargs, "--epochs", "1"]
    assert main([*words, "--hflip", "0", "--output", str(run)]) == 0
    for form in ("torch", "onnx", "openvino"):
        assert main(["export", str(run), "--format", form]) == 0
        assert "same first guess on 100% of 12 images" in capsys.readouterr().out
        same_answers(run, run / "export" / form, image)
        assert main(["predict", str(run / "export" / form), str(shared_folder / "test"), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)) == 12


@pytest.mark.heavy
@extras
@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_as_many_names_as_logits(form: Format, small_runs: list[Path], tmp_path: Path) -> None:
    folder, _ = export_run(small_runs[0], form, tmp_path / "export")
    manifest = json.loads((folder / "vitlet.json").read_text())
    (folder / "vitlet.json").write_text(json.dumps({**manifest, "label_names": ["one", "two"]}))
    with pytest.raises(VitletError, match=r"it has 3 logits, and vitlet.json names 2 classes"):
        Predictor.load(folder)


@pytest.mark.heavy
@extras
def test_bfloat16(small_runs: list[Path], image: Path, tmp_path: Path) -> None:
    for form in ("torch", "openvino"):
        folder, parity = export_run(small_runs[0], form, tmp_path / form, dtype="bfloat16")  # type: ignore[arg-type]
        assert 0 < parity.largest < 0.1
        same_answers(small_runs[0], folder, image, tolerance=0.1)
    assert Predictor.load(tmp_path / "torch").network(torch.zeros(1, 3, 16, 16))[0].dtype == torch.float32


@pytest.mark.heavy
@extras
def test_openvino_sends_nothing_home(tmp_path: Path) -> None:
    code = (
        "import sys; from vitlet.inference.runtimes import import_openvino; import_openvino().Core();"
        "print(any(name.startswith('openvino_telemetry.') for name in sys.modules))"
    )
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert not (tmp_path / "intel").exists()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """A model hub on this machine that serves the files of a folder as the repository me/mine."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            path = tmp_path / "export" / self.path.split("?")[0].rpartition("/")[2]
            found = path.is_file() and "/me/mine/resolve/main/" in self.path
            self.send_response(200 if found else 404)
            content = path.read_bytes() if found else b""
            for name, value in {
                "Content-Length": str(len(content)),
                "ETag": f'"{checksum(path) if found else ""}"',
                "X-Repo-Commit": "0" * 40,
            }.items():
                self.send_header(name, value)
            if not found:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.heavy
def test_the_hub_gives_the_same_network(small_runs: list[Path], image: Path, tmp_path: Path, hub: str) -> None:
    export_run(small_runs[0], "timm", tmp_path / "export")
    own = Predictor.load(small_runs[0], device="cpu")
    seen = own.preprocess(read_image(image, 3))[None]
    torch.save(seen, tmp_path / "seen.pt")
    code = (
        "import timm, torch, sys; torch.set_num_threads(1);"
        "model = timm.create_model('hf-hub:me/mine', pretrained=True).eval();"
        "torch.save(model(torch.load(sys.argv[1])).detach(), sys.argv[1])"
    )
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "seen.pt")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    with torch.inference_mode():
        torch.testing.assert_close(torch.load(tmp_path / "seen.pt"), own.model(seen))
