"""The papers' datasets by name, from small real files in every layout that people have on disk."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from vitlet.data.images import Dataset, Joined
from vitlet.data.named import OFFICIAL, load_named
from vitlet.data.named.flowers import FLOWERS
from vitlet.errors import VitletError

RNG = np.random.default_rng(0)
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
WNIDS = ("n01440764", "n02102040", "n02979186")
WOOFS = ("n02086240", "n02087394", "n02088364")


def load(name: str, root: Path, class_list: Path | None = None) -> Dataset:
    return load_named(name, root, download=False, class_list=class_list, partial=True)


def pixels(count: int, *shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def picture(path: Path, colour: int) -> None:
    """A real image of one colour, so that a decoded pixel tells which file it is (JPEG keeps a flat grey exactly)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (colour, colour, colour)).save(path, format="JPEG" if path.suffix != ".png" else "PNG")


def colours(images: object, channels: int = 3) -> list[int]:
    assert images is not None
    return [int(images.image(i, channels)[0, 0, 0]) for i in range(len(images))]  # type: ignore[attr-defined]


def wnid_folders(root: Path, wnids: tuple[str, ...], inner: str = "", per_class: int = 2) -> None:
    for label, wnid in enumerate(wnids):
        for number in range(per_class):
            picture(root / wnid / inner / f"{wnid}_{number}.JPEG", 10 * label + number)


# CIFAR


def cifar_rows(root: Path, protocol: int) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    """CIFAR-10 as the official archive has it; protocol 2 with bytes as keys is what Python 2 wrote."""
    root.mkdir(parents=True)
    batches = {f"data_batch_{n}": (pixels(4, 3072), [n, 9, 0, 3]) for n in range(1, 6)}
    batches["test_batch"] = (pixels(3, 3072), [7, 8, 9])
    for name, (data, labels) in batches.items():
        content = {b"data": data, b"labels": labels, b"batch_label": b"a batch", b"filenames": [b"x.png"]}
        (root / name).write_bytes(pickle.dumps(content, protocol=protocol))
    meta = {b"label_names": [name.encode() for name in CIFAR10], b"num_vis": 3072}
    (root / "batches.meta").write_bytes(pickle.dumps(meta, protocol=protocol))
    return batches


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", ["", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_cifar10_pickles(tmp_path: Path, protocol: int, place: str) -> None:
    batches = cifar_rows(tmp_path / "data" / place, protocol)
    found = load("cifar10", tmp_path / "data")
    assert found.classes == tuple(CIFAR10) and found.val is None and found.test is not None
    assert list(found.train.labels) == [label for n in range(1, 6) for label in (n, 9, 0, 3)]
    assert list(found.test.labels) == [7, 8, 9]
    fifth = batches["data_batch_2"][0][1].reshape(3, 32, 32)
    assert torch.equal(found.train.image(5, 3), torch.from_numpy(fifth.copy()))
    assert found.note.startswith("partial: 20 training and 3 test images of 10 classes (pickled batches in")


