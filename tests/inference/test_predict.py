"""Predictions: many files, several models, several views, calibrated; what is broken is said and passed over."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from builders.digits import write_digits
from vitlet.analysis.explain import Explainer
from vitlet.analysis.report.predictions import examine
from vitlet.analysis.report.record import read_run
from vitlet.cli import main
from vitlet.cli.answer_writers import as_csv, inert
from vitlet.cli.image_list import image_files
from vitlet.data.decode import read_image
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError
from vitlet.inference.calibrate import calibrate, fit_temperature
from vitlet.inference.ensemble import Answer, Ensemble, views
from vitlet.inference.predict import Predictor
from vitlet.training.files import checksum
from vitlet.training.run_folder import run_weights


@pytest.fixture
def image(shared_folder: Path) -> Path:
    return sorted((shared_folder / "test").rglob("*.png"))[0]


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_an_ensemble_is_the_mean_whatever_the_order_of_classes(small_runs: list[Path], image: Path) -> None:
    first, second = (Predictor.load(run, device="cpu") for run in small_runs[:2])
    alone = [each(each.preprocess(read_image(image, 3))[None])[0][0] for each in (first, second)]
    turned = Predictor(
        second.model, second.preprocess, second.classes[::-1], second.config, second.device, source=small_runs[1]
    )
    mirrored = torch.nn.Linear(3, 3, bias=False)
    mirrored.weight.data = torch.eye(3).flip(0)
    network = second.network
    turned.network = lambda batch: (mirrored(network(batch)[0]), network(batch)[1])  # type: ignore[assignment]
    for other in (second, turned):
        ensemble = Ensemble([first, other])
        found, embedding = ensemble([ensemble.decode(image.read_bytes(), "x")])
        torch.testing.assert_close(found[0], (alone[0] + alone[1]) / 2)
        assert embedding is None


def test_runs_of_other_classes_are_both_named(
    small_runs: list[Path], image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(small_runs[0]), str(small_runs[2]), str(image)]) == 2
    sentence = capsys.readouterr().err
    assert (
        f"{small_runs[0]} and {small_runs[2]} have different classes (3 and 2; 'digit 2' is only in the first)"
        in sentence
    )


def test_views_are_flips_and_corners() -> None:
    preprocess = Preprocess((14, 21), crop_pct=1.0, mean=[0.0] * 3, std=[1.0] * 3)
    picture = torch.randint(0, 256, (3, 16, 24), dtype=torch.uint8)  # the very size that corners are cut from
    (plain,) = views(picture, preprocess)
    torch.testing.assert_close(plain, preprocess(picture))
    flipped = views(picture, preprocess, "flip")
    torch.testing.assert_close(flipped[1], plain.flip(-1))
    corners = views(picture, preprocess, "crops")
    assert corners.shape == (5, 3, 14, 21)
    torch.testing.assert_close(corners[1], picture[:, :14, :21] / 255)
    torch.testing.assert_close(corners[4], picture[:, 2:, 3:] / 255)
    assert views(picture, preprocess, "all").shape == (10, 3, 14, 21)


@pytest.mark.parametrize("tta", ["flip", "crops", "all"])
def test_views_are_averaged(tta: str, small_runs: list[Path], image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = Predictor.load(small_runs[0], device="cpu")
    seen = views(read_image(image, 3), predictor.preprocess, tta)  # type: ignore[arg-type]
    wanted = predictor(seen)[0].mean(0).max()
    assert main(["predict", str(small_runs[0]), str(image), "--tta", tta, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)[0]["classes"][0]["probability"] == pytest.approx(float(wanted), abs=1e-6)
    assert ("trained without mirrored images" in captured.err) == (tta != "crops")


def test_files_folders_patterns_and_lists(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", classes=2, per_class=2)
    (data / ".hidden").mkdir()
    shutil.copy(data / "digit 0" / "000.png", data / ".hidden" / "x.png")
    (data / "notes.txt").write_text("no image")
    all_four = sorted(data.glob("digit */*.png"))
    assert image_files([str(data)]) == all_four
    others: list[Path] = []
    image_files([str(data)], others=others)
    assert others == [data / "notes.txt"]
    assert image_files([f"{data}/**/001.png"]) == [all_four[1], all_four[3]]
    assert image_files(["-"], [f"{all_four[2]}\n", "\n", f"{all_four[0]}\r\n"]) == [all_four[2], all_four[0]]
    odd = data / "a[1].png"
    shutil.copy(all_four[0], odd)
    assert image_files([str(odd)]) == [odd]
    (tmp_path / "empty").mkdir()
    for words, sentence in (
        ([str(tmp_path / "empty")], "contains no images"),
        ([f"{data}/*.jpg"], "no file matches"),
        (["-"], "the list is empty"),
        (["absent.png"], "no such image file: absent.png"),
    ):
        with pytest.raises(VitletError, match=sentence):
            image_files(words)


def test_broken_files_are_passed_over_and_the_exit_code_says_so(
    small_runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_digits(tmp_path / "data", classes=2, per_class=2)
    good = sorted(data.rglob("*.png"))
    (data / "digit 0" / "0005.png").write_bytes(good[0].read_bytes()[:60])
    (data / "digit 1" / "text.jpg").write_text("hello")
    target = tmp_path / "out.csv"
    words = [
        "predict",
        str(small_runs[0]),
        str(data),
        "-b",
        "2",
        "--format",
        "csv",
        "--output",
        str(target),
        "--topk",
        "2",
    ]
    assert main([*words, "--embed", str(tmp_path / "e.parquet")]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("skipped: cannot read the image") == 2
    assert "2 of 6 images could not be read" in captured.err
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [row["image"] for row in rows] == [str(path) for path in good]
    assert list(rows[0]) == ["image", "class", "probability", "class_2", "probability_2"]
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "e.parquet")
    assert table["image"].to_pylist() == [str(path) for path in good]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{path}\n" for path in good)))
    assert main(["predict", str(small_runs[0]), "-", "--format", "json", "--embed", str(tmp_path / "e.npy")]) == 0
    assert [each["image"] for each in said(capsys)] == [str(path) for path in good]
    rows_of_arrow = np.stack(table["embedding"].to_numpy(zero_copy_only=False))
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), rows_of_arrow, atol=1e-6)
    assert rows_of_arrow.shape == (4, 32)
    assert main(["predict", str(small_runs[0]), str(data / "digit 1" / "text.jpg")]) == 2
    assert "none of 1 images could be read" in capsys.readouterr().err


def test_bad_words_cost_nothing(
    small_runs: list[Path], image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(small_runs[0])
    for words, sentence in (
        ([run, str(image), "--embed", "x.txt"], "needs a name that ends in .npy or .parquet"),
        ([run, str(small_runs[1]), str(image), "--embed", "x.npy"], "--embed takes one RUN"),
        ([run, str(image), "--output", str(tmp_path / "absent" / "x.csv")], "cannot write"),
        ([run, str(small_runs[1])], "no image was given"),
        ([run, str(image), "-b", "0"], "batch size must be at least 1, got 0"),
    ):
        assert main(["predict", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_names_are_no_formulas() -> None:
    answers = [Answer("=cmd()|x.png", [{"class": "@sum", "probability": 0.5}], None)]
    row = next(csv.DictReader(io.StringIO(as_csv(answers))))
    assert row["image"] == "'=cmd()|x.png"
    assert row["class"] == "'@sum"
    assert inert("a=b") == "a=b"


def test_the_temperature_has_the_least_loss() -> None:
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(4000, 5, generator=draw)
    labels = torch.distributions.Categorical(logits=truth).sample()
    found = fit_temperature(truth * 3, labels)  # three times too sure
    losses = {step / 100: float(F.cross_entropy(truth * 3 / (step / 100), labels)) for step in range(200, 400)}
    assert found == pytest.approx(min(losses, key=lambda key: losses[key]), abs=0.011)
    with pytest.raises(VitletError, match="no temperature between"):
        fit_temperature(torch.eye(3) * 10, torch.arange(3))


def test_calibrated_probabilities(
    small_runs: list[Path], image: Path, tmp_path: Path, shared_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_runs[0], run)
    before = Predictor.load(run, device="cpu").network
    found = calibrate(run, device="cpu")
    assert found.fitted.loss_after <= found.fitted.loss_before
    assert found.tested is not None
    assert (found.fitted.images, found.tested.images) == (12, 12)
    assert main(["predict", str(run), str(image), "--json", "--topk", "1"]) == 0
    probability = said(capsys)[0]["classes"][0]["probability"]  # type: ignore[index]
    predictor = Predictor.load(run, device="cpu")
    assert predictor.temperature == pytest.approx(found.temperature)
    with torch.inference_mode():
        logits = before(predictor.preprocess(read_image(image, 3))[None])[0]
    assert probability == pytest.approx(float((logits / found.temperature).softmax(-1).max()), abs=1e-6)
    assert main(["calibrate", str(run), str(shared_folder / "test")]) == 0
    assert f"fitted on {shared_folder / 'test'}, 12 images: ECE" in capsys.readouterr().out
    shutil.copy(run / "last" / "model.safetensors", run / "best" / "model.safetensors")
    weights = bytearray((run / "best" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (run / "best" / "model.safetensors").write_bytes(weights)
    (note,) = Predictor.load(run, device="cpu").notes
    assert "was fitted for other weights" in note
    (run / "calibration.json").write_text('{"temperature": -1, "weights_sha256": ""}')
    with pytest.raises(VitletError, match="is not a calibration: a temperature of -1"):
        Predictor.load(run, device="cpu")


def test_a_run_that_is_not_finished_works_and_says_so(
    small_runs: list[Path], image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_runs[0], run)
    (run / "result.json").unlink()
    assert main(["predict", str(run), str(image)]) == 0
    assert "is not finished (2 of 2 epochs): these are its best weights so far" in capsys.readouterr().err


@pytest.fixture
def own_run(folder: Path, tmp_path: Path) -> Path:
    """A run on a folder that a test may change, with a file that is no image."""
    (folder / "digit 0" / "broken.png").write_text("no image")
    words = ["--img-size", "16", "--model-kwargs", "patch_size=4", "embed_dim=16", "depth=1", "num_heads=2"]
    words += ["--epochs", "1", "-b", "8", "--task", "none", "--val-fraction", "0.4", "--skip-unreadable"]
    assert main(["train", str(folder), *words, "--output", str(tmp_path / "own")]) == 0
    return tmp_path / "own"


def test_evaluation_knows_the_run_s_classes_and_images_again(
    own_run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured() -> dict[str, object]:
        capsys.readouterr()
        assert main(["evaluate", str(own_run), "--json"]) == 0
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    trained = json.loads((own_run / "result.json").read_text())["val"]
    before = measured()
    assert {key: before[key] for key in trained} == pytest.approx(trained)
    assert before["data"] == f"{folder} (val)"
    shutil.rmtree(folder / "digit 1")  # the last class is now the second of the folder, and still the run's third
    assert set(Predictor.load(own_run, device="cpu").images()[0].labels) == {0, 2}
    shutil.copy(folder / "digit 2" / "000.png", folder / "digit 2" / "another.png")
    assert "not the images that the run had" in str(measured()["data"])
    (folder / "digit 2").rename(folder / "digit 3")
    assert main(["evaluate", str(own_run)]) == 2
    assert "the class 'digit 3', which is not among the 3 classes of the run" in capsys.readouterr().err


def test_all_images_of_the_run_s_own_folder_are_said_to_be_seen(
    own_run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(own_run), str(folder)]) == 0
    assert "(all images, those that the run learned from among them): 24 images" in capsys.readouterr().out


def test_a_table_names_the_images_beside_it(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lists").mkdir()
    rows = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
    table = tmp_path / "lists" / "list.csv"
    table.write_text("\n".join(["path,label", *rows]))
    words = ["--img-size", "16", "--model-kwargs", "patch_size=4", "embed_dim=16", "depth=1", "num_heads=2"]
    words += ["--epochs", "1", "--task", "none", "--data-dir", str(folder), "--output", str(tmp_path / "run")]
    assert main(["train", str(table), *words]) == 0
    assert main(["evaluate", str(tmp_path / "run"), str(table)]) == 2
    assert "no such image file" in capsys.readouterr().err  # beside the list there are none
    assert main(["evaluate", str(tmp_path / "run"), str(table), "--data-dir", str(folder)]) == 0
    assert "24 images" in capsys.readouterr().out


def test_explanations_and_reports_are_calibrated_too(small_runs: list[Path], image: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_runs[0], run)
    plain = Explainer.load(run, device="cpu").file(image).guess
    written = {"temperature": 3.0, "weights_sha256": checksum(run_weights(run))}
    (run / "calibration.json").write_text(json.dumps(written), encoding="utf-8")
    predicted = Predictor.load(run, device="cpu").predict([image])[0]["classes"][0]
    explained = Explainer.load(run, device="cpu").file(image).guess
    assert plain is not None and explained is not None
    assert explained == (predicted["class"], pytest.approx(predicted["probability"], abs=1e-5))
    assert explained[1] < plain[1]
    found = examine(read_run(run, "run"), 0, most=100, device="cpu")
    assert found.predictions is not None
    place = [found.predictions.images.name(index) for index in found.predictions.indices].index(str(image))
    assert found.predictions.confidence[place] == pytest.approx(predicted["probability"], abs=1e-5)
    assert "Probabilities are calibrated: logits are divided by 3.000" in found.left_out[0]


def test_calibration_is_not_measured_on_what_it_was_fitted_on(
    small_runs: list[Path], shared_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_runs[0], run)
    found = calibrate(run, str(shared_folder), device="cpu")
    assert found.fitted.data == f"{shared_folder} (val)"
    assert found.tested is not None
    assert calibrate(run, str(shared_folder / "test"), device="cpu").tested is None
