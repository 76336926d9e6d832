"""Images with masks: ADE20K's layout, or folders of images and of masks; every mask is looked at before training.

A mask is an image with the number of a class in every pixel: 8 or 16 bits, or a palette. Pixels that do not count
become `IGNORED`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlet.data.decode import IMAGE_SUFFIXES, open_image
from vitlet.errors import VitletError, first_line
from vitlet.transfer.common.files import upright_size

IGNORED = 255
"""Of pixels that do not count, whatever their value in the file."""

MASK_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
IMAGES, MASKS = ("images", "image", "imgs"), ("masks", "mask", "labels", "annotations")

Values = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class MaskedImage:
    """An image and its mask."""

    image: Path
    mask: Path


@dataclass(frozen=True)
class MaskedSplit:
    """Images with masks, and what was counted in them.

    Attributes:
        classes: their names.
        shift: how much lower a class is counted than in the files: 1 in ADE20K, whose 0 does not count.
        ignore: value in the files that does not count.
    """

    images: tuple[MaskedImage, ...]
    classes: tuple[str, ...]
    shift: int
    ignore: int
    counts: Counter[str] = field(default_factory=Counter)

    def files(self) -> list[Path]:
        """The images and their masks."""
        return [path for image in self.images for path in (image.image, image.mask)]

    def read(self, index: int) -> Tensor:
        """A mask as classes from 0: uint8 ``(height, width)``, `IGNORED` where no class counts."""
        values = read_mask(self.images[index].mask)[0]
        counted = (values != self.ignore) & (values >= self.shift)
        return torch.from_numpy(np.where(counted, values - self.shift, IGNORED).astype(np.uint8))

    def parted(self, kept: Iterable[MaskedImage], held: Iterable[MaskedImage]) -> tuple[MaskedSplit, MaskedSplit]:
        """The split in two: images to train on, with what was counted, and images held out."""
        return replace(self, images=tuple(kept)), replace(self, images=tuple(held), counts=Counter())

    def note(self) -> str:
        """Description of the dataset."""
        counts = self.counts
        parts = [f"{counts[kind]} {kind} masks" for kind in ("palette", "16-bit") if counts[kind]]
        if counts["ignored pixels"]:
            parts.append(f"{100 * counts['ignored pixels'] / counts['pixels']:.1f} % of the pixels ignored")
        if counts["images without a class"]:
            parts.append(f"{counts['images without a class']} images ignored entirely")
        return f"{len(self.images)} images" + (f" ({', '.join(parts)})" if parts else "")


def open_masks(data: Path, ignore: int, *, names: Sequence[str] = (), ade: bool = True) -> dict[str, MaskedSplit]:
    """Find the splits, and check every mask.

    Args:
        data: the folder.
        ignore: value in the files that does not count.
        names: names of classes, for a folder that does not name its own.
        ade: whether validation images alone that lie as ADE20K's do are ADE20K's.
    """
    if not data.is_dir():
        raise VitletError(f"no such folder: {data}. `vitlet segment` needs a folder of images and masks.")
    found = {
        split: pairs
        for split, names_of_split in MASK_FOLDERS.items()
        if (pairs := _pairs(data, [each for name in names_of_split for each in (f"{name}/{{}}", f"{{}}/{name}")]))
    }
    if not found:
        found = {"train": _pairs(data, ["{}"])}
    if not any(found.values()):
        raise VitletError(
            f"{data} holds no images and masks: needed are train/images and train/masks (and val/...), images and"
            " masks, or ADE20K's images/training and annotations/training."
        )
    ade = _lies_as_ade(data, "training") or (ade and "train" not in found and _lies_as_ade(data, "validation"))
    shift = int(ade)
    names = _names(data, ade, ignore, names)
    scanned = {split: _scanned(pairs, shift, ignore, len(names) or None) for split, pairs in found.items()}
    largest = max(highest for _, highest in scanned.values())
    if largest < 0:
        raise VitletError(f"every pixel of the masks in {data} is ignored: nothing can be learned.")
    classes = tuple(names) or tuple(f"class {index}" for index in range(largest + 1))
    if len(classes) > IGNORED:
        raise VitletError(f"{data} has {len(classes)} classes; at most {IGNORED} are supported.")
    return {
        split: MaskedSplit(tuple(pairs), classes, shift, ignore, scanned[split][0]) for split, pairs in found.items()
    }


def _pairs(data: Path, patterns: Iterable[str]) -> list[MaskedImage]:
    """Pairs of the first pattern, such as ``train/{}``, by which there are a folder of images and one of masks."""
    for pattern in patterns:
        images, masks = (
            next((folder for name in names if (folder := data / pattern.format(name)).is_dir()), None)
            for names in (IMAGES, MASKS)
        )
        if images is not None and masks is not None:
            return _matched(images, masks)
    return []


def _matched(images: Path, masks: Path) -> list[MaskedImage]:
    """Images with the masks of the same name; one without the other is refused."""
    pictures, found = (
        {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGE_SUFFIXES}
        for folder in (images, masks)
    )
    alone = [one[stem] for one, other in ((pictures, found), (found, pictures)) for stem in one if stem not in other]
    if alone:
        raise VitletError(
            f"{len(alone)} files of {images} and {masks} have no counterpart of the same name, the first: {alone[0]}."
        )
    if not pictures:
        raise VitletError(f"{images} holds no images.")
    return [MaskedImage(pictures[stem], found[stem]) for stem in pictures]


def _lies_as_ade(data: Path, split: str) -> bool:
    return (data / "images" / split).is_dir() and (data / "annotations" / split).is_dir()


def _names(data: Path, ade: bool, ignore: int, otherwise: Sequence[str]) -> tuple[str, ...]:
    """Class names of ``classes.txt`` (a line each; the ignored one is no class), of ADE20K's own list, or these."""
    listed = data / "classes.txt"
    if listed.is_file():
        lines = listed.read_text(encoding="utf-8").splitlines()
        names = [line.strip() for line in lines if line.strip()]
        if ignore < len(names) - 1:
            raise VitletError(f"ignore_index is {ignore}, which is a class in the middle of {listed}: {names[ignore]}.")
        return tuple(names[:ignore])
    official = data / "objectInfo150.txt"
    if ade and official.is_file():
        rows = official.read_text(encoding="utf-8").splitlines()[1:]
        return tuple(row.split("\t")[-1].split(",")[0].strip() for row in rows if row.strip())
    return tuple(otherwise) or (tuple(f"class {index}" for index in range(150)) if ade else ())


