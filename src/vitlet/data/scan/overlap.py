"""Which images of a pool are new: not among labelled images, each picture once, and readable.

Pixels decide, not files: a copy in another lossless format is a copy. Near copies stay in; small images of one kind,
such as digits, are near copies of each other by nature, and a choice that looks for diversity takes few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vitlet.data.images import ImageSet
from vitlet.data.scan.measure import ImageFacts, OnProgress, measure_sets

POOL = "pool"


@dataclass(frozen=True)
class NewImages:
    """Images of a pool that are not in the training data, and the reasons for leaving out the others.

    Attributes:
        indices: of the new images, the first of each picture.
        known: images whose pixels are those of a labelled one.
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
    unreadable = tuple((index, item) for index, item in enumerate(measured[POOL]) if isinstance(item, str))
    labels = {item.digest for name in labelled for item in measured[name] if isinstance(item, ImageFacts)}
    left: dict[bytes, int] = {}
    known, repeated = [], []
    for index, item in enumerate(measured[POOL]):
        if isinstance(item, ImageFacts):
            if item.digest in labels:
                known.append(index)
            elif left.setdefault(item.digest, index) != index:
                repeated.append(index)
    return NewImages(tuple(left.values()), tuple(known), tuple(repeated), unreadable)
