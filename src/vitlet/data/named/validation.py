"""ImageNet's validation images in the layouts they come in: class folders, or one folder and a table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from vitlet.data.images import Files
from vitlet.data.named.folders import VAL, class_names, first_folder, read_classes, refuse_strangers
from vitlet.data.named.listed import read_lines, read_listed
from vitlet.errors import VitletError


def read_validation(root: Path, data_dir: Path, classes: Sequence[str], *, strict: bool) -> tuple[Files | None, str]:
    """Class folders, Tiny-ImageNet's annotations, or Kaggle's table; and what the note adds."""
    val = first_folder(root, VAL)
    if val is None:
        return None, ""
    folders = class_names(val)
    if folders and folders != ("images",):
        if strict:
            refuse_strangers(val, classes)
        return read_classes(val, classes), ""
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
    listed = read_listed(home, ((name, numbers[wnid]) for name, wnid in entries if wnid in numbers), table)
    return Files(listed.paths, listed.labels), f", validation images by {table.name}{listed.remark()}"


def _annotations(table: Path) -> list[tuple[str, str]]:
    """Tiny-ImageNet: file, class and box, with tabs between."""
    rows = [line.split("\t") for line in read_lines(table)]
    short = next((row for row in rows if len(row) < 2), None)
    if short is not None:
        raise VitletError(f"{table} has the line {short[0][:60]!r}; 'FILE<tab>WNID<tab>...' is needed. Get it again.")
    return [(row[0], row[1]) for row in rows]


def _kaggle(table: Path) -> list[tuple[str, str]]:
    """Kaggle: an image's name, and its class with boxes."""
    rows = list(csv.DictReader(read_lines(table)))
    if any(not row.get("ImageId") or not (row.get("PredictionString") or "").strip() for row in rows):
        raise VitletError(f"{table} needs the columns ImageId and PredictionString, filled. Get it again.")
    return [(f"{row['ImageId']}.JPEG", row["PredictionString"].split()[0]) for row in rows]
