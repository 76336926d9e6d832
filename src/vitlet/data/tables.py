"""Lists of images: CSV or Parquet files with a path and a label for each; NumPy files with the pixels themselves."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitlet.data.images import Arrays, Dataset, Files, file_inside
from vitlet.data.trees import SPLIT_OF
from vitlet.errors import VitletError, first_line, nearest, require_extra

PATH_COLUMNS = ("path", "file", "filename", "file_name", "image", "filepath")
LABEL_COLUMNS = ("label", "class", "target", "category", "class_name")


def read_table(
    file: Path, *, root: Path | None = None, fewest_classes: int = 2
) -> tuple[Dataset, dict[str, dict[str, str]]]:
    """Images listed in a CSV or Parquet file with the columns path and label, and perhaps split.

    Paths are relative to ``root``, by default the file's own folder, and may not leave it. Labels are class names, or
    whole numbers from 0. Returns the dataset, and for each path its further columns (for grouping). A table to measure
    on (``fewest_classes`` 1) may have one class, and no training images.
    """
    rows = _read_parquet(file) if file.suffix.lower() in (".parquet", ".pq") else _read_csv(file)
    if not rows:
        raise VitletError(f"{file} lists no image.")
    path_column = _column(file, rows[0], PATH_COLUMNS)
    label_column = _column(file, rows[0], LABEL_COLUMNS)
    split_column = next((name for name in rows[0] if name.lower() == "split"), None)
    root = (root or file.parent).resolve()
    classes, index = _classes(file, [row[label_column] for row in rows], fewest_classes)
    found: dict[str, tuple[list[Path], list[int]]] = {"train": ([], [])}
    extra: dict[str, dict[str, str]] = {}
    lines: dict[Path, int] = {}
    for number, row in enumerate(rows, start=2):
        written = (row[split_column] if split_column else "") or "train"
        split = SPLIT_OF.get(written.lower())
        if split is None:
            raise VitletError(f"{file}, line {number}: unknown split {written!r}; use train, val or test.")
        try:
            path = file_inside(row[path_column], root)
        except VitletError as problem:
            advice = "Give the folder that holds the images as --data-dir."
            raise VitletError(f"{file}, line {number}: {problem} {advice}") from None
        if lines.setdefault(path, number) != number:
            raise VitletError(
                f"{file}, line {number}: lists {row[path_column]!r}, as line {lines[path]} does; an image needs one"
                " label and one split. Remove one of the lines."
            )
        paths, labels = found.setdefault(split, ([], []))
        paths.append(path)
        labels.append(index[row[label_column]])
        extra[path.relative_to(root).as_posix()] = row
    if not found["train"][0] and fewest_classes > 1:
        raise VitletError(f"{file} lists no training image.")
    sets = {name: Files(tuple(paths), tuple(labels), root) for name, (paths, labels) in found.items()}
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), f"listed in {file}"), extra


def _read_csv(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise VitletError(
                        f"{file}, line {reader.line_num}: found another number of columns than in line 1."
                    )
                rows.append({name.strip(): value.strip() for name, value in row.items()})
            return rows
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise VitletError(f"cannot read the table {file}: {first_line(problem)}.") from problem


def _read_parquet(file: Path) -> list[dict[str, Any]]:
    parquet = require_extra("pyarrow.parquet", "tables", "reading Parquet (a CSV file does without)")
    try:
        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except Exception as problem:  # pyarrow has its own errors
        raise VitletError(f"cannot read the table {file}: {first_line(problem)}.") from problem
    return [{key: "" if value is None else str(value).strip() for key, value in row.items()} for row in rows]


def _column(file: Path, row: Mapping[str, Any], names: Sequence[str]) -> str:
    found = [column for name in names for column in row if column.lower() == name]
    if not found:
        hint = nearest(names[0], [str(column) for column in row])
        raise VitletError(f"{file} has the columns {', '.join(map(str, row))}; it needs one named {names[0]!r}.{hint}")
    return found[0]


def _classes(file: Path, labels: Sequence[str], fewest: int) -> tuple[tuple[str, ...], dict[str, int]]:
    """Class names, and the index of each label as it is written in the table."""
    names = sorted(set(labels))
    if "" in names:
        raise VitletError(f"{file}, line {labels.index('') + 2}: the label is empty; every image needs one.")
    classes = tuple(names)
    index = {name: position for position, name in enumerate(names)}
    if fewest > 1 and all(name.isdecimal() for name in names):
        index = {name: int(name) for name in names}
        classes = tuple(map(str, sorted(set(index.values()))))
        missing = next((number for number in range(len(classes)) if str(number) not in classes), None)
        if missing is not None:
            raise VitletError(
                f"{file}: labels are numbers up to {classes[-1]}, but none is {missing}; they need to be"
                " 0, 1, 2, ... without gaps, or names."
            )
    if len(classes) < fewest:
        raise VitletError(f"{file} lists one class ({classes[0]!r}); a classifier needs at least two.")
    return classes, index


def read_numpy(file: Path) -> Dataset:
    """An ``.npz`` file with ``x_train``, ``y_train`` and perhaps ``x_val``, ``y_val``, ``x_test``, ``y_test``."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as problem:  # damaged archives fail in many ways; a lone array is no archive
        raise VitletError(f"cannot read the arrays of {file}: {first_line(problem)}.") from problem
    if "x_train" not in arrays or "y_train" not in arrays:
        raise VitletError(f"{file} holds {', '.join(arrays) or 'nothing'}; it needs x_train and y_train.")
    sets = {}
    for split in ("train", "val", "test"):
        if f"x_{split}" in arrays:
            labels = arrays.get(f"y_{split}")
            if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
                raise VitletError(f"{file}: y_{split} must be one whole number per image.")
            if not len(labels):
                raise VitletError(f"{file}: y_{split} is empty; leave x_{split} and y_{split} out, or fill them.")
            try:
                sets[split] = Arrays.of(arrays[f"x_{split}"], labels.tolist())
            except VitletError as problem:
                raise VitletError(f"{file}, x_{split}: {problem}") from None
    count = 1 + max(max(images.labels) for images in sets.values())
    if min(min(images.labels) for images in sets.values()) < 0 or count < 2:
        raise VitletError(f"{file}: labels need to be 0 or more, and of at least two classes.")
    classes = tuple(str(label) for label in range(count))
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), f"arrays of {file}")