def test_cifar_batch_of_python_2(tmp_path: Path) -> None:
    """The byte stream of the official files: numpy.core, text as Python 2 strings."""
    batches = cifar_rows(tmp_path / "data", 2)
    raw = batches["test_batch"][0].tobytes()
    head = b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04"
    empty = b"K\x00\x85U\x01b\x87Rq\x05(K\x01K\x03M\x00\x0c\x86"
    dtype = b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ" + b"\xff" * 4 + b"J" + b"\xff" * 4
    data = b"K\x00tb\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    labels = b"U\x06labelsq\x08](K\x01K\x02K\x03eu."
    (tmp_path / "data" / "test_batch").write_bytes(head + empty + dtype + data + labels)
    found = load("cifar10", tmp_path / "data")
    assert found.test is not None and list(found.test.labels) == [1, 2, 3]
    assert found.test.content(2) == batches["test_batch"][0][2].tobytes()


def test_cifar10_binary(tmp_path: Path) -> None:
    root = tmp_path / "cifar-10-batches-bin"
    root.mkdir()
    rows = pixels(4, 3073)
    rows[:, 0] = [1, 2, 9, 0]
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (root / f"{name}.bin").write_bytes(rows.tobytes())
    (root / "batches.meta.txt").write_text("\n".join([*CIFAR10, "", ""]))
    found = load("cifar10", tmp_path)
    assert found.classes == tuple(CIFAR10) and len(found.train) == 20 and list(found.train.labels[:4]) == [1, 2, 9, 0]
    assert found.train.content(2) == rows[2, 1:].tobytes()
    (root / "test_batch.bin").write_bytes(rows.tobytes()[:-1])
    with pytest.raises(VitletError, match="cut short"):
        load("cifar10", tmp_path)


def test_cifar100_pickles_and_binary(tmp_path: Path) -> None:
    names = [f"thing {n:02d}" for n in range(100)]
    data, fine = pixels(3, 3072), [99, 0, 42]
    old, new = tmp_path / "a" / "cifar-100-python", tmp_path / "b" / "cifar-100-binary"
    for root in (old, new):
        root.mkdir(parents=True)
    for split in ("train", "test"):
        content = {b"data": data, b"fine_labels": fine, b"coarse_labels": [1, 1, 1]}
        (old / split).write_bytes(pickle.dumps(content, protocol=2))
        rows = np.concatenate([np.array([[5, label] for label in fine], dtype=np.uint8), data], axis=1)
        (new / f"{split}.bin").write_bytes(rows.tobytes())
    (old / "meta").write_bytes(pickle.dumps({b"fine_label_names": [n.encode() for n in names]}, protocol=2))
    (new / "fine_label_names.txt").write_text("\n".join(names) + "\n")
    for root in (tmp_path / "a", tmp_path / "b"):
        found = load("cifar100", root)
        assert found.classes == tuple(names) and list(found.train.labels) == fine
        assert found.test is not None and found.test.content(1) == data[1].tobytes()


@pytest.mark.parametrize("names", [CIFAR10, [str(n) for n in range(12)]])
def test_cifar10_class_folders(tmp_path: Path, names: list[str]) -> None:
    for split in ("train", "test"):
        for label, name in enumerate(names):
            picture(tmp_path / "cifar10" / split / name / "0001.png", 20 * label)
    (tmp_path / "cifar10" / "train" / names[0] / "._0001.png").write_bytes(b"left by a file manager")
    found = load("cifar10", tmp_path)
    assert found.classes == tuple(names), "numbers in the order of numbers"
    assert colours(found.train) == [20 * label for label in range(len(names))]
    assert list(found.train.labels) == list(range(len(names))) and found.test is not None and len(found.test)


# SVHN


@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_svhn(tmp_path: Path, kind: type) -> None:
    images = pixels(4, 32, 32, 3)
    for split, count in {"train": 4, "test": 1}.items():
        labels = np.array([[10], [1], [9], [5]], dtype=kind)[:count]
        savemat(tmp_path / f"{split}_32x32.mat", {"X": images[:count].transpose(1, 2, 3, 0), "y": labels})
    found = load("svhn", tmp_path)
    assert found.classes == tuple("0123456789") and list(found.train.labels) == [0, 1, 9, 5]
    assert found.test is not None and list(found.test.labels) == [0]
    assert torch.equal(found.train.image(3, 3), torch.from_numpy(images[3].transpose(2, 0, 1).copy()))


def test_svhn_with_other_arrays(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    for content, words in (
        ({"X": np.array([{"a": 1}], dtype=object), "y": np.ones(1)}, "not an array of numbers"),
        ({"X": pixels(2, 32, 32, 3).transpose(1, 2, 3, 0)}, "it has no 'y'"),
        ({"X": pixels(2, 32, 32, 3).transpose(1, 2, 3, 0), "y": np.array([11, 1])}, "1 to 10 are needed"),
        ({"X": pixels(2, 32, 32, 3).transpose(1, 2, 3, 0), "y": np.array([0.5, 1])}, "fractions"),
        ({"X": pixels(2, 32, 32, 3).transpose(1, 2, 3, 0), "y": np.array([1])}, "1 labels"),
    ):
        savemat(path, content)
        with pytest.raises(VitletError, match=words):
            load("svhn", tmp_path)
    path.write_bytes(b"MATLAB? no" * 100)
    with pytest.raises(VitletError, match="cannot read"):
        load("svhn", tmp_path)


# Flowers-102


def flowers(root: Path, ids: dict[str, list[int]], labels: list[int]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    savemat(root / "setid.mat", {name: np.array([numbers], dtype=np.uint16) for name, numbers in ids.items()})
    savemat(root / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})


@pytest.mark.parametrize("place", ["", "flowers-102"])
def test_flowers_numbered(tmp_path: Path, place: str) -> None:
    root = tmp_path / place
    flowers(root, {"trnid": [2, 1], "valid": [3], "tstid": [6, 5, 4]}, [1, 102, 77, 1, 2, 3])
    for number in range(1, 7):
        picture(root / "jpg" / f"image_{number:05d}.jpg", 30 * number)
    split = load("flowers102-split", tmp_path)
    assert split.classes == FLOWERS and split.classes[76] == "passion flower"
    assert list(split.train.labels) == [101, 0] and colours(split.train) == [60, 30]
    assert split.val is not None and list(split.val.labels) == [76] and colours(split.val) == [90]
    assert split.test is not None and list(split.test.labels) == [2, 1, 0] and colours(split.test) == [180, 150, 120]
    whole = load("flowers102", tmp_path)
    assert isinstance(whole.train, Joined) and colours(whole.train) == [60, 30, 90]
    assert list(whole.train.labels) == [101, 0, 76] and whole.val is None and whole.test is not None
    assert "tune on flowers102-split" in whole.note


def test_flowers_at_its_official_size(tmp_path: Path) -> None:
    """Every file of the official layout, empty: sizes pass without ``partial``."""
    numbers = [int(n) for n in np.random.default_rng(1).permutation(8189) + 1]
    ids = {"trnid": numbers[:1020], "valid": numbers[1020:2040], "tstid": numbers[2040:]}
    flowers(tmp_path, ids, [1 + n % 102 for n in range(8189)])
    (tmp_path / "jpg").mkdir()
    for number in numbers:
        (tmp_path / "jpg" / f"image_{number:05d}.jpg").touch()
    whole = load_named("flowers102", tmp_path, download=False)
    split = load_named("flowers102-split", tmp_path, download=False)
    assert (len(whole.train), whole.val, len(whole.test or ())) == (2040, None, 6149)
    assert (len(split.train), len(split.val or ()), len(split.test or ())) == (1020, 1020, 6149)
    assert "the official 2,040 training and 6,149 test images of 102 classes" in whole.note
    (tmp_path / "jpg" / f"image_{numbers[0]:05d}.jpg").unlink()
    with pytest.raises(VitletError, match=r"holds 2,039 training .*, 1 listed images are absent.*official.*2,040"):
        load_named("flowers102", tmp_path, download=False)


def test_flowers_with_a_picture_in_two_splits(tmp_path: Path) -> None:
    flowers(tmp_path, {"trnid": [1], "valid": [2], "tstid": [1]}, [1, 2])
    (tmp_path / "jpg").mkdir()
    with pytest.raises(VitletError, match="one picture into two splits"):
        load("flowers102", tmp_path)
    flowers(tmp_path, {"trnid": [1], "valid": [2], "tstid": [3]}, [1, 2])
    with pytest.raises(VitletError, match="do not belong together"):
        load("flowers102", tmp_path)


@pytest.mark.parametrize("name", ["{0:03d}", "{1}", "{2}"])
def test_flowers_class_folders(tmp_path: Path, name: str) -> None:
    for split in ("train", "val", "test"):
        for label, flower in enumerate(FLOWERS):
            picture(tmp_path / split / name.format(label, label + 1, flower) / "a.png", label)
    found = load("flowers102-split", tmp_path)
    assert found.classes == FLOWERS
    assert found.val is not None and colours(found.val) == list(found.val.labels)
    assert len(load("flowers102", tmp_path).train) == 204


# ImageNet and relatives


def test_imagenet_class_folders(tmp_path: Path) -> None:
    wnid_folders(tmp_path / "train", WNIDS)
    wnid_folders(tmp_path / "val", WNIDS[:2], per_class=1)
    found = load("imagenet1k", tmp_path)
    assert found.classes == WNIDS and colours(found.train) == [0, 1, 10, 11, 20, 21] and found.val is None
    assert found.test is not None and list(found.test.labels) == [0, 1] and "50,000 validation images" in found.note
    wnid_folders(tmp_path / "val", ("n09999999",))
    with pytest.raises(VitletError, match="n09999999"):
        load("imagenet1k", tmp_path)


def kaggle(root: Path, rows: list[str]) -> Path:
    wnid_folders(root / "ILSVRC/Data/CLS-LOC/train", WNIDS)
    for number in range(3):
        picture(root / f"ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_{number:08d}.JPEG", 40 * number)
    (root / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows]) + "\n")
    return root


