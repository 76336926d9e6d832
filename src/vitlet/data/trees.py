"""Trees of image files with class folders in them: a folder, or a zip or tar file read in place.

A layout is ``class/image`` or ``split/class/image``; one folder around everything is looked through.
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

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
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
        """List a folder; files and folders whose name begins with a dot are passed over."""
        found = []
        for folder, folders, files in os.walk(root, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
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
    places: dict[PurePosixPath, tuple[int, int]]  # of a tar: offset and size
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
        if path in self.places:
            offset, size = self.places[path]
            with self.file.open("rb") as opened:
                opened.seek(offset)
                return opened.read(size)
        process = os.getpid()
        if process not in self._open:
            self._open[process] = zipfile.ZipFile(self.file)
        try:
            return self._open[process].read(str(path))
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
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise VitletError(f"the archive {file} holds {name!r}, which leads out of it: refused.")
    return path


def _wanted(path: PurePosixPath) -> bool:
    return is_image(path.name) and not any(part.startswith((".", "__MACOSX")) for part in path.parts)


def _open_zip(file: Path) -> ArchiveTree:
    paths = []
    with zipfile.ZipFile(file) as opened:
        for member in opened.infolist():
            path = check_member(file, member.filename) if member.filename.strip("/") else None
            if path is None or member.is_dir() or not _wanted(path):
                continue
            if (member.external_attr >> 16) & 0o170000 == 0o120000:
                raise VitletError(f"the archive {file} holds the link {member.filename!r}: refused.")
            ratio = member.file_size / max(1, member.compress_size)
            if member.file_size > MAX_MEMBER or ratio > MAX_RATIO:
                raise VitletError(
                    f"the archive {file} holds {member.filename!r}, which unpacks to {member.file_size} bytes: refused."
                )
            paths.append(PurePosixPath(member.filename))
    return ArchiveTree(file, tuple(sorted(paths)), {})


def _open_tar(file: Path) -> ArchiveTree:
    places = {}
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


def read_tree(tree: Tree, *, fewest_classes: int = 2) -> Dataset:
    """The classes and splits of a tree; val and test are None where there are none."""
    if not tree.paths:
        raise VitletError(
            f"{tree.name} holds no class folders and no images; it needs one sub-folder of images per class."
        )
    strip = _depth_around(tree.paths)
    split_of = {name: split for split, names in SPLITS.items() for name in names}
    found: dict[str, list[PurePosixPath]] = defaultdict(list)
    tops = {path.parts[strip] for path in tree.paths if len(path.parts) > strip + 1}
    split = any(split_of.get(top) == "train" for top in tops)
    loose = 0
    for path in tree.paths:
        parts = path.parts[strip:]
        name = split_of.get(parts[0]) if split else "train"
        if name is None or len(parts) < (3 if split else 2):
            loose += name is not None
            continue
        found[name].append(path)
    if not found["train"]:
        raise VitletError(
            f"{tree.name} holds {loose} images and no class folders; it needs one sub-folder of images per class."
        )
    place = strip + split
    classes = tuple(sorted({path.parts[place] for path in found["train"]}))
    if len(classes) < fewest_classes:
        raise VitletError(f"{tree.name} holds one class ({classes[0]!r}); a classifier needs at least two.")
    sets = {name: label_paths(tree, paths, classes, place) for name, paths in found.items()}
    note = f"images left out because they lie beside the class folders: {loose}" if loose else ""
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), note)


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
        if any(paths[0].parts[depth] in names for names in SPLITS.values()):
            break
        depth += 1
    return depth
