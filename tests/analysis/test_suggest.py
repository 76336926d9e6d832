"""Which images to label next: uncertain and diverse, new by content, each once, the same for a seed."""

from __future__ import annotations

import csv
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders.digits import write_digits
from vitlet.analysis.suggest import diverse_batch
from vitlet.cli import main
from vitlet.data.images import Files
from vitlet.data.scan.overlap import new_images

QUICK = "--model vit_tiny_patch16_224 --img-size 8 --hflip 0 --epochs 1 -b 8 -j 0 --device cpu --task none"
KWARGS = ["--model-kwargs", "patch_size=4", "embed_dim=8", "depth=1", "num_heads=1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("few") / "data", per_class=8)


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    output = data.parent / "run"
    assert main(["train", str(data), *QUICK.split(), *KWARGS, "--output", str(output)]) == 0
    return output


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Ten new images without labels."""
    new = write_digits(tmp_path / "new", classes=1, per_class=10, skip=20) / "digit 0"
    return new.rename(tmp_path / "pool")


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as found:
        return list(csv.DictReader(found))


def test_gradients_that_are_never_written_out() -> None:
    """Every choice maximises a distance that a slow loop over whole gradients agrees with."""
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(3), 12).astype(np.float32)
    features = random.normal(size=(12, 4)).astype(np.float32)
    chosen, owners = diverse_batch(probabilities, features, 5, seed=0)
    centred = features - features.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    gradients = []
    for row in range(12):
        error = probabilities[row].copy()
        error[error.argmax()] -= 1
        gradients.append(np.outer(error, centred[row]).reshape(-1))
    assert chosen[0] == max(range(12), key=lambda row: float(np.linalg.norm(gradients[row])))
    for row in range(12):
        distances = [float(((gradients[row] - gradients[one]) ** 2).sum()) for one in chosen]
        distances.append(float((gradients[row] ** 2).sum()))  # place -1: from no gradient at all
        assert distances[owners[row]] == pytest.approx(min(distances), abs=1e-5)


def test_doubt_is_asked_about_once() -> None:
    """Two far groups in doubt, one image of each, and none of the many that are certain."""
    certain, doubt = [0.98, 0.02], [0.5, 0.5]
    probabilities = np.array([doubt] * 5 + [certain] * 50 + [doubt] * 5, dtype=np.float32)
    features = np.array([[1.0, 0]] * 5 + [[-1.0, -1.0]] * 50 + [[0, 1.0]] * 5, dtype=np.float32)
    chosen, owners = diverse_batch(probabilities, features, 2, seed=0)
    assert sorted(each // 5 for each in chosen) == [0, 11]
    assert owners[:5] == [owners[0]] * 5 and owners[0] != owners[-1]


def test_any_are_taken_where_all_are_alike() -> None:
    chosen, _ = diverse_batch(np.full((6, 2), 0.5, np.float32), np.ones((6, 3), np.float32), 6, seed=0)
    assert sorted(chosen) == list(range(6))


def test_known_repeated_and_broken_images_are_told_apart(data: Path, pool: Path) -> None:
    paths = sorted(pool.iterdir())
    again = pool / "again.bmp"
    with Image.open(paths[0]) as opened:
        opened.save(again)  # the same pixels in another file
    (pool / "broken.png").write_bytes(b"nothing")
    shutil.copy(data / "digit 1" / "000.png", pool / "labelled.png")
    files = (*paths, again, pool / "broken.png", pool / "labelled.png")
    labelled = sorted(data.rglob("*.png"))
    found = new_images(Files(files, (0,) * len(files)), {"train": Files(tuple(labelled), (0,) * len(labelled))}, 3)
    assert found.indices == tuple(range(10)) and found.repeated == (10,) and found.known == (12,)
    assert [index for index, _ in found.unreadable] == [11]


def test_the_command_writes_a_list_and_a_picture(
    run: Path, data: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(data / "digit 1" / "000.png", pool / "labelled.png")
    output = tmp_path / "next.csv"
    assert main(["suggest", str(run), str(pool), "-n", "4", "--output", str(output), "--device", "cpu"]) == 0
    assert "left out, for the run's data holds them: 1 of 11" in capsys.readouterr().out
    first = output.read_text(encoding="utf-8")
    found = rows(output)
    assert [row["rank"] for row in found] == ["1", "2", "3", "4"]
    assert len({row["image"] for row in found}) == 4 and all(Path(row["image"]).is_file() for row in found)
    assert 4 <= sum(int(row["stands_for"]) for row in found) <= 10
    assert {row["predicted"] for row in found} <= {"digit 0", "digit 1", "digit 2"}
    with Image.open(output.with_suffix(".png")) as sheet:
        assert sheet.width > 500
    assert main(["suggest", str(run), str(pool), "-n", "4", "--output", str(output), "--device", "cpu"]) == 0
    assert output.read_text(encoding="utf-8") == first
    assert main(["suggest", str(run), str(pool), "-n", "3", "--output", str(output), "--device", "cpu"]) == 0
    assert [row["image"] for row in rows(output)] == [row["image"] for row in found[:3]]


def test_an_archive_is_read_in_place_and_broken_files_are_named(
    run: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, output = tmp_path / "pool.zip", tmp_path / "next.csv"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted(pool.iterdir()):
            opened.write(path, path.name)
        opened.writestr("broken.png", b"nothing")
    assert main(["suggest", str(run), str(archive), "-n", "2", "--output", str(output), "--device", "cpu"]) == 3
    assert "broken.png" in capsys.readouterr().err
    assert len(rows(output)) == 2


def test_bad_input_is_refused(run: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, empty, broken = tmp_path / "next.csv", tmp_path / "empty", tmp_path / "broken"
    empty.mkdir()
    broken.mkdir()
    (broken / "one.png").write_bytes(b"nothing")
    cases = {
        "contains no images": [str(run), str(empty)],
        "11 images were asked for, but 10 of the pool are new": [str(run), str(pool), "-n", "11"],
        "none of the 1 images of the pool is new and readable": [str(run), str(broken)],
        "-n and --batch-size must be 1 or more": [str(run), str(pool), "-n", "0"],
        "lies in the pool": [str(run), str(pool), "--output", str(pool / "next.csv")],
    }
    for problem, words in cases.items():
        target = [] if "--output" in words else ["--output", str(output)]
        assert main(["suggest", *words, *target, "--device", "cpu"]) == 2
        assert problem in capsys.readouterr().err and not output.exists()


def test_a_pretrained_run_is_refused(
    data: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    quick = QUICK.replace("--task none", "--task drloc=1").split()
    assert main(["pretrain", str(data), *quick, *KWARGS, "--drloc.hidden", "8", "--output", str(first)]) == 0
    assert main(["suggest", str(first), str(pool), "-n", "1", "--output", str(tmp_path / "next.csv")]) == 2
    assert "was pre-trained without labels" in capsys.readouterr().err
