"""Every kind of DATA: folders, archives read in place, tables, arrays, Hugging Face datasets; honest splits of each."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from builders.digits import write_digits
from vitlet.data import archives, decode
from vitlet.data.images import Arrays, Dataset, ImageSet
from vitlet.data.sources import Request, load_dataset, load_unlabelled, open_dataset
from vitlet.data.splits import fold, hold_out, hold_out_items, keep
from vitlet.errors import VitletError


def load(data: Path | str, **request: object) -> Dataset:
    return load_dataset(Request(str(data), **request))  # type: ignore[arg-type]


def keys(images: ImageSet | None) -> list[str]:
    assert images is not None
    return [images.key(index) for index in range(len(images))]


def png(value: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def pack_zip(root: Path, file: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(root.rglob("*")):
            opened.write(path, prefix + path.relative_to(root).as_posix())
        opened.writestr("__MACOSX/._junk.png", b"junk")
    return file


def pack_tar(root: Path, file: Path, mode: str = "w") -> Path:
    with tarfile.open(file, mode) as opened:  # type: ignore[call-overload]
        opened.add(root, arcname="images")
    return file


@pytest.mark.parametrize("kind", ["zip", "zip with a folder around", "tar"])
def test_archives_give_the_same_images_as_the_folder(kind: str, shared_folder: Path, tmp_path: Path) -> None:
    if kind == "tar":
        archive = pack_tar(shared_folder, tmp_path / "data.tar")
    else:
        archive = pack_zip(shared_folder, tmp_path / "data.zip", "data set/" if "around" in kind else "")
    plain, packed = load(shared_folder), load(archive)
    assert packed.classes == plain.classes
    for name, images in plain.splits().items():
        other = packed.splits()[name]
        assert list(other.labels) == list(images.labels)
        assert all(torch.equal(other.image(i, 3), images.image(i, 3)) for i in range(len(images)))
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]  # nothing was unpacked


@pytest.mark.parametrize("name", ["../evil.png", "/etc/evil.png", "a/../../evil.png", "C:\\evil.png"])
def test_members_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as opened:
        opened.writestr(name, png())
    with pytest.raises(VitletError, match=r"is refused: .* points outside of its folder"):
        load(tmp_path / "bad.zip")
    with tarfile.open(tmp_path / "bad.tar", "w") as opened:
        member = tarfile.TarInfo(name)
        member.size = len(png())
        opened.addfile(member, io.BytesIO(png()))
    with pytest.raises(VitletError, match=r"is refused: .* points outside of its folder"):
        load(tmp_path / "bad.tar")


def test_links_in_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as opened:
        link = zipfile.ZipInfo("a/link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        opened.writestr(link, "/etc/passwd")
    with pytest.raises(VitletError, match=r"is refused: 'a/link\.png' is a link"):
        load(tmp_path / "bad.zip")
    with tarfile.open(tmp_path / "bad.tar", "w") as opened:
        member = tarfile.TarInfo("a/link.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(member)
    with pytest.raises(VitletError, match=r"is refused: 'a/link\.png' is a link"):
        load(tmp_path / "bad.tar")


def test_bombs_in_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a/bomb.png", bytes(5_000_000))
    monkeypatch.setattr(archives, "MAX_MEMBER_RATIO", 100)
    with pytest.raises(VitletError, match="unpacks to 5000000 bytes"):
        load(tmp_path / "bomb.zip")


def test_archives_that_cannot_be_read(shared_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(VitletError, match="neither a zip nor a tar"):
        load(tmp_path / "text.zip")
    with pytest.raises(VitletError, match="compressed tar, which cannot be read in place"):
        load(pack_tar(shared_folder, tmp_path / "small.tar", "w:gz"))
    whole = pack_zip(shared_folder, tmp_path / "whole.zip")
    (tmp_path / "half.zip").write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(VitletError, match=r"half\.zip"):
        load(tmp_path / "half.zip")
    (tmp_path / "data.rar").write_text("?")
    with pytest.raises(VitletError, match="a file of an unknown kind"):
        load(tmp_path / "data.rar")


def write_table(file: Path, rows: list[dict[str, object]]) -> Path:
    if file.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def listed(root: Path, *, numbers: bool) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for label, folder in enumerate(sorted(root.iterdir())):
        for place, file in enumerate(sorted(folder.iterdir())):
            split = "test" if place == 7 else "train"
            path = file.relative_to(root.parent).as_posix()
            site = 9 if split == "test" else place % 4
            rows.append({"path": path, "label": label if numbers else folder.name, "split": split, "site": site})
    return rows


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("numbers", [False, True])
def test_tables(suffix: str, numbers: bool, folder: Path) -> None:
    table = write_table(folder.parent / f"list{suffix}", listed(folder, numbers=numbers))
    dataset = load(table, val_fraction=0.2)
    assert dataset.classes == (("0", "1", "2") if numbers else ("digit 0", "digit 1", "digit 2"))
    assert {name: len(images) for name, images in dataset.splits().items()} == {"train": 18, "val": 3, "test": 3}
    assert dataset.train.image(0, 3).shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"path": "../../secret.png"}, "points outside of"),
        ({"path": "/etc/passwd"}, "points outside of"),
        ({"path": "data/absent.png"}, "no such image file"),
        ({"split": "tset"}, "unknown split 'tset'"),
        ({"label": " "}, "the label is empty"),
        ({"path": "data/digit 0/000.png"}, "as line 2 does; an image needs one label"),
    ],
)
def test_wrong_rows_are_named_by_line(change: dict[str, object], sentence: str, folder: Path) -> None:
    rows = listed(folder, numbers=False)
    rows[2] |= change
    table = write_table(folder.parent / "list.csv", rows)
    with pytest.raises(VitletError, match=f"line 4: .*{sentence}"):
        load(table)


def test_tables_are_read_as_people_write_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"Path": folder.parent / str(row["path"]), "Class": f" {row['label']} ", "Split": str(row["split"]).title()}
        for row in listed(folder, numbers=False)
    ]
    write_table(folder.parent / "list.csv", rows)
    monkeypatch.chdir(folder.parent)  # absolute paths in a table whose own path is relative
    dataset = load("list.csv", val_fraction=0.2)
    assert dataset.classes == ("digit 0", "digit 1", "digit 2")
    assert {name: len(images) for name, images in dataset.splits().items()} == {"train": 18, "val": 3, "test": 3}
    assert keys(dataset.test)[0] == "data/digit 0/007.png"


def test_a_table_to_measure_on_needs_no_training_images(folder: Path) -> None:
    rows = [row | {"label": 7} for row in listed(folder, numbers=True) if row["split"] == "test"]
    table = write_table(folder.parent / "list.csv", rows)
    dataset = open_dataset(Request(str(table)), fewest_classes=1)
    assert dataset.classes == ("7",)
    assert len(dataset.splits()["test"]) == 3


def test_wrong_tables(folder: Path) -> None:
    file = folder.parent / "list.csv"
    for text, sentence in [
        ("path,label\n", "lists no image"),
        ("paht,label\nx,1\n", "needs one named 'path'"),
        ("path,label\nx.png\n", "line 2: found another number of columns"),
        ("path,label\nx.png,0\ny.png,2\n", "none is 1"),
        ("path,label\nx.png,0\n", "lists one class"),
    ]:
        file.write_text(text)
        with pytest.raises(VitletError) as caught:
            load(file)
        assert sentence in str(caught.value)
    file.write_bytes(b"\xff\xfe\x00path")
    with pytest.raises(VitletError, match="cannot read the table"):
        load(file)
    (folder.parent / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(VitletError, match="cannot read the table"):
        load(folder.parent / "bad.parquet")


def test_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (20, 6, 5, 3), np.uint8)
    labels = np.arange(20) % 4
    np.savez(tmp_path / "data.npz", x_train=images, y_train=labels, x_test=images[:4, ..., 0], y_test=labels[:4])
    dataset = load(tmp_path / "data.npz", val_fraction=0.25)
    assert {name: len(part) for name, part in dataset.splits().items()} == {"train": 16, "val": 4, "test": 4}
    assert dataset.classes == ("0", "1", "2", "3")
    assert dataset.test is not None
    assert dataset.test.image(0, 3).shape == (3, 6, 5)  # grey became three channels
    everything = load(tmp_path / "data.npz", val_fraction=0.0)
    assert torch.equal(everything.train.image(3, 3), torch.from_numpy(images[3]).permute(2, 0, 1))
    assert "no validation images" in everything.note
    np.savez(tmp_path / "bad.npz", x_train=images.astype(float), y_train=labels)
    with pytest.raises(VitletError, match="uint8 of shape"):
        load(tmp_path / "bad.npz")
    np.savez(tmp_path / "bad.npz", images=images)
    with pytest.raises(VitletError, match="needs x_train and y_train"):
        load(tmp_path / "bad.npz")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("pwned",))


def test_a_hostile_array_file_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "evil.npz", x_train=np.array([Evil()], dtype=object), y_train=np.zeros(1, int))
    with pytest.raises(VitletError, match="cannot read the arrays"):
        load(tmp_path / "evil.npz")
    assert not (tmp_path / "pwned").exists()


def test_hugging_face_folder(folder: Path, tmp_path: Path) -> None:
    import datasets

    paths = sorted(folder.rglob("*.png"))
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["digit 0", "digit 1", "digit 2"])}
    )
    table = datasets.Dataset.from_dict(
        {"picture": [str(path) for path in paths], "kind": [path.parent.name for path in paths]}, features=features
    )
    table.save_to_disk(str(tmp_path / "saved"))
    dataset = load(tmp_path / "saved", val_fraction=0.25)
    assert dataset.classes == ("digit 0", "digit 1", "digit 2")
    assert len(dataset.train) == 18
    plain = load(folder, val_fraction=0.0)
    hub = load(tmp_path / "saved", val_fraction=0.0)
    assert all(torch.equal(hub.train.image(i, 3), plain.train.image(i, 3)) for i in range(24))
    datasets.DatasetDict({"train": table, "test": table.select(range(3))}).save_to_disk(str(tmp_path / "both"))
    assert len(load(tmp_path / "both").test or ()) == 3  # type: ignore[arg-type]
    table.remove_columns("kind").save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(VitletError, match="needs an Image and a ClassLabel"):
        load(tmp_path / "bare")


def test_a_saved_dataset_reads_only_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    (tmp_path / "secret.png").write_bytes(png())
    names = [str(tmp_path / "secret.png"), "../secret.png", "link.png", "x\0y", "n" * 5000, "absent.png", "own.png"]
    entries = [*({"bytes": None, "path": name} for name in names), None]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    table = datasets.Dataset.from_dict({"image": entries, "label": [0, 1] * 4}, features=features)
    monkeypatch.setattr(datasets.Image, "embed_storage", lambda _, storage, *__, **___: storage)  # a stranger's table
    monkeypatch.setattr(datasets.Dataset, "_estimate_nbytes", lambda _: 1)
    saved = tmp_path / "saved"
    table.save_to_disk(str(saved))
    (saved / "own.png").write_bytes(png(7))
    (saved / "link.png").symlink_to(tmp_path / "secret.png")
    train = load(saved, val_fraction=0.0).train
    assert train.image(6, 3).max() == 7
    for index in range(3):
        with pytest.raises(
            VitletError, match=rf"cannot read the image train image {index}: .* points outside of .*saved"
        ):
            train.image(index, 3)
    for index in (3, 4, 5, 7):
        with pytest.raises(VitletError, match=rf"train image {index}: no such image file in .*saved"):
            train.image(index, 3)


@pytest.mark.parametrize("name", ["x\0y.png", "n" * 5000, "../../outside.png"])
def test_a_table_names_only_files_of_its_folder(name: str, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "a.png").write_bytes(png())
    columns = {"path": ["a.png", name], "label": ["a", "b"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "list.parquet")
    with pytest.raises(VitletError, match=r"list\.parquet, line 3: (.* points outside of|no such image file).{,400}$"):
        load(tmp_path / "list.parquet")


def make_tree(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(png())
    return root


def two_of(*folders: str) -> list[str]:
    return [f"{folder}/{number}.png" for folder in folders for number in range(2)]


def test_splits_are_known_in_any_case(tmp_path: Path) -> None:
    dataset = load(make_tree(tmp_path, *two_of("Train/a", "Train/b", "TEST/a", "Validation/b")))
    assert dataset.classes == ("a", "b")
    assert {name: len(images) for name, images in dataset.splits().items()} == {"train": 4, "val": 2, "test": 2}


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    assert load(make_tree(tmp_path, *two_of("bus", "car", "train"))).classes == ("bus", "car", "train")


def test_folders_beside_splits_are_left_out_and_counted(tmp_path: Path) -> None:
    dataset = load(make_tree(tmp_path, *two_of("train/a", "train/b", "test/a", "test", "pictures/x")))
    assert dataset.classes == ("a", "b")
    assert "they are in no class of train, val or test: 4" in dataset.note


@pytest.mark.parametrize(
    ("folders", "sentence"),
    [
        (["val/a", "val/b", "test/a"], "test and val and no training images"),
        (["train/a", "train/b", "dev/a"], "holds train beside dev: are these splits or classes"),
        (["train/steam", "train/diesel", "bus", "car"], "holds train beside bus, car"),
        (["data/train/a", "data/train/b", "data/test/a", "docs"], "Give .*data as DATA"),
    ],
)
def test_folders_that_could_be_either_are_refused(folders: list[str], sentence: str, tmp_path: Path) -> None:
    make_tree(tmp_path, *two_of(*folders))
    with pytest.raises(VitletError, match=sentence):
        load(tmp_path)
    with pytest.raises(VitletError, match=sentence):
        load_unlabelled(Request(str(tmp_path)))


def test_archives_as_people_make_them(shared_folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "dot.tar", "w") as opened:
        opened.add(shared_folder, arcname=".")
    with zipfile.ZipFile(tmp_path / "dot.zip", "w") as opened:
        for path in sorted(shared_folder.rglob("*.png")):
            member = zipfile.ZipInfo(f"./{path.relative_to(shared_folder).as_posix()}")
            opened.writestr(member, path.read_bytes())
    plain = load(shared_folder)
    for name in ("dot.tar", "dot.zip"):
        packed = load(tmp_path / name)
        assert (packed.classes, keys(packed.train)) == (plain.classes, keys(plain.train))
        assert torch.equal(packed.train.image(0, 3), plain.train.image(0, 3))


def test_links_that_lead_up_are_not_followed_round(tmp_path: Path) -> None:
    make_tree(tmp_path, *two_of("a", "b"))
    (tmp_path / "a/up").symlink_to(tmp_path)
    assert len(load(tmp_path, val_fraction=0).train) == 4
    (tmp_path / "a/up").unlink()
    (tmp_path / "a/across").symlink_to(tmp_path / "b")
    (tmp_path / "b/back").symlink_to(tmp_path / "a")  # a/across/back is a again
    assert len(load(tmp_path, val_fraction=0).train) == 8


@pytest.mark.parametrize("wrapped", [False, True])
def test_pretraining_meets_no_image_that_a_training_holds_out(wrapped: bool, folder: Path, tmp_path: Path) -> None:
    if wrapped:
        for file in sorted(folder.rglob("007.png")):
            target = folder / "test" / file.parent.name / file.name
            target.parent.mkdir(parents=True)
            file.rename(target)
        (folder / "train").mkdir()
        for each in list(folder.glob("digit *")):
            each.rename(folder / "train" / each.name)
        data = pack_zip(folder, tmp_path / "data.zip", "photographs/")
    else:
        (folder / "logo.png").write_bytes(png())
        data = folder
    labelled, unlabelled = load(data), load_unlabelled(Request(str(data)))
    learned = {key.removeprefix("0/") for key in keys(unlabelled.train)}
    assert ("including the images beside the class folders" in unlabelled.note) == (not wrapped)
    held = {*keys(labelled.val), *(keys(labelled.test) if labelled.test is not None else [])}
    assert not learned & held
    assert learned >= set(keys(labelled.train))
    assert len(learned) == len(labelled.train) + (not wrapped)  # the loose picture joins


def test_hub_labels_that_are_secret(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    files = [str(file) for file in sorted(folder.rglob("*.png"))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    parts = {
        "train": datasets.Dataset.from_dict({"image": files[:8], "label": [0, 1] * 4}, features=features),
        "test": datasets.Dataset.from_dict({"image": files[8:10], "label": [-1, -1]}, features=features),
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    dataset = load(tmp_path / "saved")
    assert dataset.test is None
    assert "the test images are skipped: 2 of 2 have no label" in dataset.note


def test_hidden_and_foreign_files_are_passed_over(folder: Path) -> None:
    before = keys(load(folder, val_fraction=0.0).train)
    (folder / "digit 0" / ".hidden.png").write_bytes(b"")
    (folder / "digit 0" / "notes.txt").write_text("hello")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.png").write_bytes(png())
    (folder / "loose.png").write_bytes(png())
    dataset = load(folder, val_fraction=0.0)
    assert keys(dataset.train) == before
    assert "are beside the class folders: 1" in dataset.note
    assert "format is not supported: 1 (.txt: 1), such as digit 0/notes.txt" in dataset.note


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_files_that_are_not_read_are_counted_and_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "IMAGE_SUFFIXES", (".png", ".avif"))  # as without pillow-heif
    root = make_tree(tmp_path / "data", "a/1.png", "a/2.PNG", "b/1.png", "b/2.png", "b/IMG_1.HEIC", "b/x.docx")
    make_tree(root, "b/.hidden", "a/IMG_2.heif", "a/plain")
    data = root if kind == "folder" else tmp_path / f"data.{kind}"
    if kind == "tar":
        with tarfile.open(data, "w") as tar:
            tar.add(root, ".")
    elif kind == "zip":
        with zipfile.ZipFile(data, "w") as opened:
            for file in (file for file in root.rglob("*") if file.is_file()):
                opened.write(file, file.relative_to(root))
    needed = (
        r"not supported: 4 \((\.heic: 1|\.docx: 1|\.heif: 1|no ending: 1|, ){7}\), such as a/IMG_2.heif, which needs"
    )
    assert re.search(needed + r" pillow-heif: pip install 'vitlet\[heic\]'$", open_dataset(Request(str(data))).note)
    assert re.search(needed, load_unlabelled(Request(str(data))).note)
    make_tree(tmp_path / "phone", "a/1.heic", "b/2.heic")
    with pytest.raises(VitletError, match=r"no images.*not supported: 2 \(\.heic: 2\).*vitlet\[heic\]"):
        load(tmp_path / "phone")


HOSTILE = ["<script>alert(1)<", "quote\"'s", "new\nline", "\u202eright to left", "-rf x..", "=cmd()", "\U0001f600"]


def test_class_names_are_names_only(tmp_path: Path) -> None:
    for name in HOSTILE:
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "data" / name / f"{number}.png").write_bytes(png(number))
    dataset = load(tmp_path / "data", val_fraction=0.5)
    assert sorted(dataset.classes) == sorted(HOSTILE)
    assert len(dataset.train) == len(HOSTILE)


@pytest.mark.parametrize("fraction", [0.1, 0.25])
def test_splits_do_not_depend_on_order_and_grow_by_nesting(fraction: float, folder: Path) -> None:
    everything = load(folder, val_fraction=0.0).train
    half = keep(everything, fraction=0.5, seed=1)
    smaller = keep(everything, fraction=fraction, seed=1)
    assert set(keys(smaller)) < set(keys(half))
    assert [list(half.labels).count(label) for label in range(3)] == [4, 4, 4]
    for file in sorted(folder.rglob("*.png"))[::5]:  # take some files away: the rest keep their side
        file.unlink()
    left = load(folder, val_fraction=0.0).train
    held, held_before = hold_out(left, 0.25, 1)[1], hold_out(everything, 0.25, 1)[1]
    moved = set(keys(held)) - set(keys(held_before))
    assert len(moved) <= 3  # only those that step up into a freed place


def test_per_class_and_classes(folder: Path) -> None:
    dataset = load(folder, per_class=3, val_fraction=0.2)
    assert [list(dataset.train.labels).count(label) for label in range(3)] == [3, 3, 3]
    with pytest.raises(VitletError, match="has 6 training images, but per_class is 50"):
        load(folder, per_class=50, val_fraction=0.2)
    two = load(folder, classes=("digit 2", "digit 0"), val_fraction=0.0)
    assert two.classes == ("digit 2", "digit 0")
    assert {(key.split("/")[0], label) for key, label in zip(keys(two.train), two.train.labels, strict=True)} == {
        ("digit 2", 0),
        ("digit 0", 1),
    }
    with pytest.raises(VitletError, match=r"no class .digit 9.\. Did you mean"):
        load(folder, classes=("digit 9", "digit 0"))
    with pytest.raises(VitletError, match="at least two different classes"):
        load(folder, classes=("digit 0", "digit 0"))


def test_folds_cover_everything_once(folder: Path) -> None:
    everything = load(folder, val_fraction=0.0).train
    held = [set(keys(fold(everything, 4, number, 0)[1])) for number in range(1, 5)]
    assert set.union(*held) == set(keys(everything))
    assert sum(len(part) for part in held) == 24
    for number in range(1, 5):
        train, val = fold(everything, 4, number, 0)
        assert not set(keys(train)) & set(keys(val))
        assert sorted(val.labels) == [0, 0, 1, 1, 2, 2]
    dataset = load(folder, folds=4, fold=2)
    assert "fold 2 of 4" in dataset.note
    with pytest.raises(VitletError, match="a number from 1 to 4"):
        load(folder, folds=4, fold=5)


@pytest.mark.parametrize("how", ["path", "table", "folds"])
def test_groups_never_straddle_a_split(how: str, folder: Path) -> None:
    def group(key: str) -> str:
        return str(int(Path(key).stem) % 4)

    if how == "table":
        table = write_table(folder.parent / "list.csv", listed(folder, numbers=False))
        dataset = load(table, group_by="site", val_fraction=0.3)
    elif how == "path":
        for file in sorted(folder.rglob("*.png")):
            file.rename(file.with_name(f"{file.stem}_site{group(file.name)}.png"))
        dataset = load(folder, group_by=r"site(\d)", val_fraction=0.3)
    else:
        dataset = load(folder, group_by=r"\d+(?=\.png)", folds=3)
    sides = [{Path(key).stem for key in keys(images)} for images in (dataset.train, dataset.val)]
    if how != "folds":
        sides = [{str(int(stem.split("_")[0]) % 4) for stem in side} for side in sides]
    assert sides[0]
    assert sides[1]
    assert not sides[0] & sides[1]
    assert "groups not split" in dataset.note


def test_wrong_groups(folder: Path) -> None:
    for pattern, sentence in [("(", "not a regular expression"), ("zebra", "finds nothing in"), ("digit", "one group")]:
        with pytest.raises(VitletError, match=sentence):
            load(folder, group_by=pattern)


@pytest.mark.parametrize("split", ["val", "test"])
def test_groups_on_both_sides_of_given_splits_are_refused(split: str, folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "split"
    for side, place in (("train", 0), (split, 4)):
        for number, file in enumerate(sorted(folder.rglob(f"{place:03d}.png"))):
            target = root / side / file.parent.name / f"site{number}_{side}.png"
            target.parent.mkdir(parents=True)
            target.write_bytes(file.read_bytes())
    whole = {"val": "validation", "test": "test"}[split]
    with pytest.raises(VitletError, match=f"group '0' has training and {whole} images"):
        load(root, group_by=r"site(\d)")
    for number, file in enumerate(sorted((root / split).rglob("*.png"))):
        file.rename(file.with_name(f"site{number + 5}.png"))
    assert len(load(root, group_by=r"site(\d)", val_fraction=0).splits()[split]) == 3


@pytest.mark.parametrize("groups", [2, 4, 5])
def test_of_few_large_groups_one_is_held_out(groups: int) -> None:
    images = Arrays(torch.zeros(20, 1, 2, 2, dtype=torch.uint8), (0, 1) * 10)
    names = [str(index // 2 % groups) for index in range(20)]
    _, held = hold_out(images, 0.1, 0, groups=names)
    assert len({names[index] for index in held.indices}) == 1


def test_one_class_of_one_image_stays_in_training() -> None:
    images = Arrays(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), (0, 0, 0, 0, 1))
    train, held = hold_out(images, 0.25, 0)
    assert sorted(train.labels) == [0, 0, 0, 1]
    assert held.labels == [0]


def test_items_without_a_class_are_held_out_by_number() -> None:
    train, held = hold_out_items("abcdefghij", 0.3, 1)
    assert len(held) == 3 and sorted(train + held) == list("abcdefghij")
    assert (train, held) == hold_out_items("abcdefghij", 0.3, 1) != hold_out_items("abcdefghij", 0.3, 2)
    assert hold_out_items("ab", 0.0, 1) == (["a", "b"], [])
    with pytest.raises(VitletError, match="2 training images are too few to hold out"):
        hold_out_items("ab", 0.1, 1)


@pytest.mark.parametrize(
    ("module", "extra", "data"),
    [("pyarrow.parquet", "tables", "list.parquet"), ("datasets", "hub", "hf:owner/name"), ("webdataset", "shards", "")],
)
def test_a_missing_extra_is_named(
    module: str, extra: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.parquet").touch()
    index = {"classes": ["a", "b"], "splits": {"train": {"a.tar": 1}, "val": {"b.tar": 1}}}
    (tmp_path / "shards.json").write_text(json.dumps(index))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(VitletError, match=rf"needs {module.split('.')[0]}: pip install 'vitlet\[{extra}\]'"):
        load(data if extra == "hub" else tmp_path / data)


def test_write_digits_twice_differs(tmp_path: Path) -> None:
    """The helper's test images are other scans than its training images."""
    first = write_digits(tmp_path / "a", classes=1, per_class=2)
    second = write_digits(tmp_path / "b", classes=1, per_class=2, skip=2)
    contents = [file.read_bytes() for root in (first, second) for file in sorted(root.rglob("*.png"))]
    assert len(set(contents)) == 4


def test_far_more_validation_than_training_images_are_cut_down() -> None:
    def sizes(**changes: Any) -> tuple[int, int, str]:
        found = load_dataset(Request("digits", **changes))
        assert found.val is not None
        return len(found.train), len(found.val), found.note

    train, val, note = sizes(val_fraction=0.5, per_class=2)
    assert (train, val) == (20, 100)  # ten of each class
    assert "validation images used: 100 of 7" in note
    train, val, note = sizes(val_fraction=0.5, per_class=8)  # nine times as many: as in earlier versions
    assert train == 80
    assert 700 < val < 730
    assert "validation images used" not in note
    assert "validation images used" not in sizes(val_fraction=0.5)[2]
    assert set(validation_keys(val_fraction=0.5, per_class=2)) <= set(validation_keys(val_fraction=0.5))


def validation_keys(**changes: Any) -> list[str]:
    val = load_dataset(Request("digits", **changes)).val
    assert val is not None
    return [val.key(index) for index in range(len(val))]
