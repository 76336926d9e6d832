"""Readers of strangers' files: whatever the bytes, an answer or one error message, never a traceback.

Bytes are flipped, cut, doubled and replaced at random, from a fixed seed. ``VITLET_FUZZ=20000`` tries as many damaged
files of each kind instead of a few (`make faults`).
"""

from __future__ import annotations

import os
import random
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from builders.digits import write_digits
from builders.shapes import write_coco
from vitlet.config import RunConfig
from vitlet.data.decode import FORMATS, read_image
from vitlet.data.shards import read_shards, stream, write_shards
from vitlet.data.sources import Request, open_dataset
from vitlet.errors import VitletError
from vitlet.models.weight_files import read_weights
from vitlet.training.checkpoint import MANIFEST, Checkpoints
from vitlet.transfer.detection.coco import open_coco

ROUNDS = int(os.environ.get("VITLET_FUZZ", "60"))


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The bytes with something wrong in them."""
    changed = bytearray(content)
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                del changed[place:]
            case 1:
                changed[place:place] = changed[: chance.randrange(64)]
            case 2:
                changed[place : place + 4] = chance.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"9999"))
            case 3:
                del changed[place : place + chance.randrange(16)]
            case _:
                if place < len(changed):
                    changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def read_dataset(file: Path) -> None:
    dataset = open_dataset(Request(str(file)))
    for images in dataset.splits().values():
        for index in range(len(images)):
            images.image(index, 3)


def make_archive(folder: Path, kind: str) -> Path:
    file = folder / f"data.{kind.partition(' ')[0]}"
    root = write_digits(folder / "tree", classes=2, per_class=2)
    if file.suffix == ".tar":
        with tarfile.open(file, "w") as tar:
            tar.add(root, ".")
        return file
    method = {"stored": 0, "deflate": 8, "bzip2": 12, "lzma": 14}[kind.partition(" ")[2]]
    with zipfile.ZipFile(file, "w", method) as opened:
        for image in sorted(root.rglob("*.png")):
            opened.write(image, image.relative_to(root))
    return file


def make_table(folder: Path, kind: str) -> Path:
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    Image.new("RGB", (4, 4), "red").save(folder / "b.png")
    if kind == "npz":
        labels = np.array([0, 1])
        np.savez_compressed(folder / "data.npz", x_train=np.zeros((2, 4, 4, 3), np.uint8), y_train=labels)
    elif kind == "csv":
        (folder / "data.csv").write_text("path,label,split\na.png,one,train\nb.png,two,train\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table({"path": ["a.png", "b.png"], "label": ["one", "two"]}), folder / "data.parquet"
        )
    return folder / f"data.{kind}"


def make_image(folder: Path, kind: str) -> Path:
    file = folder / "image"
    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file


def make_yaml(folder: Path, _: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(RunConfig(data="digits").dump())
    return file


def make_weights(folder: Path, kind: str) -> Path:
    weights = {"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2)}
    if kind == "pth":
        torch.save(weights, folder / "weights.pth")
    else:
        save_file(weights, folder / "weights.safetensors")
    return folder / f"weights.{kind}"


def make_checkpoint(folder: Path, _: str) -> Path:
    points = Checkpoints(folder)
    (points.begin("step-00000001") / "a.txt").write_text("x")
    points.finish("step-00000001", {"epoch": 1, "step": 1})
    return folder / "step-00000001" / MANIFEST


def make_shard(folder: Path, _: str) -> Path:
    pytest.importorskip("webdataset")
    data = open_dataset(Request(str(write_digits(folder / "tree", classes=2, per_class=2))))
    write_shards(data, folder / "shards")
    return folder / "shards" / "train-000000.tar"


def make_index(folder: Path, _: str) -> Path:
    return make_shard(folder, "").with_name("shards.json")


def make_coco(folder: Path, _: str) -> Path:
    return next(write_coco(folder / "coco", images=2, splits=("train",)).rglob("*.json"))


READERS: dict[str, tuple[Callable[[Path, str], Path], Callable[[Path], object]]] = {
    **{f"zip {kind}": (make_archive, read_dataset) for kind in ("stored", "deflate", "bzip2", "lzma")},
    "tar": (make_archive, read_dataset),
    **dict.fromkeys(("npz", "csv", "parquet"), (make_table, read_dataset)),
    **{kind: (make_image, lambda file: read_image(file, 3)) for kind in FORMATS if kind != "HEIF"},
    "yaml": (make_yaml, lambda file: RunConfig.from_dict(RunConfig.read(file))),
    **dict.fromkeys(("safetensors", "pth"), (make_weights, read_weights)),
    "checkpoint": (make_checkpoint, lambda file: Checkpoints(file.parents[1]).newest()),
    "shard": (make_shard, lambda file: list(stream([str(file)], 2))),
    "shards.json": (make_index, lambda file: read_shards(str(file.parent))),
    "coco": (make_coco, lambda file: open_coco(file.parents[1] if file.parent.name == "annotations" else file.parent)),
}


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_end_in_an_error_message(kind: str, tmp_path: Path) -> None:
    make, read = READERS[kind]
    file = make(tmp_path, kind)
    read(file)
    whole, chance = file.read_bytes(), random.Random(kind)
    for number in range(ROUNDS):
        content = damaged(whole, chance)
        file.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(file)
        except VitletError as problem:
            assert 0 < len(str(problem)) < 3000
        except Exception as problem:
            raise AssertionError(f"damaged file {number} of {kind}: {content[:2000]!r}") from problem


DEEP = "[" * 700 + "]" * 700


@pytest.mark.parametrize(
    "text",
    [f"epochs: {DEEP}", "epochs: 2001-99-99", f"epochs: {'9' * 5000}", "a: !!int ''", "a: !!timestamp x", "? {}"],
)
def test_odd_yaml_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(VitletError, match=r"config\.yaml is not a plain YAML file: .{,400}$"):
        RunConfig.read(tmp_path / "config.yaml")


def test_a_few_lines_of_yaml_do_not_become_gigabytes(tmp_path: Path) -> None:
    value = "&a0 [x]"
    for depth in range(1, 9):
        value = f"&a{depth} [{', '.join([value, *[f'*a{depth - 1}'] * 19])}]"
    (tmp_path / "config.yaml").write_text(f"epochs: {value}")
    with pytest.raises(VitletError, match=r"epochs must be a whole number, got .{,2000}\.$"):
        RunConfig.from_dict(RunConfig.read(tmp_path / "config.yaml"))


@pytest.mark.parametrize("name", ["objects", "scalar", "lone"])
def test_arrays_of_a_wrong_kind(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.npz"
    with file.open("wb") as opened:
        if name == "lone":
            np.save(opened, np.zeros(3))
        else:
            array = np.array([{}, 1], dtype=object) if name == "objects" else np.array(3)
            np.savez(opened, x_train=array, y_train=np.array([0, 1]))
    with pytest.raises(VitletError, match=rf"{name}\.npz"):
        open_dataset(Request(str(file)))


def test_deep_json_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "shards.json").write_text('{"classes": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(VitletError, match="cannot read the index"):
        read_shards(str(tmp_path))
