"""Sets of labelled images behind one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vitlet.data.decode import decode_image
from vitlet.errors import VitletError


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
        """The bytes as they are stored, to tell equal images from different ones."""
        ...

    def name(self, index: int) -> str:
        """What to call it in a sentence."""
        ...

    def key(self, index: int) -> str:
        """What it is within its source, whatever the order of files and wherever the source lies."""
        ...


@dataclass(frozen=True)
class Dataset:
    """The splits of a data source; ``note`` says how they came to be."""

    classes: tuple[str, ...]
    train: ImageSet
    val: ImageSet | None
    test: ImageSet | None
    note: str

    def splits(self) -> dict[str, ImageSet]:
        """Those that are there, by name."""
        found = {"train": self.train, "val": self.val, "test": self.test}
        return {name: images for name, images in found.items() if images is not None}


@dataclass(frozen=True)
class Files:
    """Images in files."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    root: Path | None = None
    one_size: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def content(self, index: int) -> bytes:
        try:
            return self.paths[index].read_bytes()
        except OSError as problem:
            raise VitletError(f"cannot read the image {self.paths[index]}: {problem.strerror}.") from problem

    def image(self, index: int, channels: int) -> Tensor:
        return decode_image(self.content(index), channels, name=self.name(index))

    def name(self, index: int) -> str:
        return str(self.paths[index])

    def key(self, index: int) -> str:
        path = self.paths[index]
        return path.relative_to(self.root).as_posix() if self.root else f"{path.parent.name}/{path.name}"


@dataclass(frozen=True)
class Arrays:
    """Images ``(N, channels, height, width)`` uint8 in memory."""

    images: Tensor
    labels: tuple[int, ...]
    one_size: bool = True
    names: ImageSet | None = None
    """The set that these were decoded from, if they were."""

    @staticmethod
    def of(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], labels: Sequence[int]) -> Arrays:
        """From NumPy: ``(N, height, width)`` or ``(N, height, width, channels)``, uint8."""
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) != len(labels):
            raise VitletError(
                f"found an array of {images.dtype} and shape {images.shape} with {len(labels)} labels; it needs to be"
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
        raise VitletError(f"{self.name(index)} has {len(image)} channels, {channels} were asked for.")

    def name(self, index: int) -> str:
        return self.names.name(index) if self.names else f"image {index}"

    def key(self, index: int) -> str:
        return self.names.key(index) if self.names else str(index)


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

    def content(self, index: int) -> bytes:
        return self.base.content(self.indices[index])

    def image(self, index: int, channels: int) -> Tensor:
        return self.base.image(self.indices[index], channels)

    def name(self, index: int) -> str:
        return self.base.name(self.indices[index])

    def key(self, index: int) -> str:
        return self.base.key(self.indices[index])


@dataclass(frozen=True)
class Joined:
    """Several sets, one after another."""

    parts: tuple[ImageSet, ...]

    @property
    def one_size(self) -> bool:
        return False

    @cached_property
    def labels(self) -> list[int]:
        return [label for part in self.parts for label in part.labels]

    @cached_property
    def places(self) -> list[tuple[ImageSet, int]]:
        """The part and the index within it, by index."""
        return [(part, index) for part in self.parts for index in range(len(part))]

    def __len__(self) -> int:
        return len(self.places)

    def content(self, index: int) -> bytes:
        part, inner = self.places[index]
        return part.content(inner)

    def image(self, index: int, channels: int) -> Tensor:
        part, inner = self.places[index]
        return part.image(inner, channels)

    def name(self, index: int) -> str:
        part, inner = self.places[index]
        return part.name(inner)

    def key(self, index: int) -> str:
        part, inner = self.places[index]
        return f"{self.parts.index(part)}/{part.key(inner)}"


@dataclass(frozen=True)
class Standing:
    """A set that stands for another: the same labels and names, the pixels by a way of its own."""

    base: ImageSet
    one_size: bool

    @property
    def labels(self) -> Sequence[int]:
        return self.base.labels

    def __len__(self) -> int:
        return len(self.base)

    def content(self, index: int) -> bytes:
        return self.base.content(index)

    def image(self, index: int, channels: int) -> Tensor:
        return self.base.image(index, channels)

    def name(self, index: int) -> str:
        return self.base.name(index)

    def key(self, index: int) -> str:
        return self.base.key(index)