def read_mask(path: Path) -> tuple[Values, str]:
    """Values of a mask as they are in the file, and how it is stored: ``grey``, ``palette`` or ``16-bit``."""
    try:
        with open_image(path) as image:
            mode = image.mode
            values = np.asarray(image) if mode in ("1", "L", "P", "I", "I;16", "I;16B") else None
    except Exception as problem:  # damaged bytes make Pillow's readers fail in any way
        raise VitletError(f"cannot read the mask {path}: {first_line(problem)}. Repair or remove it.") from problem
    if values is None:
        raise VitletError(
            f"the mask {path} is stored as {mode}; it needs one number per pixel: grey of 8 or 16 bits, or a palette."
        )
    return values.astype(np.int64), {"P": "palette", "L": "grey", "1": "grey"}.get(mode, "16-bit")


def _scanned(pairs: Sequence[MaskedImage], shift: int, ignore: int, classes: int | None) -> tuple[Counter[str], int]:
    """Check sizes and values of all masks; what was counted, and the largest class."""
    counts: Counter[str] = Counter()
    largest = -1
    sizes: list[str] = []
    beyond: list[str] = []
    for pair in pairs:
        raw, kind = read_mask(pair.mask)
        counts[kind] += 1
        height, width = upright_size(pair.image)
        if raw.shape != (height, width):
            sizes.append(f"{pair.mask} has {raw.shape[0]}x{raw.shape[1]} pixels, its image {height}x{width}")
            continue
        counted = raw[(raw != ignore) & (raw >= shift)] - shift
        counts["pixels"] += raw.size
        counts["ignored pixels"] += raw.size - counted.size
        counts["images without a class"] += not counted.size
        highest = int(counted.max(initial=-1))
        largest = max(largest, highest)
        limit = classes or IGNORED
        if highest >= limit:
            beyond.append(f"{pair.mask} holds {highest + shift}, the classes end at {limit + shift - 1}")
    if sizes:
        raise VitletError(f"{len(sizes)} masks have another size than their images, the first: {sizes[0]}.")
    if beyond:
        raise VitletError(
            f"{len(beyond)} masks contain values that are not classes, the first: {beyond[0]}. If that value is to be"
            " ignored,"
            " use --ignore-index."
        )
    return counts, largest