def test_imagenet_from_kaggle(tmp_path: Path) -> None:
    rows = [f"ILSVRC2012_val_{n:08d},{WNIDS[2 - n]} 85 1 499 272 {WNIDS[0]} 1 1 2 2 " for n in range(3)]
    found = load("imagenet1k", kaggle(tmp_path, rows))
    assert found.test is not None and list(found.test.labels) == [2, 1, 0] and colours(found.test) == [0, 40, 80]
    assert "LOC_val_solution.csv" in found.note


def test_imagenet100_by_class_list(tmp_path: Path) -> None:
    rows = [f"ILSVRC2012_val_{n:08d},{WNIDS[n]} 1 1 2 2" for n in range(3)]
    kaggle(tmp_path / "a", rows)
    wnid_folders(tmp_path / "b" / "train", WNIDS)
    wnid_folders(tmp_path / "b" / "val", WNIDS, per_class=1)
    chosen = tmp_path / "list.txt"
    chosen.write_text(f"# two classes\n{WNIDS[2]} cassette player\n\n{WNIDS[0]}\n")
    for root, expected in ((tmp_path / "a", [0, 80]), (tmp_path / "b", [0, 20])):
        found = load("imagenet100", root, chosen)
        assert found.classes == (WNIDS[0], WNIDS[2]) and colours(found.train) == [0, 1, 20, 21]
        assert found.test is not None and list(found.test.labels) == [0, 1] and colours(found.test) == expected
    with pytest.raises(VitletError, match="holds 3 classes and imagenet100 has 100: say which with --class-list"):
        load("imagenet100", tmp_path / "a")
    for text, words in (
        (f"{WNIDS[0]}\n{WNIDS[0]}\n", "second time"),
        ("../x\n", "no WordNet id"),
        ("n09999999", "no such"),
    ):
        chosen.write_text(text)
        with pytest.raises(VitletError, match=words):
            load("imagenet100", tmp_path / "a", chosen)
    with pytest.raises(VitletError, match="imagenet100 only"):
        load("imagenet1k", tmp_path / "a", chosen)


