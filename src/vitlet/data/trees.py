"""Trees of image files with class folders in them: a folder, or a zip or tar file read in place.

A layout is ``class/image`` or ``split/class/image``; one folder around everything is looked through. Where a folder
could be a split as well as a class, the tree is refused: a guess would train on test images.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from torch import Tensor

from vitlet.data.decode import decode_image
from vitlet.data.images import Dataset, Files, ImageSet
from vitlet.errors import VitletError, first_line

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
SPLIT_OF = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "val"
)
"""Of a folder's or a row's word in lower case, the split that it means."""

MAX_MEMBER = 512 * 2**20
MAX_RATIO = 1000
"""Compressed members that would grow larger, or by more, are refused as bombs."""


class Tree(Protocol):
    """Relative paths of the image files, and a way to make a set of some of them."""

    @property
    def name(self) -> str:
        """For sentences."""
        ...

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """Relative, with forward slashes, sorted."""
        ...

    def images(self, paths: Sequence[PurePosixPath], labels: Sequence[int]) -> ImageSet:
        """These files as labelled images."""
        ...


@dataclass(frozen=True)
class FolderTree:
    """A folder on disk."""

    root: Path
    paths: tuple[PurePosixPath, ...]

    @property
    def name(self) -> str:
        """For sentences."""
        return str(self.root)

    @staticmethod
    def open(root: Path) -> FolderTree:
        """List a folder; what begins with a dot is passed over, and links to a folder above."""
        found = []
        for folder, folders, files in os.walk(root, followlinks=True, onerror=_cannot_list):
            folders[:] = sorted(each for each in folders if not each.startswith(".") and not _leads_up(folder, each))
            inner = PurePosixPath(Path(folder).relative_to(root).as_posix())
            found += [inner / name for name in files if is_image(name)]
        return FolderTree(root, tuple(sorted(found)))

    def images(self, paths: Sequence[PurePosixPath], labels: Sequence[int]) -> Files:
        return Files(tuple(self.root / path for path in paths), tuple(labels), self.root)


@dataclass
class ArchiveTree:
    """A zip or an uncompressed tar file, read in place: nothing is unpacked."""

    file: Path
    paths: tuple[PurePosixPath, ...]
    places: dict[PurePosixPath, tuple[int, int] | str]  # of a tar: offset and size; of a zip: the name as it is written
    _open: dict[int, zipfile.ZipFile] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """For sentences."""
        return str(self.file)

    @staticmethod
    def open(file: Path) -> ArchiveTree:
        """List an archive; refuses members that would leave it, links, and bombs."""
        try:
            if zipfile.is_zipfile(file):
                return _open_zip(file)
            return _open_tar(file)
        except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as problem:
            raise VitletError(f"cannot read the archive {file}: {first_line(problem)}.") from problem

    def read(self, path: PurePosixPath) -> bytes:
        """The bytes of a member; safe in threads and in processes that were forked."""
        place = self.places[path]
        if not isinstance(place, str):
            offset, size = place
            with self.file.open("rb") as opened:
                opened.seek(offset)
                return opened.read(size)
        process = os.getpid()
        if process not in self._open:
            self._open[process] = zipfile.ZipFile(self.file)
        try:
            return self._open[process].read(place)
        except (zipfile.BadZipFile, OSError, RuntimeError, EOFError) as problem:
            raise VitletError(f"cannot read {path} in {self.file}: {first_line(problem)}.") from problem

    def images(self, paths: Sequence[PurePosixPath], labels: Sequence[int]) -> Members:
        return Members(self, tuple(paths), tuple(labels))

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_open": {}}


@dataclass(frozen=True)
class Members:
    """Images inside an archive."""

    tree: ArchiveTree
    paths: tuple[PurePosixPath, ...]
    labels: tuple[int, ...]
    one_size: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def content(self, index: int) -> bytes:
        return self.tree.read(self.paths[index])

    def image(self, index: int, channels: int) -> Tensor:
        return decode_image(self.content(index), channels, name=self.name(index))

    def name(self, index: int) -> str:
        return f"{self.tree.file}:{self.paths[index]}"

    def key(self, index: int) -> str:
        return str(self.paths[index])


def is_image(name: str) -> bool:
    """By its ending; names that begin with a dot are not."""
    return not name.startswith(".") and PurePosixPath(name).suffix.lower() in SUFFIXES


def check_member(file: Path, name: str) -> PurePosixPath:
    """The member's path, unless it would leave the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or any(":" in part for part in path.parts[:1]):
        raise VitletError(f"the archive {file} holds {name!r}, which leads out of it: refused.")
    return path


