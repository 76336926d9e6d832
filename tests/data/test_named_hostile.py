"""Files that mean harm: pickles with code in them, lists that lead out of the folder."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlet.data.named import load_named
from vitlet.data.named.folders import read_listed
from vitlet.data.named.pickles import read_pickle
from vitlet.errors import VitletError


class Harm:
    """Its pickle calls a function when it is loaded."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", ["batches.meta", "data_batch_1", "test_batch"])
def test_a_hostile_batch_runs_no_code(tmp_path: Path, protocol: int, place: str) -> None:
    trace = tmp_path / "harm was done"
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [0]}
    contents: dict[str, object] = {"batches.meta": {b"label_names": [b"a"]}, "data_batch_1": batch, "test_batch": batch}
    contents[place] = {**batch, b"extra": Harm(os.mkdir, str(trace))}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(VitletError, match=r"mkdir, which is not allowed"):
        load_named("cifar10", tmp_path, download=False, partial=True)
    assert not trace.exists()
    pickle.loads((tmp_path / place).read_bytes())
    assert trace.exists(), "the file is truly hostile"


@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.ctor\x93.",
        b"cnumpy\nload\n(S'x.npy'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
        b"c_codecs\nencode\n(Vx\nVzip\ntR.",
        b"Pimport os\n.",
        b"\x80\x02\x82\x01.",
        b"cnumpy\nndarray\n)\x81(I1\n(I9\ntcnumpy\ndtype\n(S'u1'\ntRI00\nS'abc'\ntb.",
        b"]q\x00.",
        b"}(",
        b"",
        b"not a pickle",
    ],
)
def test_other_streams_are_refused(tmp_path: Path, stream: bytes) -> None:
    path = tmp_path / "batch"
    path.write_bytes(stream)
    with pytest.raises(VitletError, match=r"is not a CIFAR batch: .+ Download the official archive again"):
        read_pickle(path)


def test_a_pickle_of_wrong_content_is_named(tmp_path: Path) -> None:
    good = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"a", b"b"]}))
    for change, words in (
        ({b"data": np.zeros((2, 5), np.uint8)}, "no 'data'"),
        ({b"data": [1, 2]}, "no 'data'"),
        ({b"labels": [0]}, "without a label each"),
        ({b"labels": ["a", "b"]}, "without a label each"),
        ({b"labels": [0, 2]}, "labels 0 to 2 for 2 classes"),
        ({b"labels": [0, -1]}, "labels -1 to 0 for 2 classes"),
    ):
        (tmp_path / "data_batch_1").write_bytes(pickle.dumps({**good, **change}))
        with pytest.raises(VitletError, match=words):
            load_named("cifar10", tmp_path, download=False, partial=True)


