"""Which images of a pool are new: not among labelled images, each picture once, and readable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vitlet.data.images import ImageSet
from vitlet.data.scan.duplicates import find_copies
from vitlet.data.scan.measure import ImageFacts, OnProgress, measure_sets

POOL = "pool"


@dataclass(frozen=True)
class NewImages:
    """What is left of a pool, and why the rest is not.

    Attributes:
        indices: of the new images, the first of each picture.
        known: images that are copies of labelled ones, exact or near.
        repeated: further copies inside the pool.
        unreadable: images that cannot be read, each with the reason.
    """

    indices: tuple[int, ...]
    known: tuple[int, ...]
    repeated: tuple[int, ...]
    unreadable: tuple[tuple[int, str], ...]


def new_images(
    pool: ImageSet, labelled: Mapping[str, ImageSet], channels: int, *, progress: OnProgress | None = None
) -> NewImages:
    """Compare a pool with labelled images and with itself, by content: names have no say.

    Args:
        pool: images without labels.
        labelled: sets of labelled images by name.
        channels: to decode with.
        progress: called with the number of images read and of all.
    """
    sets = {**labelled, POOL: pool}
    measured = measure_sets(sets, channels, workers=0, progress=progress)
    found = [(name, index, item) for name in sets for index, item in enumerate(measured[name])]
    facts = [(name, index, item) for name, index, item in found if isinstance(item, ImageFacts)]
    unreadable = tuple((index, item) for name, index, item in found if name == POOL and isinstance(item, str))
    if not facts:
        return NewImages((), (), (), unreadable)
    digests = np.frombuffer(b"".join(item.digest for _, _, item in facts), dtype=np.uint64).reshape(-1, 2)
    grids, thumbnails = (np.stack([getattr(item, key) for _, _, item in facts]) for key in ("grid", "thumbnail"))
    known: set[int] = set()
    repeated: set[int] = set()
    for group in find_copies(digests, grids, thumbnails).groups:
        own = [facts[member][1] for member in group.members if facts[member][0] == POOL]
        if len(own) < len(group.members):
            known |= set(own)
        else:
            repeated |= set(own[1:])
    left = [index for name, index, _ in facts if name == POOL and index not in known | repeated]
    return NewImages(tuple(left), tuple(sorted(known)), tuple(sorted(repeated)), unreadable)
