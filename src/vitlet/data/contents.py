"""Whether images are still what they were: a digest of their content, cheap enough to be made at every start."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from vitlet.data.archives import ArchivedImages
from vitlet.data.images import Arrays, Derived, Files, ImageSet
from vitlet.errors import VitletError
from vitlet.processes import usable_cores

MOST_BYTES = 2**30
"""Up to here every byte counts; of more data, the size of every file."""

Part = Path | Tensor


def content_print(parts: Sequence[tuple[str, Part]]) -> str:
    """Fingerprint of named files and arrays by their content; modification times do not matter."""

    def size(part: Part) -> int:
        return part.stat().st_size if isinstance(part, Path) else part.nbytes

    def digest(part: Part) -> str:
        if isinstance(part, Tensor):
            return hashlib.blake2b(part.numpy().tobytes(), digest_size=16).hexdigest()
        with part.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()

    try:
        with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
            things = [part for _, part in parts]
            sizes = list(pool.map(size, things))
            digests = pool.map(digest, things) if sum(sizes) <= MOST_BYTES else [""] * len(parts)
            lines = [f"{name}\0{count}\0{found}" for (name, _), count, found in zip(parts, sizes, digests, strict=True)]
    except OSError as problem:
        raise VitletError(f"cannot read the image {problem.filename}: {problem.strerror}.") from problem
    return hashlib.blake2b("\n".join(sorted(lines)).encode(errors="surrogateescape"), digest_size=16).hexdigest()


def image_parts(images: ImageSet) -> list[tuple[str, Part]]:
    """The files and arrays that hold these images; those of other sources, such as the hub, are left out."""
    found: dict[str, Part] = {}
    for index in range(len(images)):
        base, place = _origin(images, index)
        if isinstance(base, Files):
            found[images.key(index)] = base.paths[place]
        elif isinstance(base, ArchivedImages):
            found[base.tree.file.name] = base.tree.file
        elif isinstance(base, Arrays):
            found[images.key(index)] = base.images[place]
    return list(found.items())


def _origin(images: ImageSet, index: int) -> tuple[ImageSet, int]:
    """The set that an image was read from, and its index there."""
    while isinstance(images, Derived) or (isinstance(images, Arrays) and images.names is not None):
        if isinstance(images, Derived):
            images, index = images.locate(index)
        elif isinstance(images, Arrays) and images.names is not None:
            images = images.names
    return images, index