OUTSIDE = [
    "../secret.png",
    "a/../../secret.png",
    "/etc/secret.png",
    "C:/secret.png",
    "..\\secret.png",
    "\\\\host\\x.png",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_lists_cannot_lead_out(tmp_path: Path, name: str) -> None:
    picture(tmp_path / "secret.png")
    home = tmp_path / "home"
    picture(home / "a" / "1.png")
    with pytest.raises(VitletError, match="points outside of the data folder"):
        read_listed(home, [("a/1.png", 0), (name, 0)], tmp_path / "list.txt")


def test_links_cannot_lead_out(tmp_path: Path) -> None:
    secret = picture(tmp_path / "secret" / "1.png")
    home = tmp_path / "home"
    inner = picture(home / "a" / "1.png")
    (home / "a" / "2.png").symlink_to(secret)
    (home / "a" / "3.png").symlink_to(inner)
    (home / "b").symlink_to(secret.parent)
    for name in ("a/2.png", "b/1.png"):
        with pytest.raises(VitletError, match="a link that points outside"):
            read_listed(home, [(name, 0)], tmp_path / "list.txt")
    found = read_listed(home, [("a/1.png", 1), ("a/3.png", 2), ("c/1.png", 3)], tmp_path / "list.txt")
    assert found.labels == (1, 2) and found.absent == ("c/1.png",), "a link that stays inside will do"
    with pytest.raises(VitletError, match="twice"):
        read_listed(home, [("a/1.png", 1), ("./a/1.png", 1)], tmp_path / "list.txt")


@pytest.mark.parametrize("name", [*OUTSIDE, "real/x/../../../secret.png"])
def test_every_list_is_held_to_it(tmp_path: Path, name: str) -> None:
    picture(tmp_path / "secret.png")
    root = tmp_path / "data"
    picture(root / "real" / "cat" / "1.png")
    (root / "real_train.txt").write_text(f"real/cat/1.png 0\n{name} 1\n")
    with pytest.raises(VitletError, match=r"points outside|is needed"):
        load_named("domainnet-real", root, download=False, partial=True)
    picture(root / "train" / "n01440764" / "1.png")
    picture(root / "val" / "1.JPEG")
    (root / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\n{name},n01440764 1 1 2 2\n")
    with pytest.raises(VitletError, match="points outside"):
        load_named("imagenet1k", root, download=False, partial=True)
    (root / "val" / "images").mkdir()
    (root / "val" / "val_annotations.txt").write_text(f"{name}\tn01440764\t0\t0\t1\t1\n")
    with pytest.raises(VitletError, match="points outside"):
        load_named("tiny-imagenet", root, download=False, partial=True)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("real/cat/1.png", "is needed"),
        ("real/cat/1.png x", "is needed"),
        ("real/cat/1.png 345", "the label 345; 0 to 344"),
        ("real/cat/1.png 0\nreal/dog/1.png 0", "gives 'dog' the label 0, which is that of 'cat'"),
        ("real/cat/1.png 0\nreal/cat/2.png 1", "one class under two labels"),
        ("sketch/cat/1.png 0", "'real/CLASS/IMAGE LABEL' is needed"),
    ],
)
def test_broken_lists_are_named(tmp_path: Path, lines: str, words: str) -> None:
    picture(tmp_path / "real" / "cat" / "1.png")
    (tmp_path / "real_train.txt").write_text(lines)
    with pytest.raises(VitletError, match=words):
        load_named("domainnet-real", tmp_path, download=False, partial=True)


def test_lists_that_are_no_text_or_no_table(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "n01440764" / "1.png")
    picture(tmp_path / "val" / "1.JPEG")
    table = tmp_path / "LOC_val_solution.csv"
    for content, words in (
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a,b\n1,2\n", "columns"),
        (b"ImageId,PredictionString\n1,\n", "filled"),
    ):
        table.write_bytes(content)
        with pytest.raises(VitletError, match=words):
            load_named("imagenet1k", tmp_path, download=False, partial=True)
    table.write_text("ImageId,PredictionString\n1,n02102040 1 1 2 2\n")
    with pytest.raises(VitletError, match="'n02102040', of which there are no training images"):
        load_named("imagenet1k", tmp_path, download=False, partial=True)


def test_a_matlab_file_that_claims_too_much_is_not_read(tmp_path: Path) -> None:
    """A header of 2^40 numbers in a file of a few bytes."""
    header = b"MATLAB 5.0 MAT-file".ljust(124, b" ") + struct.pack("<H", 0x0100) + b"IM"
    flags = struct.pack("<IIII", 6, 8, 9, 0)
    sizes = struct.pack("<IIii", 5, 8, 2**20, 2**20)
    name = struct.pack("<HH4s", 1, 1, b"X")
    body = flags + sizes + name + struct.pack("<II", 2, 0)
    (tmp_path / "train_32x32.mat").write_bytes(header + struct.pack("<II", 14, len(body)) + body)
    with pytest.raises(VitletError, match="not an array of numbers that fits"):
        load_named("svhn", tmp_path, download=False, partial=True)
