"""What `vitlet scan` measures of each image, in several processes; an unreadable image is a result, not an end."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitlet.data.decode import Header, decode_with_header
from vitlet.data.images import Arrays, ImageSet, Joined, Subset
from vitlet.data.scan.duplicates import HASH_SHAPE, THUMBNAIL_SHAPE
from vitlet.errors import VitletError, first_line

CHUNK_IMAGES = 64
"""Images measured between two reports of progress."""

POOL_SECONDS = 6.0
"""Seconds of work that are not worth starting processes for."""

Bytes = NDArray[np.uint8]
OnProgress = Callable[[int, int], None]


class ImageFacts(NamedTuple):
    """Of one image."""

    size: tuple[int, int]
    digest: bytes
    grid: Bytes
    thumbnail: NDArray[np.uint8]
    moments: NDArray[np.float64]
    header: Header


@dataclass(frozen=True)
class Measures:
    """Of a set's readable images, in its order.

    Attributes:
        indices: which images they are.
        sizes: height and width, upright, ``(N, 2)``.
        digests: of the decoded pixels and their size, ``(N, 2)``.
        grids, thumbnails: small grey images to tell copies by.
        moments: mean and mean square of each channel, in 0..1, ``(N, 2, channels)``.
        headers: how each is stored.
        unreadable: reasons by index.
    """

    indices: NDArray[np.int64]
    sizes: NDArray[np.int64]
    digests: NDArray[np.uint64]
    grids: Bytes
    thumbnails: NDArray[np.uint8]
    moments: NDArray[np.float64]
    headers: tuple[Header, ...]
    unreadable: Mapping[int, str]


def measure_sets(
    sets: Mapping[str, ImageSet], channels: int, *, workers: int | None = None, progress: OnProgress | None = None
) -> dict[str, Measures]:
    """Measure every image of every set.

    Args:
        sets: by name.
        channels: to decode with.
        workers: processes; 0 or 1 for none. By default as many as there are cores, if the work is worth it.
        progress: called with the number of images done and of all.
    """
    chunks = [(name, low) for name, images in sets.items() for low in range(0, len(images), CHUNK_IMAGES)]
    total = sum(map(len, sets.values()))
    done = 0
    found: list[list[ImageFacts | str]] = []

    def keep(facts: list[ImageFacts | str]) -> None:
        nonlocal done
        found.append(facts)
        done += len(facts)
        if progress is not None:
            progress(done, total)

    if workers is None and chunks:
        began = time.perf_counter()
        keep(_measure_chunk(sets, channels, chunks[0]))
        expected = (time.perf_counter() - began) * (total / done - 1)
        workers = 1 if expected < POOL_SECONDS or any(map(_in_memory, sets.values())) else _cores()
    if workers is None or workers < 2:
        for chunk in chunks[len(found) :]:
            keep(_measure_chunk(sets, channels, chunk))
    else:
        _measure_in_processes(sets, channels, chunks[len(found) :], workers, keep)
    by_name: dict[str, list[ImageFacts | str]] = {name: [] for name in sets}
    for (name, _), facts in zip(chunks, found, strict=True):
        by_name[name] += facts
    return {name: _stack(facts, channels) for name, facts in by_name.items()}


def _measure_in_processes(
    sets: Mapping[str, ImageSet],
    channels: int,
    chunks: Sequence[tuple[str, int]],
    workers: int,
    keep: Callable[[list[ImageFacts | str]], None],
) -> None:
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start, initargs=(dict(sets), channels)
    )
    try:
        for facts in pool.map(_measure_here, chunks):
            keep(facts)
    except BrokenProcessPool as problem:
        raise VitletError(
            "a process that reads images was killed or could not start (out of memory, or a script without"
            " `if __name__ == '__main__':`). Scan with one process: -j 1, or workers=1."
        ) from problem
    finally:
        pool.shutdown(cancel_futures=True)


_here: tuple[Mapping[str, ImageSet], int]


def _start(sets: Mapping[str, ImageSet], channels: int) -> None:
    """In each process, once: the images arrive here and not with every chunk."""
    global _here
    torch.set_num_threads(1)
    _here = (sets, channels)


def _measure_here(chunk: tuple[str, int]) -> list[ImageFacts | str]:
    return _measure_chunk(*_here, chunk)


def _measure_chunk(sets: Mapping[str, ImageSet], channels: int, chunk: tuple[str, int]) -> list[ImageFacts | str]:
    """Facts of each image, or why it cannot be read."""
    name, low = chunk
    images = sets[name]
    found: list[ImageFacts | str] = []
    for index in range(low, min(low + CHUNK_IMAGES, len(images))):
        try:
            found.append(image_facts(images, index, channels))
        except Exception as problem:  # one file, however broken, does not end the scan
            reason = str(problem) if isinstance(problem, VitletError) else first_line(problem)
            reason = reason.removeprefix(f"cannot read the image {images.name(index)}: ")
            found.append(reason.removesuffix(" Repair or remove it.").rstrip("."))
    return found


def image_facts(images: ImageSet, index: int, channels: int) -> ImageFacts:
    """Decode an image as training does, and measure it."""
    tensor, header = _decode(images, index, channels)
    pixels: Bytes = np.ascontiguousarray(tensor.numpy())
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(pixels.data)
    flat = pixels.reshape(channels, -1)
    squares = flat.astype(np.uint16) ** 2
    grey = Image.fromarray(_grey(pixels))
    return ImageFacts(
        size=(pixels.shape[1], pixels.shape[2]),
        digest=digest.digest(),
        grid=np.asarray(grey.resize(HASH_SHAPE[::-1], Image.Resampling.BILINEAR)),
        thumbnail=np.asarray(grey.resize(THUMBNAIL_SHAPE[::-1], Image.Resampling.BOX)),
        moments=np.stack([flat.mean(axis=1) / 255, squares.mean(axis=1) / 255**2]),
        header=header,
    )


def _decode(images: ImageSet, index: int, channels: int) -> tuple[Tensor, Header]:
    source, place = _stored(images, index)
    if isinstance(source, Arrays):
        bands = source.images.shape[1]
        mode = {1: "L", 3: "RGB"}.get(bands, f"{bands} channels")
        return source.image(place, channels), Header("array", mode, 8, rotated=False, animated=False)
    return decode_with_header(source.content(place), channels, name=source.name(place))


def _grey(pixels: Bytes) -> Bytes:
    """One plane: Pillow's weights for three channels, the mean of any other number."""
    if len(pixels) == 3:
        red, green, blue = pixels.astype(np.uint16)
        grey: Bytes = ((red * 76 + green * 150 + blue * 29) >> 8).astype(np.uint8)
    else:
        grey = pixels.mean(axis=0).astype(np.uint8)
    return grey


