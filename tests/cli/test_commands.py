"""The command as a person meets it: quick help, one sentence for bad input, exit code 2, nothing written."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from builders.digits import write_digits
from builders.runs import QUICK
from vitlet.cli import main
from vitlet.training.run_folder import read_config


@pytest.mark.parametrize(
    ("words", "code", "stream", "expected"),
    [
        (["--help"], 0, "stdout", "train [DATA]"),
        (["train", "--help"], 0, "stdout", "--help-task"),
        (["train", "--help-all"], 0, "stdout", "--checkpoint-hist"),
        (["train", "--help-task", "drloc"], 0, "stdout", "--drloc.variant"),
        (["evaluate", "--help"], 0, "stdout", "RUN"),
        (["tasks"], 0, "stdout", "--drloc.pairs"),
        (["train", "--epoch", "3"], 2, "stderr", "Did you mean '--epochs'"),
        (["train", "--task", "drlok=1"], 2, "stderr", "unknown task 'drlok'. Did you mean 'drloc'"),
        (["train", "--task", "drloc=-1"], 2, "stderr", "must be at least 0, got -1"),
        (["tarin"], 2, "stderr", "Did you mean 'train'"),
        (["train", "cifar11"], 2, "stderr", "Did you mean 'cifar10'"),
        (["train", "--recipe", "drloc_table4/cifar10/swin_t/drloc"], 2, "stderr", "found no cifar10 in data"),
        (["train", "digits", "--init", "absent"], 2, "stderr", "no such run folder or file of weights: absent"),
    ],
)
def test_answers_at_once_without_torch(words: list[str], code: int, stream: str, expected: str, tmp_path: Path) -> None:
    command = (
        "import sys; from vitlet.cli import main; code = main(sys.argv[1:]);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    timed = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", command, *words], capture_output=True, text=True, cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        timed.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert done.returncode == code, done.stderr
        assert expected in getattr(done, stream)
        assert "Traceback" not in done.stderr
    assert min(timed) < 0.5  # of CPU time, so that a busy machine does not fail the test
    assert not list(tmp_path.iterdir())


def test_train_evaluate_predict(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert main(["train", str(folder), *QUICK, "--task", "drloc=0.5", "--drloc.hidden", "16", "--output", run]) == 0
    printed = capsys.readouterr().out
    assert "epoch 1/1" in printed
    assert "left" in printed
    assert f"run: {run}" in printed
    assert main(["evaluate", run, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["count"] == 3
    image = str(next(folder.rglob("*.png")))
    assert main(["predict", run, image, "--json", "--topk", "2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer[0]["classes"]) == 2
    assert main(["predict", run, image]) == 0
    assert "digit" in capsys.readouterr().out
    config = str(tmp_path / "run" / "config.yaml")
    assert main(["train", "-c", config, "--epochs", "2", "--output", str(tmp_path / "again")]) == 0
    assert "epoch 2/2" in capsys.readouterr().out
    assert main(["train", "--resume", str(tmp_path / "again")]) == 0


def test_labels_alone_need_no_grid(folder: Path, tmp_path: Path) -> None:
    words = ["train", str(folder), *QUICK, "--img-size", "4", "--output", str(tmp_path / "run")]
    assert main([*words, "--task", "none"]) == 0  # one token of 4 x 4 pixels


def test_models_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "swin_t*"]) == 0
    assert capsys.readouterr().out.split() == ["swin_tiny_patch4_window7_224"]
    assert main(["models", "resnet18"]) == 0
    assert "resnet18d" in capsys.readouterr().out
    assert main(["models", "--attention"]) == 0
    with_maps = capsys.readouterr().out.split()
    assert len(with_maps) > 300
    assert "vit_tiny_patch16_224" in with_maps
    assert "resnet18" not in with_maps
    assert main(["models", "resnt50"]) == 2
    assert "Did you mean 'resnet50'" in capsys.readouterr().err


def broken_folder(root: Path) -> Path:
    write_digits(root)
    (root / "digit 1" / "bad.png").write_bytes(b"no image")
    return root


def one_class(root: Path) -> Path:
    return write_digits(root, classes=1)


def empty(root: Path) -> Path:
    root.mkdir()
    return root


def loose_images(root: Path) -> Path:
    root.mkdir()
    Image.new("RGB", (8, 8)).save(root / "a.png")
    return root


def empty_classes(root: Path) -> Path:
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
    return root


def single_images(root: Path) -> Path:
    return write_digits(root, per_class=1)


def strange_test_class(root: Path) -> Path:
    write_digits(root / "train")
    write_digits(root / "test", classes=4, per_class=1)
    return root


@pytest.mark.parametrize(
    ("make", "flags", "sentence"),
    [
        (lambda root: root, [], "no such folder"),
        (empty, [], "no class folders and no images"),
        (loose_images, [], "1 images and no class folders"),
        (empty_classes, [], "no class folders and no images"),
        (one_class, [], "a classifier needs at least two"),
        (single_images, [], "no image could be held out"),
        (broken_folder, [], "bad.png"),
        (strange_test_class, [], "its label would exceed the outputs of the classifier"),
        (write_digits, ["--model", "vit_tiny_patch16_22"], "Did you mean 'vit_tiny_patch16_224'"),
        (write_digits, ["--img-size", "2"], "2x2 pixels"),
        (write_digits, ["--task", "drloc=0.5", "--img-size", "4"], "at least 2x2"),
        (write_digits, ["--num-classes", "2"], "labels would exceed the outputs"),
        (write_digits, ["--device", "cuda"], "is not available here"),
        (write_digits, ["--device", "toaster"], "unknown device"),
        (write_digits, ["--model-kwargs", "deepth=3"], "deepth"),
        (write_digits, ["--model", "vgg11", "--model-kwargs", "drop_rate=0"], "vitlet models"),
        (write_digits, ["--task", "drloc=0.5", "--drloc.pool", "2x2", "--img-size", "8"], "Use pool 'none'"),
        (write_digits, ["--task", "drloc=0.5", "--drloc.schedule", "ramp", "--drloc.warmup-epochs", "9"], "warm-up"),
    ],
)
def test_bad_input_is_one_sentence(
    make: object,
    flags: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = make(tmp_path / "data")  # type: ignore[operator]
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert main(["train", str(data), *QUICK, *flags]) == 2
    found = capsys.readouterr().err
    assert sentence in found
    assert found.startswith("vitlet: ")
    assert found.count("\n") == 1
    assert not list(work.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["evaluate", "absent"], "no such run folder"),
        (["evaluate", "."], "is not a run folder"),
        (["predict", "absent", "x.png"], "no such run folder"),
        (["train", "--resume", "absent"], "no such run folder"),
        (["train", "--resume", "absent", "--epochs", "3"], "no such run folder"),
        (["train", "-c", "absent.yaml"], "cannot read the configuration"),
        (["evaluate"], "the following arguments are required: RUN"),
    ],
)
def test_bad_runs(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_path_with_spaces_that_was_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").mkdir()
    for command in ("train", "scan"):
        assert main([command, "my", "photos"]) == 2
        assert "A path with spaces needs quotes: 'my photos'." in capsys.readouterr().err


def test_a_scan_suggests_a_command_that_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_digits(tmp_path / "my digits")
    assert main(["scan", str(data), "-j", "0"]) == 0
    printed = capsys.readouterr().out
    assert f"suggestion: vitlet train '{data}'\n" in printed
    assert "chosen for 24 images of about 16 px on a CPU: resnet_s_for_32px" in printed
    assert main(["scan", str(data), "--in-chans", "1", "-j", "0", "--json"]) == 0
    suggested = json.loads(capsys.readouterr().out)["suggestion"]
    assert suggested["command"] == f"vitlet train '{data}' --in-chans 1" and not suggested["measured"]


def test_init_takes_the_model_of_the_run_but_not_over_flags(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    quick = ["--epochs", "1", "-b", "8", "--device", "cpu", "--task", "none"]
    assert main(["train", str(folder), *QUICK, "--in-chans", "1", "--output", str(first)]) == 0
    capsys.readouterr()
    assert main(["train", str(folder), *quick, "--init", str(first), "--output", str(second)]) == 0
    out = capsys.readouterr().out
    assert f"taken from {first}: model vit_tiny_patch16_224, model_kwargs " in out
    ours, theirs = read_config(second), read_config(first)
    for name in ("model", "model_kwargs", "img_size", "in_chans"):
        assert getattr(ours, name) == getattr(theirs, name)
    words = [*quick, "--init", str(first), "--overwrite", "--output", str(second), "--img-size", "24"]
    assert main(["train", str(folder), *words]) == 0
    assert read_config(second).img_size == (24, 24)
    assert read_config(second).in_chans == 1
    capsys.readouterr()
    other = ["--model", "resnet10t", "--img-size", "32"]  # another model has nothing of it
    assert main(["train", str(folder), *quick, "--init", str(first), *other, "--output", str(tmp_path / "o")]) == 2
    assert "taken from" not in capsys.readouterr().out


def test_bad_uses_of_a_good_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", str(folder), *QUICK, "--output", str(run)]) == 0
    capsys.readouterr()
    image = str(next(folder.rglob("*.png")))
    cases = [
        (["predict", str(run), image, "absent.png"], "no such image file: absent.png"),
        (["predict", str(run), str(run / "config.yaml")], "cannot read the image"),
        (["predict", str(run), image, "--topk", "0"], "topk must be at least 1, got 0"),
        (["evaluate", str(run), "--split", "test"], "has no test images"),
        (["evaluate", str(run), str(folder), "--split", "val"], "leave it out when DATA is given"),
        (["train", str(folder), *QUICK, "--output", str(run)], "already exists"),
    ]
    for words, sentence in cases:
        assert main(words) == 2
        assert sentence in capsys.readouterr().err
    weights = run / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert main(["predict", str(run), image]) == 2
    assert "cannot load the weights" in capsys.readouterr().err
    shutil.rmtree(run / "best")
    shutil.rmtree(run / "last")
    assert main(["predict", str(run), image]) == 2
    assert "has no weights yet" in capsys.readouterr().err


def width(path: Path) -> int:
    with Image.open(path) as picture:
        return picture.width


def test_scan(shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    shutil.copytree(shared_folder, data)
    copied = next((data / "train" / "digit 0").glob("*.png"))
    shutil.copy(copied, data / "test" / "digit 0" / "leak.png")
    (data / "train" / "digit 1" / "bad.png").write_bytes(b"no image")
    assert main(["scan", str(data), "--picture", str(tmp_path / "sheet.png"), "-j", "0"]) == 0
    printed = capsys.readouterr().out
    assert "leak.png" in printed
    assert "bad.png" in printed
    assert "suggestion: vitlet train" in printed
    assert width(tmp_path / "sheet.png") > 100
    assert main(["scan", str(data), "--json", "-j", "0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["classes"] == ["digit 0", "digit 1", "digit 2"]
    assert main(["scan", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_explain(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(tmp_path / name) for name in ("plain", "priced")]
    assert main(["train", str(folder), *QUICK, "--output", runs[0]]) == 0
    assert main(["train", str(folder), *QUICK, "--task", "attention-distance=1", "--output", runs[1]]) == 0
    image = str(next(folder.rglob("*.png")))
    assert main(["explain", *runs, "--images", image, "--output", str(tmp_path / "pictures")]) == 0
    written = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    stem = Path(image).stem
    assert written == [f"1-plain-{stem}.png", f"2-priced-{stem}.png", "distance.png"]
    assert all(width(tmp_path / "pictures" / name) > 200 for name in written)
    capsys.readouterr()
    assert main(["explain", runs[0], "--images", "absent.png"]) == 2
    assert "no such image file" in capsys.readouterr().err
    cnn = str(tmp_path / "cnn")
    small = ["--model", "resnet10t", "--img-size", "64", "--epochs", "1", "-b", "8", "--device", "cpu"]
    assert main(["train", str(folder), *small, "--output", cnn]) == 0
    capsys.readouterr()
    assert main(["explain", cnn, "--images", image, "--output", str(tmp_path / "cnn pictures")]) == 0
    printed = capsys.readouterr().out
    assert "left out: " in printed
    assert "no attention at all" in printed
    assert "has no localization head" in printed
    assert [path.name for path in (tmp_path / "cnn pictures").iterdir()] == [f"{stem}.png"]
    assert width(tmp_path / "cnn pictures" / f"{stem}.png") > 200


def test_names_of_files_do_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitlet.cli.summary import print_predictions, say

    monkeypatch.setenv("COLUMNS", "200")
    name = "\x1b[2J\u202egnp.:smile:[red]x[/].png"
    print_predictions([{"image": name, "classes": [{"class": name, "probability": 0.5}]}])
    say(f"data: {name}")
    out = capsys.readouterr().out
    assert out.count("\\x1b[2J\\u202egnp.:smile:[red]x[/].png") == 3
    assert "\x1b" not in out
    assert "\u202e" not in out
