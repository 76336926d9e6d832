"""Cache of decoded images: in memory if they are small, else memory-mapped on disk.

The cache is one memory-mapped file of bytes, built once, found again by the content of the images and what was done to
them, atomically, and shared by any number of processes.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as V

from vitlet.data.decode import CANNOT_READ, REPAIR
from vitlet.data.images import Arrays, ImageSet, Standing, Subset
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError
from vitlet.processes import usable_cores

MEMORY_LIMIT = 2**30
VERSION = "1"


class Transform(Protocol):
    """Makes a decoded image smaller."""

    @property
    def one_size(self) -> bool:
        """Whether all images come out with the same height and width."""
        ...

    def __call__(self, image: Tensor) -> Tensor: ...

    def key(self) -> str:
        """Cache key: what the pixels depend on besides the image."""
        ...

    def expected_bytes(self, channels: int) -> int:
        """About how large an image will be, to choose between memory and disk."""
        ...


@dataclass(frozen=True)
class Fit:
    """The pixels that evaluation sees."""

    preprocess: Preprocess
    one_size: ClassVar[bool] = True

    def __call__(self, image: Tensor) -> Tensor:
        return self.preprocess.pixels(image)

    def key(self) -> str:
        height, width = self.preprocess.size
        return f"fit {height}x{width} {self.preprocess.crop_pct:.6f}"

    def expected_bytes(self, channels: int) -> int:
        return channels * math.prod(self.preprocess.size)


@dataclass(frozen=True)
class Shrink:
    """Scale an image down so that its shorter side is at most ``side``; smaller images stay as they are."""

    side: int
    one_size: ClassVar[bool] = False

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

    def expected_bytes(self, channels: int) -> int:
        return channels * self.side * self.side * 4 // 3  # a photograph is not square


@dataclass(frozen=True)
class Storing:
    """Settings of the image cache.

    Attributes:
        channels: channels of the decoded images.
        folder: folder of the cache on disk; None to decode every time what does not fit into memory.
        limit: bytes that may be kept in memory.
        skip_unreadable: leave out files that cannot be decoded, and count them, instead of stopping.
    """

    channels: int
    folder: Path | None = None
    limit: int = MEMORY_LIMIT
    skip_unreadable: bool = False


@dataclass(frozen=True)
class Stored:
    """Cached images, and the number of files that were skipped because they could not be read."""

    images: ImageSet
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lazy(Standing):
    """Images that are decoded and transformed on access."""

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


def keep_images(images: ImageSet, transform: Transform, storing: Storing) -> Stored:
    """Decode every image once and keep what the transform makes of it, in memory or on disk.

    A file that cannot be read stops a run before it begins, or is counted.
    """
    expected = transform.expected_bytes(storing.channels) * len(images)
    if expected <= storing.limit:
        return _in_memory(images, transform, storing)
    if storing.folder is not None:
        return _on_disk(images, transform, storing, storing.folder, expected)
    left, skipped = readable(images, storing) if storing.skip_unreadable else (images, ())
    return Stored(Lazy(left, transform.one_size, transform), skipped)


def readable(images: ImageSet, storing: Storing) -> tuple[ImageSet, tuple[str, ...]]:
    """The images that can be decoded, and why the others cannot."""
    good: list[int] = []
    skipped = _decode_all(images, lambda image: image[:0], storing, lambda index, _: good.append(index))
    return (Subset(images, tuple(good)) if skipped else images), skipped


def _decode_all(
    images: ImageSet, transform: Callable[[Tensor], Tensor], storing: Storing, keep: Callable[[int, Tensor], None]
) -> tuple[str, ...]:
    """Hand every image to ``keep``, in order, decoded by a few threads; why the others could not be.

    Where none may be left out, all that cannot be read are named in one error.
    """

    def decode(index: int) -> Tensor | VitletError:
        try:
            return transform(images.image(index, storing.channels))
        except VitletError as problem:
            return problem

    skipped = []
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        for start in range(0, len(images), 1024):  # not all at once: results wait in memory
            for index, image in enumerate(pool.map(decode, range(start, min(start + 1024, len(images)))), start):
                if isinstance(image, VitletError):
                    skipped.append(" ".join(str(image).splitlines()))
                else:
                    keep(index, image)
    if skipped and not storing.skip_unreadable:
        raise _unreadable(skipped, len(images))
    if len(skipped) == len(images):
        raise VitletError(f"none of {len(images)} images could be read; the first: {skipped[0] if skipped else 'none'}")
    return tuple(skipped)


def _unreadable(reasons: Sequence[str], total: int) -> VitletError:
    """All files that cannot be read, the first ten by name, and what to do."""
    named = [reason.removeprefix(CANNOT_READ).removesuffix(REPAIR).rstrip(". ") for reason in reasons[:10]]
    what = CANNOT_READ if len(reasons) == 1 else f"cannot read {len(reasons)} of {total} images: "
    more = f"; and {len(reasons) - 10} more" if len(reasons) > 10 else ""
    return VitletError(f"{what}{'; '.join(named)}{more}. Repair or remove what is broken, or give --skip-unreadable.")


def _in_memory(images: ImageSet, transform: Transform, storing: Storing) -> Stored:
    kept: dict[int, Tensor] = {}
    skipped = _decode_all(images, transform, storing, kept.__setitem__)
    left = Subset(images, tuple(kept)) if skipped else images
    if len({image.shape for image in kept.values()}) == 1:
        return Stored(Arrays(torch.stack([*kept.values()]), tuple(left.labels), names=left), skipped)
    return Stored(Loose(left, False, tuple(kept.values())), skipped)


def _on_disk(images: ImageSet, transform: Transform, storing: Storing, folder: Path, expected: int) -> Stored:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise VitletError(f"cannot make the cache folder {folder}: {problem.strerror}.") from problem
    target = folder / content_key(images, f"{VERSION} {storing.channels} {transform.key()}")
    with FileLock(target.with_suffix(".lock")):  # a second process waits, then finds the cache
        if not target.is_dir():
            free = shutil.disk_usage(folder).free
            if expected > 0.9 * free:
                raise VitletError(
                    f"the image cache would take about {expected / 2**30:.1f} GiB in {folder}, where"
                    f" {free / 2**30:.1f} GiB are free. Choose another --cache-dir, or --cache none."
                )
            building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder))
            try:
                _write_pack(images, transform, storing, building)
                building.rename(target)
            except OSError as problem:
                raise VitletError(
                    f"cannot write the image cache in {folder}: {problem.strerror or problem}. It takes about"
                    f" {expected / 2**30:.1f} GiB; nothing of it was kept. Make room, choose another --cache-dir, or"
                    " --cache none."
                ) from problem
            finally:
                shutil.rmtree(building, ignore_errors=True)  # in place, it has another name
    skipped = tuple((target / "skipped.txt").read_text(encoding="utf-8").splitlines())
    if skipped and not storing.skip_unreadable:
        raise _unreadable(skipped, len(images))
    places = np.load(target / "places.npy", allow_pickle=False)
    good = places[:, 1] > 0  # files that could not be read have no channels
    base = images if good.all() else Subset(images, tuple(np.flatnonzero(good).tolist()))
    places = places[good]
    one_size = bool((places[:, 1:] == places[:1, 1:]).all())
    return Stored(Packed(base, one_size, target / "pixels.bin", places), skipped)


def _write_pack(images: ImageSet, transform: Transform, storing: Storing, folder: Path) -> None:
    places = np.zeros((len(images), 4), dtype=np.int64)
    with (folder / "pixels.bin").open("wb") as file:

        def write(index: int, image: Tensor) -> None:
            places[index] = (file.tell(), *image.shape)
            file.write(image.contiguous().numpy().tobytes())

        skipped = _decode_all(images, transform, storing, write)
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / "places.npy", places)
    (folder / "skipped.txt").write_text("\n".join(skipped), encoding="utf-8")


def content_key(images: ImageSet, what: str) -> str:
    """A name for these images by their content, and what is done to them."""
    total = hashlib.blake2b(what.encode(), digest_size=16)
    for part in content_digests(images):
        total.update(part)
    return total.hexdigest()


def content_digests(images: ImageSet) -> list[bytes]:
    """Digest of each image's bytes."""

    def digest(index: int) -> bytes:
        return hashlib.blake2b(images.content(index), digest_size=16).digest()

    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        return list(pool.map(digest, range(len(images))))


def default_cache_folder() -> Path:
    """Default folder of the image cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitlet"