def _wanted(path: PurePosixPath) -> bool:
    return is_image(path.name) and not any(part.startswith((".", "__MACOSX")) for part in path.parts)


def _cannot_list(problem: OSError) -> None:
    raise VitletError(f"cannot look into the folder {problem.filename}: {problem.strerror}.") from problem


def _leads_up(folder: str, name: str) -> bool:
    """Whether a folder is a link to one that it lies in, by whatever way it was come to."""
    link = Path(folder, name).absolute()
    return link.is_symlink() and any(above.resolve() == link.resolve() for above in link.parents)


def _open_zip(file: Path) -> ArchiveTree:
    places: dict[PurePosixPath, tuple[int, int] | str] = {}
    with zipfile.ZipFile(file) as opened:
        for member in opened.infolist():
            path = check_member(file, member.filename)
            if member.is_dir() or not _wanted(path):
                continue
            if (member.external_attr >> 16) & 0o170000 == 0o120000:
                raise VitletError(f"the archive {file} holds the link {member.filename!r}: refused.")
            ratio = member.file_size / max(1, member.compress_size)
            if member.file_size > MAX_MEMBER or ratio > MAX_RATIO:
                raise VitletError(
                    f"the archive {file} holds {member.filename!r}, which unpacks to {member.file_size} bytes: refused."
                )
            places[path] = member.filename
    return ArchiveTree(file, tuple(sorted(places)), places)


def _open_tar(file: Path) -> ArchiveTree:
    places: dict[PurePosixPath, tuple[int, int] | str] = {}
    try:
        with tarfile.open(file, "r:") as opened:
            for member in opened:
                path = check_member(file, member.name)
                if member.issym() or member.islnk():
                    raise VitletError(f"the archive {file} holds the link {member.name!r}: refused.")
                if member.isfile() and _wanted(path):
                    places[path] = (member.offset_data, member.size)
    except tarfile.ReadError:
        if tarfile.is_tarfile(file):
            advice = "Unpack it, or make a plain tar or zip."
            raise VitletError(f"{file} is a compressed tar, which cannot be read in place. {advice}") from None
        raise VitletError(f"{file} is neither a zip nor a tar file, or is damaged.") from None
    return ArchiveTree(file, tuple(sorted(places)), places)


@dataclass(frozen=True)
class Layout:
    """The paths of a tree by split.

    Attributes:
        labelled: of each split, the images that lie in the folder of a class.
        loose: training images that do not.
        place: which part of a path is its class.
        others: images in folders that are neither split nor class, or of val and test in no class.
    """

    labelled: dict[str, list[PurePosixPath]]
    loose: list[PurePosixPath]
    place: int
    others: int


def find_layout(tree: Tree) -> Layout:
    """Which folders are splits and which are classes; refused where that is open."""
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
    return Layout(found, loose, strip + split, others)


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
                    f"{where} holds {top!r}, which holds a training folder: is {top!r} a class? Splits need to lie"
                    f" outside, class folders in them. Give {where / top} as DATA, or rename the folder inside."
                )
        return False
    if "train" not in named.values() and not others:
        raise VitletError(
            f"{where} holds {' and '.join(sorted(named))} and no training images; it needs a folder train beside them."
            f" To measure a network on one of them, give that folder: {where / min(named)}."
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
    if not tree.paths:
        raise VitletError(
            f"{tree.name} holds no class folders and no images; it needs one sub-folder of images per class."
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
            raise VitletError(f"{tree.name} holds the class folder {name!r}, which cannot be written. Rename it.")
    sets = {name: label_paths(tree, paths, classes, place) for name, paths in found.items()}
    notes = [f"images left out because they lie beside the class folders: {loose}"] if loose else []
    if layout.others:
        notes.append(f"images left out because they lie in no class of train, val or test: {layout.others}")
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), "; ".join(notes))


def label_paths(tree: Tree, paths: Sequence[PurePosixPath], classes: Sequence[str], place: int) -> ImageSet:
    """Images labelled by the part of their path at ``place``."""
    index = {name: label for label, name in enumerate(classes)}
    for path in paths:
        if path.parts[place] not in index:
            shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
            raise VitletError(
                f"{tree.name} holds the class {path.parts[place]!r} in {PurePosixPath(*path.parts[:place])}, which is"
                f" not among the {len(classes)} known classes ({shown}): its label would lie beyond the classifier."
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