def _stored(images: ImageSet, index: int) -> tuple[ImageSet, int]:
    """The set that holds an image itself, and its index there."""
    while isinstance(images, Subset | Joined):
        images, index = images.locate(index)
    return images, index


def _in_memory(images: ImageSet) -> bool:
    return len(images) > 0 and isinstance(_stored(images, 0)[0], Arrays)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stack(facts: Sequence[ImageFacts | str], channels: int) -> Measures:
    readable = [(index, item) for index, item in enumerate(facts) if not isinstance(item, str)]
    rows = [item for _, item in readable]
    count = len(rows)
    return Measures(
        indices=np.array([index for index, _ in readable], dtype=np.int64),
        sizes=np.array([row.size for row in rows], dtype=np.int64).reshape(count, 2),
        digests=np.frombuffer(b"".join(row.digest for row in rows), dtype=np.uint64).reshape(count, 2),
        grids=np.array([row.grid for row in rows], dtype=np.uint8).reshape(count, *HASH_SHAPE),
        thumbnails=np.array([row.thumbnail for row in rows], dtype=np.uint8).reshape(count, *THUMBNAIL_SHAPE),
        moments=np.array([row.moments for row in rows]).reshape(count, 2, channels),
        headers=tuple(row.header for row in rows),
        unreadable={index: item for index, item in enumerate(facts) if isinstance(item, str)},
    )
