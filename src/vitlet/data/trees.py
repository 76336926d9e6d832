"""Trees of image files with class folders in them: a folder, or a zip or tar file read in place.

A layout is ``class/image`` or ``split/class/image``; one folder around everything is looked through. Where a folder
could be a split as well as a class, the tree is refused: a guess would train on test images.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitlet.data.archives import ArchiveTree
from vitlet.data.decode import describe_others, is_image
from vitlet.data.images import Dataset, Files, ImageSet
from vitlet.errors import VitletError

SPLIT_OF = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "val"
)
"""Of a folder's or a row's word in lower case, the split that it means."""


@dataclass(frozen=True)
class FolderTree:
    """A folder on disk."""

    root: Path
    paths: tuple[PurePosixPath, ...]  # of the images: relative, sorted
    others: tuple[PurePosixPath, ...] = ()
    """Files that are not read."""

    @property
    def name(self) -> str:
        """For error messages."""
        return str(self.root)

    @staticmethod
    def open(root: Path) -> FolderTree:
        """List a folder, without hidden files and links to parent folders."""
        found, others = [], []
        for folder, folders, files in os.walk(root, followlinks=True, onerror=_cannot_list):
            folders[:] = sorted(each for each in folders if not each.startswith(".") and not _leads_up(folder, each))
            inner = PurePosixPath(Path(folder).relative_to(root).as_posix())
            for name in files:
                if is_image(name):
                    found.append(inner / name)
                elif not name.startswith("."):
                    others.append(inner / name)
        return FolderTree(root, tuple(sorted(found)), tuple(others))

    def images(self, paths: Sequence[PurePosixPath], labels: Sequence[int]) -> Files:
        return Files(tuple(self.root / path for path in paths), tuple(labels), self.root)


Tree = FolderTree | ArchiveTree


def _cannot_list(problem: OSError) -> None:
    raise VitletError(f"cannot look into the folder {problem.filename}: {problem.strerror}.") from problem


def _leads_up(folder: str, name: str) -> bool:
    """Whether a folder is a link to one of its own parents."""
    link = Path(folder, name).absolute()
    return link.is_symlink() and any(above.resolve() == link.resolve() for above in link.parents)


@dataclass(frozen=True)
class TreeLayout:
    """The paths of a tree by split.

    Attributes:
        labelled: by split, the images in class folders.
        loose: training images that do not.
        place: which part of a path is its class.
        others: images in folders that are neither split nor class, or of val and test in no class.
    """

    labelled: dict[str, list[PurePosixPath]]
    loose: list[PurePosixPath]
    place: int
    others: int


def find_layout(tree: Tree) -> TreeLayout:
    """Find which folders are splits and which are classes; ambiguous layouts are refused."""
    strip = _depth_around(tree.paths)
    split = _has_splits(tree, strip)
    found: dict[str, list[PurePosixPath]] = defaultdict(list)
    loose, others = [], 0
    for path in tree.paths:
        parts = path.parts[strip:]
        name = SPLIT_OF.get(parts[0].lower()) if split and len(parts) > 1 else "train"
        if name is not None and len(parts) >= (3 if split else 2):
            found[name].append(path)
        elif name == "train":
            loose.append(path)
        else:
            others += 1
    return TreeLayout(found, loose, strip + split, others)


def _has_splits(tree: Tree, strip: int) -> bool:
    """Whether the outermost folders are splits, not classes."""
    inner: dict[str, set[str]] = defaultdict(set)  # the folders in each of them
    for path in tree.paths:
        if len(path.parts) > strip + 1:
            inner[path.parts[strip]].update(path.parts[strip + 1 : -1][:1])
    named = {top: SPLIT_OF[top.lower()] for top in inner if top.lower() in SPLIT_OF}
    others = sorted(set(inner) - set(named))
    where = PurePosixPath(tree.name, *(tree.paths[0].parts[:strip] if tree.paths else ()))
    if not named:
        for top in others:
            if any(SPLIT_OF.get(each.lower()) == "train" for each in inner[top]):
                raise VitletError(
                    f"{where} holds {top!r}, which holds a training folder: is {top!r} a class? Splits must be the"
                    f" outer folders, classes the inner ones. Give {where / top} as DATA, or rename the folder inside."
                )
        return False
    if "train" not in named.values() and not others:
        raise VitletError(
            f"{where} holds {' and '.join(sorted(named))} and no training images; it needs a folder train beside them."
            f" To evaluate a model on one of them, give that folder: {where / min(named)}."
        )
    trained = any(split == "train" and inner[top] for top, split in named.items())
    if not others or (trained and len(set(named.values())) > 1):
        return True
    if not any(inner[top] for top in named):  # flat, like the others: a class that happens to be called train
        return False
    raise VitletError(
        f"{where} holds {', '.join(sorted(named))} beside {', '.join(others[:5])}{', ...' if others[5:] else ''}: are"
        " these splits or classes? Name the splits train, val and test, or move the class folders out of"
        f" {min(named)}."
    )


def read_tree(tree: Tree, *, fewest_classes: int = 2) -> Dataset:
    """The classes and splits of a tree; val and test are None where there are none."""
    others = describe_others(tree.others)
    if not tree.paths:
        raise VitletError(
            f"{tree.name} holds no class folders and no images; it needs one sub-folder of images per class"
            f"{f' ({others})' if others else ''}."
        )
    layout = find_layout(tree)
    found, place, loose = layout.labelled, layout.place, len(layout.loose)
    if not found["train"]:
        raise VitletError(
            f"{tree.name} holds {loose} images and no class folders; it needs one sub-folder of images per class."
        )
    classes = tuple(sorted({path.parts[place] for path in found["train"]}))
    if len(classes) < fewest_classes:
        raise VitletError(f"{tree.name} holds one class ({classes[0]!r}); a classifier needs at least two.")
    for name in classes:
        if any("\ud800" <= letter <= "\udfff" for letter in name):  # bytes that are no UTF-8: no file could hold it
            raise VitletError(
                f"{tree.name} holds the class folder {name!r}, whose name cannot be written as text. Rename it."
            )
    sets = {name: label_paths(tree, paths, classes, place) for name, paths in found.items()}
    notes = [f"images skipped because they are beside the class folders: {loose}"] if loose else []
    if layout.others:
        notes.append(f"images skipped because they are in no class of train, val or test: {layout.others}")
    notes += [others] if others else []
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), "; ".join(notes))


def label_paths(tree: Tree, paths: Sequence[PurePosixPath], classes: Sequence[str], place: int) -> ImageSet:
    """Images labelled by the part of their path at ``place``."""
    index = {name: label for label, name in enumerate(classes)}
    for path in paths:
        if path.parts[place] not in index:
            shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
            raise VitletError(
                f"{tree.name} holds the class {path.parts[place]!r} in {PurePosixPath(*path.parts[:place])}, which is"
                f" not among the {len(classes)} known classes ({shown}): its label would exceed the outputs of the"
                " classifier."
                " Remove that folder, or add the class to the training images."
            )
    return tree.images(paths, [index[path.parts[place]] for path in paths])


def _depth_around(paths: Sequence[PurePosixPath]) -> int:
    """How many folders hold everything else: an archive often has one folder around its splits or classes."""
    depth = 0
    while all(len(path.parts) > depth + 2 for path in paths) and len({path.parts[depth] for path in paths}) == 1:
        if paths[0].parts[depth].lower() in SPLIT_OF:
            break
        depth += 1
    return depth
