"""Measurements of each image for `vitlet scan`, in several processes; unreadable images are recorded."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitlet.data.decode import CANNOT_READ, REPAIR, Bytes, Header, decode_with_header
from vitlet.data.images import Arrays, ImageSet, stored_at
from vitlet.data.scan.duplicates import HASH_SHAPE, THUMBNAIL_SHAPE
from vitlet.errors import VitletError, first_line
from vitlet.processes import usable_cores

CHUNK_IMAGES = 64
"""Images measured between two reports of progress."""

POOL_SECONDS = 6.0
"""Seconds of work that are not worth starting processes for."""

OnProgress = Callable[[int, int], None]


class ImageFacts(NamedTuple):
    """Measures of one image.

    Attributes:
        size: height and width, upright.
        digest: digest of the decoded pixels and their size.
        grid, thumbnail: small grey images to tell copies by.
        moments: mean and mean square of each channel, in 0..1, ``(2, channels)``.
        header: how it is stored.
    """

    size: tuple[int, int]
    digest: bytes
    grid: Bytes
    thumbnail: Bytes
    moments: NDArray[np.float64]
    header: Header


MeasuredImage = ImageFacts | str
"""The measures of an image, or why it cannot be read."""


def measure_sets(
    sets: Mapping[str, ImageSet], channels: int, *, workers: int | None = None, progress: OnProgress | None = None
) -> dict[str, list[MeasuredImage]]:
    """Measure every image of every set, in order.

    Args:
        sets: by name.
        channels: to decode with.
        workers: processes; 0 or 1 for none. By default as many as there are cores, if the work is worth it.
        progress: called with the number of images done and of all.
    """
    chunks = [(name, low) for name, images in sets.items() for low in range(0, len(images), CHUNK_IMAGES)]
    found: dict[str, list[MeasuredImage]] = {name: [] for name in sets}
    total, done = sum(map(len, sets.values())), 0
    for (name, _), facts in zip(chunks, _measured(sets, channels, chunks, workers), strict=True):
        found[name] += facts
        done += len(facts)
        if progress is not None:
            progress(done, total)
    return found


def _measured(
    sets: Mapping[str, ImageSet], channels: int, chunks: Sequence[tuple[str, int]], workers: int | None
) -> Iterator[list[MeasuredImage]]:
    """The facts of each chunk; where the number of processes is open, the first chunk tells how long all would take."""
    if workers is None and chunks:
        began = time.perf_counter()
        yield _measure_chunk(sets, channels, chunks[0])
        expected = (time.perf_counter() - began) * (len(chunks) - 1)
        chunks = chunks[1:]
        workers = 1 if expected < POOL_SECONDS or any(map(_in_memory, sets.values())) else usable_cores()
    if workers is None or workers < 2:
        yield from (_measure_chunk(sets, channels, chunk) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(dict(sets), channels))
    try:
        yield from pool.map(_measure_here, chunks)
    except BrokenProcessPool as problem:
        raise VitletError(
            "a process that reads images was killed or could not start (out of memory, or a script without"
            " `if __name__ == '__main__':`). Scan with one process: -j 1, or workers=1."
        ) from problem
    finally:
        pool.shutdown(cancel_futures=True)


_here: tuple[Mapping[str, ImageSet], int]


def _start(sets: Mapping[str, ImageSet], channels: int) -> None:
    """Initializer of a worker process: receives the images once instead of with every chunk."""
    global _here
    torch.set_num_threads(1)
    _here = (sets, channels)


def _measure_here(chunk: tuple[str, int]) -> list[MeasuredImage]:
    return _measure_chunk(*_here, chunk)


def _measure_chunk(sets: Mapping[str, ImageSet], channels: int, chunk: tuple[str, int]) -> list[MeasuredImage]:
    name, low = chunk
    images = sets[name]
    found: list[MeasuredImage] = []
    for index in range(low, min(low + CHUNK_IMAGES, len(images))):
        try:
            found.append(image_facts(images, index, channels))
        except Exception as problem:  # one file, however broken, does not end the scan
            reason = str(problem) if isinstance(problem, VitletError) else first_line(problem)
            reason = reason.removeprefix(f"{CANNOT_READ}{images.name(index)}: ")
            found.append(reason.removesuffix(REPAIR).rstrip("."))
    return found


def image_facts(images: ImageSet, index: int, channels: int) -> ImageFacts:
    """Decode an image as training does, and measure it."""
    tensor, header = _decode(images, index, channels)
    pixels: Bytes = np.ascontiguousarray(tensor.numpy())
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(pixels.data)
    flat = pixels.reshape(channels, -1)
    squares = flat.astype(np.uint16) ** 2
    grey = _grey(pixels)
    return ImageFacts(
        size=(pixels.shape[1], pixels.shape[2]),
        digest=digest.digest(),
        grid=np.asarray(grey.resize(HASH_SHAPE[::-1], Image.Resampling.BILINEAR)),
        thumbnail=np.asarray(grey.resize(THUMBNAIL_SHAPE[::-1], Image.Resampling.BOX)),
        moments=np.stack([flat.mean(axis=1) / 255, squares.mean(axis=1) / 255**2]),
        header=header,
    )


def _decode(images: ImageSet, index: int, channels: int) -> tuple[Tensor, Header]:
    source, place = stored_at(images, index)
    if isinstance(source, Arrays):
        bands = source.images.shape[1]
        mode = {1: "L", 3: "RGB"}.get(bands, f"{bands} channels")
        return source.image(place, channels), Header("array", mode, 8, rotated=False, animated=False)
    return decode_with_header(source.content(place), channels, name=source.name(place))


def _grey(pixels: Bytes) -> Image.Image:
    """Greyscale image: Pillow's weights for three channels, otherwise the mean of the channels."""
    if len(pixels) != 3:
        return Image.fromarray(pixels.mean(axis=0).astype(np.uint8))
    red, green, blue = pixels.astype(np.uint16)
    return Image.fromarray(((red * 76 + green * 150 + blue * 29) >> 8).astype(np.uint8))


def _in_memory(images: ImageSet) -> bool:
    return len(images) > 0 and isinstance(stored_at(images, 0)[0], Arrays)
