"""Decoded images kept where training can reach them fast: in memory if they are small, else in a cache on disk.

The cache is one memory-mapped file of bytes, built once, found again by the content of the images and what was done to
them, whole or not there at all, and shared by any number of processes.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.data.images import Arrays, ImageSet, Standing, Subset
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError

MEMORY_LIMIT = 2**30
VERSION = "1"


class Transform(Protocol):
    """Makes a decoded image smaller."""

    def __call__(self, image: Tensor) -> Tensor: ...

    def key(self) -> str:
        """What the pixels depend on besides the image."""
        ...


@dataclass(frozen=True)
class Fit:
    """The pixels that evaluation sees."""

    preprocess: Preprocess

    def __call__(self, image: Tensor) -> Tensor:
        return self.preprocess.pixels(image)

    def key(self) -> str:
        height, width = self.preprocess.size
        return f"fit {height}x{width} {self.preprocess.crop_pct:.6f}"


@dataclass(frozen=True)
class Shrink:
    """Scale an image down so that its shorter side is at most ``side``; smaller images stay as they are."""

    side: int

    def __call__(self, image: Tensor) -> Tensor:
        height, width = image.shape[1:]
        factor = self.side / min(height, width)
        if factor >= 1:
            return image
        size = [max(1, round(height * factor)), max(1, round(width * factor))]
        shrunk: Tensor = V.resize(image, size, interpolation=InterpolationMode.BICUBIC, antialias=True)
        return shrunk

    def key(self) -> str:
        return f"shrink {self.side}"


@dataclass(frozen=True)
class Storing:
    """How to keep images.

    Attributes:
        channels: of the decoded images.
        folder: of the cache on disk; None to decode anew each time what does not fit into memory.
        limit: bytes that may be kept in memory.
        skip_unreadable: leave out files that cannot be decoded, and count them, instead of stopping.
    """

    channels: int
    folder: Path | None = None
    limit: int = MEMORY_LIMIT
    skip_unreadable: bool = False


@dataclass(frozen=True)
class Stored:
    """Images that were kept, and how many files were left out because they could not be read."""

    images: ImageSet
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lazy(Standing):
    """Images decoded and transformed when they are asked for."""

    transform: Transform | None = None

    def image(self, index: int, channels: int) -> Tensor:
        image = self.base.image(index, channels)
        return image if self.transform is None else self.transform(image)


@dataclass(frozen=True)
class Loose(Standing):
    """Decoded images of several sizes in memory."""

    pixels: tuple[Tensor, ...] = ()

    def image(self, index: int, channels: int) -> Tensor:
        return self.pixels[index]


@dataclass(frozen=True)
class Packed(Standing):
    """Images one after another in a memory-mapped file of bytes."""

    file: Path = Path()
    places: Any = None  # (N, 4): offset, channels, height, width

    @cached_property
    def _bytes(self) -> Any:
        return np.memmap(self.file, dtype=np.uint8, mode="r")

    def image(self, index: int, channels: int) -> Tensor:
        offset, *shape = (int(number) for number in self.places[index])
        return torch.from_numpy(np.array(self._bytes[offset : offset + math.prod(shape)])).view(*shape)

    def __getstate__(self) -> dict[str, Any]:  # another process opens the file for itself
        return {name: value for name, value in self.__dict__.items() if name != "_bytes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def keep_images(
    images: ImageSet, transform: Transform, storing: Storing, *, one_size: bool, expected_bytes: int
) -> Stored:
    """Decode every image once and keep it: a broken file stops a run before it begins, or is counted.

    Args:
        images: the set.
        transform: on decoded images.
        storing: where to.
        one_size: whether the transform makes all images the same size.
        expected_bytes: of one image, to choose between memory and disk.
    """
    if expected_bytes * len(images) <= storing.limit:
        return _in_memory(images, transform, storing)
    if storing.folder is None:
        left, skipped = readable(images, storing) if storing.skip_unreadable else (images, ())
        return Stored(Lazy(left, one_size, transform), skipped)
    return _on_disk(images, transform, storing, expected_bytes * len(images))


def readable(images: ImageSet, storing: Storing) -> tuple[ImageSet, tuple[str, ...]]:
    """The images that can be decoded, and why the others cannot."""
    found = [str(each) if isinstance(each, VitletError) else "" for each in _decoded(images, _nothing_of, storing)]
    good, skipped = [index for index, problem in enumerate(found) if not problem], [each for each in found if each]
    _require_some(good, skipped)
    return (Subset(images, tuple(good)) if skipped else images), tuple(skipped)


def _nothing_of(image: Tensor) -> Tensor:
    return image[:0]


def _decoded(
    images: ImageSet, transform: Callable[[Tensor], Tensor], storing: Storing
) -> Iterator[Tensor | VitletError]:
    """Every image in order, decoded by a few threads, or the sentence that says why it could not be."""

    def decode(index: int) -> Tensor | VitletError:
        try:
            return transform(images.image(index, storing.channels))
        except VitletError as problem:
            if not storing.skip_unreadable:
                raise
            return problem

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for start in range(0, len(images), 1024):  # not all at once: results wait in memory
            yield from pool.map(decode, range(start, min(start + 1024, len(images))))


def _in_memory(images: ImageSet, transform: Transform, storing: Storing) -> Stored:
    kept: list[Tensor] = []
    good: list[int] = []
    skipped = []
    for index, image in enumerate(_decoded(images, transform, storing)):
        if isinstance(image, VitletError):
            skipped.append(str(image))
        else:
            kept.append(image)
            good.append(index)
    _require_some(good, skipped)
    left = images if not skipped else Subset(images, tuple(good))
    if len({image.shape for image in kept}) == 1:
        return Stored(Arrays(torch.stack(kept), tuple(left.labels), names=left), tuple(skipped))
    return Stored(Loose(left, False, tuple(kept)), tuple(skipped))


def _on_disk(images: ImageSet, transform: Transform, storing: Storing, expected: int) -> Stored:
    assert storing.folder is not None
    try:
        storing.folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise VitletError(f"cannot make the cache folder {storing.folder}: {problem.strerror}.") from problem
    target = storing.folder / content_key(images, f"{VERSION} {storing.channels} {transform.key()}")
    with FileLock(target.with_suffix(".lock")):  # a second process waits, then finds the cache
        if not target.is_dir():
            free = shutil.disk_usage(storing.folder).free
            if expected > 0.9 * free:
                raise VitletError(
                    f"the image cache would take about {expected / 2**30:.1f} GiB in {storing.folder}, where"
                    f" {free / 2**30:.1f} GiB are free. Choose another --cache-dir, or --cache none."
                )
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=storing.folder))
            try:
                _write_pack(images, transform, storing, building)
                building.rename(target)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
    places = np.load(target / "places.npy", allow_pickle=False)
    good = places[:, 1] > 0  # files that could not be read have no channels
    skipped = tuple((target / "skipped.txt").read_text(encoding="utf-8").splitlines())
    if skipped and not storing.skip_unreadable:
        raise VitletError(skipped[0])
    base = images if good.all() else Subset(images, tuple(np.flatnonzero(good).tolist()))
    places = places[good]
    one_size = bool((places[:, 1:] == places[:1, 1:]).all())
    return Stored(Packed(base, one_size, target / "pixels.bin", places), skipped)


def _write_pack(images: ImageSet, transform: Transform, storing: Storing, folder: Path) -> None:
    places = np.zeros((len(images), 4), dtype=np.int64)
    skipped = []
    offset = 0
    with (folder / "pixels.bin").open("wb") as file:
        for index, image in enumerate(_decoded(images, transform, storing)):
            if isinstance(image, VitletError):
                skipped.append(" ".join(str(image).splitlines()))
                continue
            places[index] = (offset, *image.shape)
            file.write(image.contiguous().numpy().tobytes())
            offset += image.numel()
        file.flush()
        os.fsync(file.fileno())
    _require_some(np.flatnonzero(places[:, 1]).tolist(), skipped)
    np.save(folder / "places.npy", places)
    (folder / "skipped.txt").write_text("\n".join(skipped), encoding="utf-8")


def _require_some(good: list[int], skipped: list[str]) -> None:
    if not good:
        raise VitletError(
            f"none of {len(skipped)} images could be read; the first: {skipped[0] if skipped else 'none'}"
        )


def content_key(images: ImageSet, what: str) -> str:
    """A name for these images by their content, and what is done to them."""
    total = hashlib.blake2b(what.encode(), digest_size=16)
    for part in content_digests(images):
        total.update(part)
    return total.hexdigest()


def content_digests(images: ImageSet) -> list[bytes]:
    """What tells each image's bytes from others."""

    def digest(index: int) -> bytes:
        return hashlib.blake2b(images.content(index), digest_size=16).digest()

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(digest, range(len(images))))


def default_cache_folder() -> Path:
    """Where caches lie unless the user says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitlet"
