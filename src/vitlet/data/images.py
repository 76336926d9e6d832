"""Sets of labelled images behind one small interface."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vitlet.data.decode import Bytes, decode_image
from vitlet.errors import VitletError
from vitlet.pictures import printable


class ImageSet(Protocol):
    """Labelled images by index."""

    @property
    def labels(self) -> Sequence[int]:
        """The class of each image."""
        ...

    @property
    def one_size(self) -> bool:
        """Whether all images are known to have the same height and width."""
        ...

    def __len__(self) -> int: ...

    def image(self, index: int, channels: int) -> Tensor:
        """The decoded image: uint8 ``(channels, height, width)``."""
        ...

    def content(self, index: int) -> bytes:
        """The stored bytes, to compare images."""
        ...

    def name(self, index: int) -> str:
        """Name of the image for messages."""
        ...

    def key(self, index: int) -> str:
        """Key of the image within its source, independent of file order and of the location of the source."""
        ...


@dataclass(frozen=True)
class Dataset:
    """Splits of a data source; ``note`` describes how they were made."""

    classes: tuple[str, ...]
    train: ImageSet
    val: ImageSet | None
    test: ImageSet | None
    note: str

    def splits(self) -> dict[str, ImageSet]:
        """Existing splits by name."""
        found = {"train": self.train, "val": self.val, "test": self.test}
        return {name: images for name, images in found.items() if images is not None}


class EncodedImages:
    """Base class of sets of encoded images: subclasses provide the bytes, and one decoder reads them all."""

    labels: Sequence[int]
    one_size: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def content(self, index: int) -> bytes:
        raise NotImplementedError

    def name(self, index: int) -> str:
        raise NotImplementedError

    def image(self, index: int, channels: int) -> Tensor:
        return decode_image(self.content(index), channels, name=self.name(index))


@dataclass(frozen=True)
class Files(EncodedImages):
    """Images in files."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    root: Path | None = None

    def content(self, index: int) -> bytes:
        try:
            return self.paths[index].read_bytes()
        except OSError as problem:
            raise VitletError(f"cannot read the image {self.paths[index]}: {problem.strerror}.") from problem

    def name(self, index: int) -> str:
        return str(self.paths[index])

    def key(self, index: int) -> str:
        path = self.paths[index]
        return path.relative_to(self.root).as_posix() if self.root else f"{path.parent.name}/{path.name}"


def file_inside(written: str, *folders: Path) -> Path:
    """Resolve a file that a list of images names; it must be inside of the allowed folders.

    Raises `VitletError` with what is wrong; whoever read the list says where, and what to do.
    """
    try:
        path = (folders[0] / written).resolve()
        there = path.is_file()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        path, there = folders[0].resolve(), False
    if not any(path.is_relative_to(folder.resolve()) for folder in folders):
        raise VitletError(f"{printable(written, 200)!r} points outside of {folders[0]}.")
    if not there:
        raise VitletError(f"no such image file in {folders[0]}: {printable(written, 200)}.")
    return path


@dataclass(frozen=True)
class Arrays:
    """Images ``(N, channels, height, width)`` uint8 in memory."""

    images: Tensor
    labels: tuple[int, ...]
    one_size: bool = True
    names: ImageSet | None = None
    """The set that these were decoded from, if they were."""

    @staticmethod
    def of(images: Bytes, labels: Sequence[int]) -> Arrays:
        """Create from NumPy arrays: ``(N, height, width)`` or ``(N, height, width, channels)``, uint8."""
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) != len(labels):
            raise VitletError(
                f"found an array of {images.dtype} and shape {images.shape} with {len(labels)} labels; it must be"
                " uint8 of shape (N, height, width) or (N, height, width, channels), with a label for each."
            )
        tensor = torch.from_numpy(np.ascontiguousarray(images if images.ndim == 4 else images[..., None]))
        return Arrays(tensor.permute(0, 3, 1, 2).contiguous(), tuple(int(label) for label in labels))

    def __len__(self) -> int:
        return len(self.labels)

    def content(self, index: int) -> bytes:
        return self.images[index].numpy().tobytes()

    def image(self, index: int, channels: int) -> Tensor:
        image = self.images[index]
        if len(image) == channels:
            return image
        if len(image) == 1:
            return image.expand(channels, -1, -1)
        if channels == 1 and len(image) == 3:  # the same weights as Pillow's
            weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
            return (image * weights).sum(0, keepdim=True).round().to(torch.uint8)
        raise VitletError(f"{self.name(index)} has {len(image)} channels, {channels} are required.")

    def name(self, index: int) -> str:
        return self.names.name(index) if self.names else f"image {index}"

    def key(self, index: int) -> str:
        return self.names.key(index) if self.names else str(index)


class Derived:
    """Base class of sets made of other sets: `locate` maps an index to a set and an index in it."""

    def locate(self, index: int) -> tuple[ImageSet, int]:
        """The set that holds the image, and the index there."""
        raise NotImplementedError

    def content(self, index: int) -> bytes:
        images, inner = self.locate(index)
        return images.content(inner)

    def image(self, index: int, channels: int) -> Tensor:
        images, inner = self.locate(index)
        return images.image(inner, channels)

    def name(self, index: int) -> str:
        images, inner = self.locate(index)
        return images.name(inner)

    def key(self, index: int) -> str:
        images, inner = self.locate(index)
        return images.key(inner)


@dataclass(frozen=True)
class Subset(Derived):
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

    def locate(self, index: int) -> tuple[ImageSet, int]:
        return self.base, self.indices[index]


@dataclass(frozen=True)
class Joined(Derived):
    """Several sets, one after another."""

    parts: tuple[ImageSet, ...]
    one_size = False

    @cached_property
    def labels(self) -> list[int]:
        return [label for part in self.parts for label in part.labels]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(map(len, self.parts))]

    def locate(self, index: int) -> tuple[ImageSet, int]:
        number = bisect(self._starts, index) - 1
        return self.parts[number], index - self._starts[number]

    def key(self, index: int) -> str:
        return f"{bisect(self._starts, index) - 1}/{super().key(index)}"


@dataclass(frozen=True)
class Standing(Derived):
    """Wrapper of a set with the same labels and names, but other pixels."""

    base: ImageSet
    one_size: bool

    @property
    def labels(self) -> Sequence[int]:
        return self.base.labels

    def __len__(self) -> int:
        return len(self.base)

    def locate(self, index: int) -> tuple[ImageSet, int]:
        return self.base, index


def stored_at(images: ImageSet, index: int) -> tuple[ImageSet, int]:
    """The set that holds an image itself, and its index there."""
    while isinstance(images, Derived):
        images, index = images.locate(index)
    return images, index
