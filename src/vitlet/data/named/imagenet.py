"""ImageNet and its small relatives: training images in a folder per WordNet id, validation images in any usual layout.

Classes are WordNet ids in their own order, the one name that is the same in every layout (two classes are "crane").
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from vitlet.data.images import Dataset, Files
from vitlet.data.named import folders
from vitlet.data.named.official import Official
from vitlet.errors import VitletError

_WNID = re.compile(r"n\d{8}", re.ASCII)

_KNOWN = {
    "imagenette": "n01440764 n02102040 n02979186 n03000684 n03028079 n03394916 n03417042 n03425413 n03445777 n03888257",
    "imagewoof": "n02086240 n02087394 n02088364 n02089973 n02093754 n02096294 n02099601 n02105641 n02111889 n02115641",
}


def find_imagenet(official: Official, data_dir: Path, class_list: Path | None = None) -> Dataset | None:
    """Training images by class folder; the validation images are the test images."""
    for root in folders.roots(data_dir, official.folders):
        train = folders.first_folder(root, folders.TRAIN)
        names = folders.class_names(train) if train is not None else ()
        available = tuple(name for name in names if _WNID.fullmatch(name))
        if train is None or not available:
            continue
        classes = _choose(official, train, available, class_list)
        test, how = _read_validation(root, data_dir, classes, strict=official.name != "imagenet100")
        return Dataset(classes, folders.read_classes(train, classes), None, test, f"class folders in {root}{how}")
    return None


def _choose(official: Official, train: Path, available: tuple[str, ...], class_list: Path | None) -> tuple[str, ...]:
    """The classes to keep: those of the list for imagenet100, else all that are there."""
    if official.name in _KNOWN:
        known = _KNOWN[official.name].split()
        stranger = next((wnid for wnid in available if wnid not in known), None)
        if stranger is not None:
            raise VitletError(
                f"{train} holds the class {stranger}, which {official.name} does not have; its classes are"
                f" {', '.join(known)}. Point --data-dir at {official.name}."
            )
    if official.name != "imagenet100" or (class_list is None and len(available) == official.classes):
        return available
    if class_list is None:
        raise VitletError(
            f"{train} holds {len(available):,} classes and imagenet100 has {official.classes}: say which with"
            " --class-list FILE, a WordNet id (such as n02869837) per line."
        )
    wanted = _read_class_list(class_list)
    missing = next((wnid for wnid in wanted if wnid not in set(available)), None)
    if missing is not None:
        raise VitletError(f"{class_list} lists {missing}, but {train} has no such folder. Add it, or correct the list.")
    return wanted


def _read_class_list(path: Path) -> tuple[str, ...]:
    """The WordNet ids at the start of each line, sorted; lines with ``#`` are remarks."""
    wnids: set[str] = set()
    for line in folders.read_lines(path):
        if line.lstrip().startswith("#"):
            continue
        wnid = line.split()[0]
        if not _WNID.fullmatch(wnid) or wnid in wnids:
            what = "a second time" if wnid in wnids else "no WordNet id (such as n02869837)"
            raise VitletError(
                f"{path} has the line {line[:40]!r}, {what}; a WordNet id per line, each once, is needed."
            )
        wnids.add(wnid)
    return tuple(sorted(wnids))


def _read_validation(root: Path, data_dir: Path, classes: Sequence[str], *, strict: bool) -> tuple[Files | None, str]:
    """Class folders, Tiny-ImageNet's annotations, or Kaggle's table; and what the note adds."""
    val = folders.first_folder(root, folders.VAL)
    if val is None:
        return None, ""
    inner = folders.class_names(val)
    if inner and inner != ("images",):
        if strict:
            folders.refuse_strangers(val, classes)
        return folders.read_classes(val, classes), ""
    if (val / "val_annotations.txt").is_file():
        table, home = val / "val_annotations.txt", val / "images"
        entries = _annotations(table)
    else:
        upward = [folder for folder in (root, *root.parents) if folder.is_relative_to(data_dir)]
        tables = (folder / "LOC_val_solution.csv" for folder in upward)
        found = next((path for path in tables if path.is_file()), None)
        if found is None:
            return None, f", but neither class folders nor LOC_val_solution.csv for {val}"
        table, home = found, val
        entries = _kaggle(table)
    return _by_table(table, home, entries, classes, strict=strict)


def _by_table(
    table: Path, home: Path, entries: list[tuple[str, str]], classes: Sequence[str], *, strict: bool
) -> tuple[Files, str]:
    numbers = {wnid: number for number, wnid in enumerate(classes)}
    stranger = next((wnid for _, wnid in entries if wnid not in numbers), None)
    if strict and stranger is not None:
        raise VitletError(
            f"{table} names the class {stranger!r}, of which there are no training images; it needs a folder among the"
            " training images. Is the download complete?"
        )
    listed = folders.read_listed(home, ((name, numbers[wnid]) for name, wnid in entries if wnid in numbers), table)
    return listed, f", validation images by {table.name}{listed.remark()}"


def _annotations(table: Path) -> list[tuple[str, str]]:
    """Tiny-ImageNet: file, class and box, with tabs between."""
    rows = [line.split("\t") for line in folders.read_lines(table)]
    short = next((row for row in rows if len(row) < 2), None)
    if short is not None:
        raise VitletError(f"{table} has the line {short[0][:60]!r}; 'FILE<tab>WNID<tab>...' is needed. Get it again.")
    return [(row[0], row[1]) for row in rows]


def _kaggle(table: Path) -> list[tuple[str, str]]:
    """Kaggle: an image's name, and its class with boxes."""
    rows = list(csv.DictReader(folders.read_lines(table)))
    if any(not row.get("ImageId") or not (row.get("PredictionString") or "").strip() for row in rows):
        raise VitletError(f"{table} needs the columns ImageId and PredictionString, filled. Get it again.")
    return [(f"{row['ImageId']}.JPEG", row["PredictionString"].split()[0]) for row in rows]