def test_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    wnid_folders(root / "train", WNIDS, "images")
    for number in range(3):
        picture(root / "val" / "images" / f"val_{number}.JPEG", 50 * number)
    lines = [f"val_{n}.JPEG\t{WNIDS[2 - n]}\t0\t32\t44\t62" for n in range(3)]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    picture(root / "test" / "images" / "test_0.JPEG", 1)
    found = load("tiny-imagenet", tmp_path)
    assert found.classes == WNIDS and colours(found.train) == [0, 1, 10, 11, 20, 21]
    assert found.test is not None and list(found.test.labels) == [2, 1, 0] and colours(found.test) == [0, 50, 100]
    (root / "val" / "images" / "val_1.JPEG").unlink()
    assert "1 listed images are absent, such as val_1.JPEG" in load("tiny-imagenet", tmp_path).note


def test_tiny_imagenet_with_sorted_validation_images(tmp_path: Path) -> None:
    wnid_folders(tmp_path / "train", WNIDS, "images")
    wnid_folders(tmp_path / "val", WNIDS, "images", per_class=1)
    found = load("tiny-imagenet", tmp_path)
    assert found.test is not None and colours(found.test) == [0, 10, 20]


@pytest.mark.parametrize(("name", "wnids"), [("imagenette", WNIDS), ("imagewoof", WOOFS)])
@pytest.mark.parametrize("place", ["", "{}2", "{}2-160", "{}2-320", "{0}/{0}2-320"])
def test_imagenette_and_imagewoof(tmp_path: Path, name: str, wnids: tuple[str, ...], place: str) -> None:
    root = tmp_path / place.format(name)
    wnid_folders(root / "train", wnids)
    wnid_folders(root / "val", wnids, per_class=1)
    found = load(name, tmp_path)
    assert found.classes == wnids and colours(found.train) == [0, 1, 10, 11, 20, 21] and found.val is None
    assert found.test is not None and colours(found.test) == [0, 10, 20] and "val folder is the test set" in found.note
    other = "imagewoof" if name == "imagenette" else "imagenette"
    if not place:
        with pytest.raises(VitletError, match=f"which {other} does not have"):
            load(other, tmp_path)


# DomainNet


