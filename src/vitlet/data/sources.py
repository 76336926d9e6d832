"""Datasets from DATA: a folder, an archive, a table, arrays or a name; then classes and splits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitlet.data.archives import ArchiveTree
from vitlet.data.decode import describe_others
from vitlet.data.hub import is_saved_dataset, read_hub
from vitlet.data.images import Arrays, Dataset, ImageSet, Joined, Standing
from vitlet.data.named import OFFICIAL, load_named, require_data
from vitlet.data.shards import is_shards, read_shards
from vitlet.data.splits import fold, hold_out, keep, pick_classes
from vitlet.data.tables import read_numpy, read_table
from vitlet.data.trees import FolderTree, Tree, TreeLayout, find_layout, read_tree
from vitlet.errors import VitletError, nearest

ARCHIVE_SUFFIXES = (".zip", ".tar")
TABLE_SUFFIXES = (".csv", ".parquet", ".pq")
OVERSIZED = 10
"""Held-out images for each training image beyond which they are cut down by the same share as the training images."""

LEAST_VALIDATION = 10
"""Images of each class that such a cut leaves."""


@dataclass(frozen=True)
class Request:
    """Data source, subset of images, and splits.

    Attributes:
        data: path or name.
        data_dir: folder of named datasets, or of the images that a table lists.
        download: download a named dataset if it is missing.
        class_list: file with the class ids of a subset of ImageNet.
        partial: accept a named dataset that is not complete.
        classes: only these classes, by name.
        val_fraction: share of the training images held out where there are no validation images; 0 for none.
        folds: cross-validation: this many parts ...
        fold: ... of which this one (from 1) validates.
        group_by: pattern on the path, or column of a table; images of one group stay on one side.
        fraction: share of the training images to use.
        per_class: number of training images to use of each class.
        seed: random seed of every choice.
    """

    data: str
    data_dir: str | None = None
    download: bool = False
    class_list: str | None = None
    partial: bool = False
    classes: tuple[str, ...] | None = None
    val_fraction: float = 0.1
    folds: int | None = None
    fold: int = 1
    group_by: str | None = None
    fraction: float = 1.0
    per_class: int | None = None
    seed: int = 0


def load_dataset(request: Request) -> Dataset:
    """Load the requested splits; the note describes how they were made."""
    dataset, extra = _open(request)
    if request.classes is not None:
        dataset = _only_classes(dataset, request.classes)
    train, val = dataset.train, dataset.val
    notes = [dataset.note] if dataset.note else []
    groups, grouped = None, ""
    if request.group_by:
        groups, grouped = _groups(request.group_by, train, extra), ", groups not split"
        for name, images in (("validation", None if request.folds else val), ("test", dataset.test)):
            if images is not None:
                _require_apart(groups, _groups(request.group_by, images, extra), name)
    if request.folds is not None:
        if val is not None:
            notes.append("the given validation images are not used")
        train, val = fold(train, request.folds, request.fold, request.seed, groups=groups)
        which = f"fold {request.fold} of {request.folds} ({len(val)})"
        notes.append(f"validation images: {which}, seed {request.seed}{grouped}")
    elif val is None and request.val_fraction > 0:
        total = len(train)
        train, val = hold_out(train, request.val_fraction, request.seed, groups=groups)
        notes.append(f"validation images: {len(val)} of {total}, held out by class, seed {request.seed}{grouped}")
    elif val is None:
        notes.append("no validation images: the last epoch is the result")
    full, held_out = len(train), dataset.val is None and request.folds is None
    train = keep(train, fraction=request.fraction, per_class=request.per_class, seed=request.seed)
    if len(train) < full:
        notes.append(f"training images used: {len(train)} of {full}")
        if held_out and val is not None and len(val) > OVERSIZED * len(train):
            held = len(val)
            val = keep(val, fraction=len(train) / full, seed=request.seed, least=LEAST_VALIDATION)
            notes.append(f"validation images used: {len(val)} of {held}, which were far more than the training images")
    return replace(dataset, train=train, val=val, note="; ".join(notes) or "its splits as given")


def load_unlabelled(request: Request) -> Dataset:
    """Images without labels: a flat folder or archive will do; of anything else, its training images.

    Where they have classes, they are those that a training with labels would see, so that its validation images are met
    nowhere; images that lie beside the class folders join them.
    """
    tree = _tree(request.data)
    layout = None if tree is None else find_layout(tree)
    chosen = request.per_class or request.classes or request.folds or request.group_by
    if chosen or (not is_shards(request.data) and (layout is None or _has_classes(layout))):
        dataset = load_dataset(request)
        parts = {name: Unlabelled(images, images.one_size) for name, images in dataset.splits().items()}
        train: ImageSet = parts["train"]
        note = f"{dataset.note}; labels are not looked at"
        if tree is not None and layout is not None and layout.loose and not chosen:
            loose = tree.images(layout.loose, [0] * len(layout.loose))
            train = Joined((train, keep(loose, fraction=request.fraction, seed=request.seed)))
            note += ", including the images beside the class folders"
        return Dataset((), train, parts.get("val"), None, note)
    if tree is None or layout is None:
        images: ImageSet = keep(_open(request)[0].train, fraction=request.fraction)  # a stream cannot be cut
        return Dataset((), images, None, None, f"{len(images)} images without labels")
    paths = sorted([*layout.labelled["train"], *layout.loose])
    others = [describe_others(tree.others)] if tree.others else []
    if not paths:
        raise VitletError("; ".join([f"{request.data} holds no images", *others]) + ".")
    images, val, note = tree.images(paths, [0] * len(paths)), None, f"{len(paths)} images without labels"
    if request.val_fraction > 0 and len(images) > 1:
        images, val = hold_out(images, request.val_fraction, request.seed)
        note += f", {len(val)} of them held out"
    images = keep(images, fraction=request.fraction, seed=request.seed)
    return Dataset((), images, val, None, "; ".join([note, *others]))


def _tree(data: str) -> Tree | None:
    """The folder or archive of images that this is, or None."""
    path = Path(data)
    if path.is_dir() and not is_saved_dataset(path) and not is_shards(data):
        return FolderTree.open(path)
    if path.is_file() and path.suffix.lower() in ARCHIVE_SUFFIXES:
        return ArchiveTree.open(path)
    return None


def _has_classes(layout: TreeLayout) -> bool:
    """Whether a training with labels could be held on these images, and some class has two."""
    classes = [path.parts[layout.place] for path in layout.labelled["train"]]
    return 1 < len(set(classes)) < len(classes)


class Unlabelled(Standing):
    """A set whose labels are not looked at."""

    @property
    def labels(self) -> Sequence[int]:
        return [0] * len(self.base)


def open_dataset(request: Request, *, fewest_classes: int = 2) -> Dataset:
    """The source as it is: nothing held out."""
    return _open(request, fewest_classes)[0]


def _open(request: Request, fewest_classes: int = 2) -> tuple[Dataset, dict[str, dict[str, str]]]:
    """The source, and the columns of its table by path if it has one."""
    data = request.data
    path = Path(data)
    if data == "digits":
        return digits(), {}
    if data.startswith("hf:"):
        return read_hub(data.removeprefix("hf:")), {}
    if is_shards(data):
        return read_shards(data), {}
    if data in OFFICIAL and not path.exists():
        root = Path(request.data_dir or "data")
        class_list = Path(request.class_list) if request.class_list else None
        return load_named(data, root, download=request.download, class_list=class_list, partial=request.partial), {}
    require_data(data, request.data_dir, download=request.download)
    if (tree := _tree(data)) is not None:
        return read_tree(tree, fewest_classes=fewest_classes), {}
    if path.is_dir():
        return read_hub(data), {}
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        folder = Path(request.data_dir) if request.data_dir else None
        return read_table(path, root=folder, fewest_classes=fewest_classes)
    if suffix == ".npz":
        return read_numpy(path), {}
    raise VitletError(
        f"{data} is a file of an unknown kind; known are {', '.join((*ARCHIVE_SUFFIXES, *TABLE_SUFFIXES, '.npz'))}."
    )


def _only_classes(dataset: Dataset, names: Sequence[str]) -> Dataset:
    for name in names:
        if name not in dataset.classes:
            raise VitletError(f"the data has no class {name!r}.{nearest(name, dataset.classes)}")
    if len(set(names)) < len(names) or len(names) < 2:
        raise VitletError(f"--classes needs at least two different classes, found {', '.join(names)}.")
    labels = [dataset.classes.index(name) for name in names]
    picked = {split: pick_classes(images, labels) for split, images in dataset.splits().items()}
    note = "; ".join(part for part in (dataset.note, f"{len(names)} of {len(dataset.classes)} classes") if part)
    return Dataset(tuple(names), picked["train"], picked.get("val"), picked.get("test"), note)


def _groups(group_by: str, images: ImageSet, extra: dict[str, dict[str, str]]) -> list[str]:
    """The group of each image: a column of its table, or what the pattern finds in its path."""
    keys = [images.key(index) for index in range(len(images))]
    if extra:
        columns = next(iter(extra.values()))
        if group_by not in columns:
            raise VitletError(f"the table has no column {group_by!r}.{nearest(group_by, columns)}")
        return [extra[key][group_by] for key in keys]
    try:
        pattern = re.compile(group_by)
    except re.error as problem:
        raise VitletError(f"group_by is {group_by!r}, which is not a regular expression: {problem}.") from None
    groups = []
    for key in keys:
        match = pattern.search(key)
        if match is None:
            raise VitletError(f"group_by {group_by!r} finds nothing in {key!r}; every image needs a group.")
        groups.append(match.group(1) if pattern.groups else match.group())
    return groups


def _require_apart(training: Sequence[str], others: Sequence[str], name: str) -> None:
    """Refuse given splits that tear groups apart."""
    if both := sorted(set(training) & set(others)):
        raise VitletError(
            f"the group {both[0]!r} has training and {name} images ({len(both)} groups have both); a group"
            " must be on one side. Move its images there, or merge the folders and let --group-by split them."
        )


def digits() -> Dataset:
    """1,797 real scans of handwritten digits, 8 x 8; no official split exists, so a fixed one is made."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * 16).clamp(0, 255).byte()[:, None]
    everything = Arrays(images, tuple(int(label) for label in bunch.target))
    train, test = hold_out(everything, 0.2, 0, salt="test")  # never changes with the seed of a run
    return Dataset(tuple(str(name) for name in bunch.target_names), train, None, test, "scikit-learn's digits")
