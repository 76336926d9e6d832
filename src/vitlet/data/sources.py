"""Where images come from: a folder of class folders, or scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from vitlet.errors import VitletError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
MEMORY_LIMIT = 2**30
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test",)}


class ImageSet(Protocol):
    """Labelled images by index."""

    @property
    def labels(self) -> Sequence[int]: ...

    @property
    def one_size(self) -> bool:
        """Whether all images are known to have the same height and width."""
        ...

    def __len__(self) -> int: ...

    def image(self, index: int, channels: int) -> Tensor:
        """The decoded image: uint8 ``(channels, height, width)``."""
        ...

    def name(self, index: int) -> str:
        """What to call it in a sentence."""
        ...


@dataclass(frozen=True)
class Dataset:
    """The splits of a data source; ``note`` says how they came to be."""

    classes: tuple[str, ...]
    train: ImageSet
    val: ImageSet | None
    test: ImageSet | None
    note: str


@dataclass(frozen=True)
class Files:
    """Images in files."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    one_size: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, index: int, channels: int) -> Tensor:
        return read_image(self.paths[index], channels)

    def name(self, index: int) -> str:
        return str(self.paths[index])


@dataclass(frozen=True)
class Arrays:
    """Images ``(N, channels, height, width)`` uint8 in memory."""

    images: Tensor
    labels: tuple[int, ...]
    one_size: bool = True

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int, channels: int) -> Tensor:
        return self.images[index].expand(channels, -1, -1)

    def name(self, index: int) -> str:
        return f"image {index}"


@dataclass(frozen=True)
class Subset:
    """Some images of a set."""

    base: ImageSet
    indices: tuple[int, ...]

    @property
    def one_size(self) -> bool:
        return self.base.one_size

    @cached_property
    def labels(self) -> list[int]:
        return [self.base.labels[index] for index in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int, channels: int) -> Tensor:
        return self.base.image(self.indices[index], channels)

    def name(self, index: int) -> str:
        return self.base.name(self.indices[index])


def read_image(path: Path, channels: int) -> Tensor:
    """Decode a file, upright, as uint8 ``(channels, height, width)``; a sentence if it is no image."""
    if not path.is_file():
        raise VitletError(f"no such image file: {path}.")
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened)
            pixels = np.array(upright.convert("L" if channels == 1 else "RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise VitletError(f"cannot read the image {path}: {reason}. Repair or remove it.") from problem
    return torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1)


def load_dataset(data: str, *, val_fraction: float, seed: int) -> Dataset:
    """Find the splits of a source; a validation split is held out of the training images if there is none."""
    if data == "digits":
        return _digits(seed)
    root = Path(data)
    if not root.exists():
        raise VitletError(f"no such folder: {data}. DATA is a folder with one sub-folder of images per class.")
    if not root.is_dir():
        raise VitletError(f"{data} is a file; DATA needs to be a folder with one sub-folder of images per class.")
    found = {split: _first_folder(root, names) for split, names in SPLITS.items()}
    train_root = found["train"] or root
    classes = class_names(train_root)
    train: ImageSet = read_folder(train_root, classes)
    val = read_folder(found["val"], classes) if found["train"] and found["val"] else None
    test = read_folder(found["test"], classes) if found["train"] and found["test"] else None
    if val is not None:
        return Dataset(classes, train, val, test, f"validation images: {found['val']}")
    train, held_out = hold_out(train, val_fraction, seed)
    share = f"{len(held_out)} of {len(train) + len(held_out)}"
    return Dataset(classes, train, held_out, test, f"validation images: {share}, held out by class with seed {seed}")


def class_names(root: Path) -> tuple[str, ...]:
    """Names of the class folders, sorted."""
    names = sorted(item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith("."))
    if not names:
        loose = sum(item.suffix.lower() in SUFFIXES for item in root.iterdir())
        what = f"{loose} images and no class folders" if loose else "no class folders and no images"
        raise VitletError(f"{root} holds {what}; it needs one sub-folder of images per class.")
    if len(names) == 1:
        raise VitletError(f"{root} holds one class ({names[0]!r}); a classifier needs at least two.")
    return tuple(names)


def read_folder(root: Path, classes: Sequence[str]) -> Files:
    """All images of the class folders; labels follow the order of ``classes``."""
    strangers = sorted({i.name for i in root.iterdir() if i.is_dir() and not i.name.startswith(".")} - set(classes))
    if strangers:
        raise VitletError(
            f"{root} holds the class {strangers[0]!r}, which is not among the {len(classes)} known classes"
            f" ({', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''}): its label would lie beyond the"
            " classifier. Remove that folder, or add the class to the training images."
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        files = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise VitletError(f"{root} holds class folders but no image ({', '.join(sorted(SUFFIXES))}).")
    return Files(tuple(paths), tuple(labels))


def hold_out(images: ImageSet, fraction: float, seed: int) -> tuple[Subset, Subset]:
    """A seeded split, the same share of every class held out; at least one where a class has two images."""
    labels = np.asarray(images.labels)
    kept: list[int] = []
    held: list[int] = []
    for label in np.unique(labels):
        members = np.random.default_rng([seed, int(label)]).permutation(np.flatnonzero(labels == label)).tolist()
        count = min(max(1, round(fraction * len(members))), len(members) - 1) if fraction > 0 else 0
        held += members[:count]
        kept += members[count:]
    if not held:
        raise VitletError(
            "no image could be held out for validation: found one image in each class, or val_fraction 0."
            " Add images, or give a val folder."
        )
    return Subset(images, tuple(sorted(kept))), Subset(images, tuple(sorted(held)))


def in_memory(images: ImageSet, channels: int, *, limit: int = MEMORY_LIMIT) -> ImageSet:
    """Decode every image once, so that a broken file stops a run before it begins; keep them if they are small.

    Images of one size that fit into ``limit`` bytes stay in memory, decoded.
    """
    if isinstance(images, Arrays) or (isinstance(images, Subset) and isinstance(images.base, Arrays)):
        return images
    kept: list[Tensor] = []
    with ThreadPoolExecutor() as pool:
        for image in pool.map(lambda index: images.image(index, channels), range(len(images))):
            same = not kept or image.shape == kept[0].shape
            if same and image.numel() * len(images) <= limit:
                kept.append(image)
    if len(kept) < len(images):
        return images
    return Arrays(torch.stack(kept), tuple(images.labels))


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    return next((root / name for name in names if (root / name).is_dir()), None)


def _digits(seed: int) -> Dataset:
    """1,797 real scans of handwritten digits, 8 x 8; no official split exists, so a fixed one is made."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * 16).clamp(0, 255).byte()[:, None]
    everything = Arrays(images, tuple(int(label) for label in bunch.target))
    rest, test = hold_out(everything, 0.2, 0)  # the test images never change with the seed of a run
    train, val = hold_out(rest, 0.2, seed)
    note = f"scikit-learn's digits: {len(train)} training, {len(val)} validation, {len(test)} test images"
    return Dataset(tuple(str(name) for name in bunch.target_names), train, val, test, note)