@pytest.mark.parametrize("domain", ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"])
@pytest.mark.parametrize("lists", ["", "txt"])
def test_domainnet(tmp_path: Path, domain: str, lists: str) -> None:
    root = tmp_path / "domainnet"
    (root / lists).mkdir(parents=True, exist_ok=True)
    for split, rows in {"train": [("zebra", 343), ("The_Eiffel_Tower", 1)], "test": [("zebra", 343)]}.items():
        for name, label in rows:
            picture(root / domain / name / f"{split} 1.jpg", label % 200)
        text = "".join(f"{domain}/{name}/{split} 1.jpg {label}\n" for name, label in rows)
        (root / lists / f"{domain}_{split}.txt").write_text(text)
    picture(root / domain / "zebra" / "unlisted.jpg", 1)
    found = load(f"domainnet-{domain}", tmp_path)
    assert found.classes == ("The_Eiffel_Tower", "zebra") and list(found.train.labels) == [1, 0]
    assert colours(found.train) == [143, 1] and found.test is not None and list(found.test.labels) == [1]


# Sizes, and what is said


def test_the_table_is_the_papers() -> None:
    table = {
        "cifar10": (50_000, 10_000, 10), "cifar100": (50_000, 10_000, 100), "svhn": (73_257, 26_032, 10),
        "flowers102": (2_040, 6_149, 102), "imagenet1k": (1_281_167, 50_000, 1_000),
        "imagenet100": (126_689, 5_000, 100), "domainnet-clipart": (33_525, 14_604, 345),
        "domainnet-infograph": (36_023, 15_582, 345), "domainnet-painting": (50_416, 21_850, 345),
        "domainnet-quickdraw": (120_750, 51_750, 345), "domainnet-real": (120_906, 52_041, 345),
        "domainnet-sketch": (48_212, 20_916, 345),
    }  # fmt: skip
    for name, sizes in table.items():
        assert (OFFICIAL[name].train, OFFICIAL[name].test, OFFICIAL[name].classes) == sizes


def test_addresses_and_checksums_are_torchvisions() -> None:
    from torchvision import datasets

    theirs = {
        datasets.CIFAR10.url: datasets.CIFAR10.tgz_md5,
        datasets.CIFAR100.url: datasets.CIFAR100.tgz_md5,
        **{url: md5 for split, (url, _, md5) in datasets.SVHN.split_list.items() if split != "extra"},
        **dict(datasets.Imagenette._ARCHIVES.values()),
        **{
            datasets.Flowers102._download_url_prefix + name: md5
            for name, md5 in datasets.Flowers102._file_dict.values()
        },
    }
    ours = {remote.url: remote.checksum for official in OFFICIAL.values() for remote in official.files}
    known = set(ours) & set(theirs)
    assert len(known) == 8 and all(ours[url] == theirs[url] for url in known)
    assert [name.rstrip("?") for name in datasets.Flowers102.classes] == list(FLOWERS)


def test_other_sizes_are_refused_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wnid_folders(tmp_path / "train", WNIDS)
    wnid_folders(tmp_path / "val", WNIDS, per_class=1)
    with pytest.raises(VitletError) as caught:
        load_named("imagenette", tmp_path, download=False)
    for words in ("6 training and 3 test images of 3 classes", "9,469 training and 3,925 test images of 10 classes",
                  "may be incomplete", "--partial"):  # fmt: skip
        assert words in str(caught.value)
    assert "partial: 6 training" in load("imagenette", tmp_path).note
    monkeypatch.setitem(OFFICIAL, "imagenette", replace(OFFICIAL["imagenette"], classes=3, train=6, test=3))
    assert "the official 6 training" in load_named("imagenette", tmp_path, download=False).note


def test_a_missing_part_is_a_matter_of_size(tmp_path: Path) -> None:
    cifar_rows(tmp_path / "data", 2)
    (tmp_path / "data" / "test_batch").unlink()
    assert load("cifar10", tmp_path / "data").test is None
    with pytest.raises(VitletError, match="20 training and 0 test images"):
        load_named("cifar10", tmp_path / "data", download=False)
    (tmp_path / "empty" / "train" / WNIDS[0]).mkdir(parents=True)
    with pytest.raises(VitletError, match="There is nothing to train on"):
        load("imagenette", tmp_path / "empty")


@pytest.mark.parametrize("name", OFFICIAL)
def test_no_data(tmp_path: Path, name: str) -> None:
    (tmp_path / "holiday").mkdir()
    for place, there in (
        (tmp_path, "it holds holiday"),
        (tmp_path / "holiday", "it is empty"),
        (tmp_path / "x", "no such"),
    ):
        with pytest.raises(VitletError) as caught:
            load_named(name, place, download=False)
        assert f"found no {name} in {place} ({there}" in str(caught.value)
        assert OFFICIAL[name].address in str(caught.value) and OFFICIAL[name].layout in str(caught.value)
        assert ("or pass --download" in str(caught.value)) is not name.startswith("imagenet1")


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(VitletError, match="Did you mean 'cifar100'"):
        load("cifar-100", tmp_path)


def test_names_come_without_torch() -> None:
    code = "import sys, vitlet.data.named as n; assert n.OFFICIAL; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
