"""Quick statistics of a dataset from its labels and the headers of some images, without decoding."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from vitlet.data.decode import GREY_MODES, open_image
from vitlet.data.images import Arrays, Dataset, ImageSet, stored_at
from vitlet.data.scan.hints import flip_hint
from vitlet.data.shards import ShardStream, stream
from vitlet.pictures import spaced

SAMPLE = 64
"""Images that are looked at."""


@dataclass(frozen=True)
class Glance:
    """Statistics of a dataset that decide how to train on it.

    Attributes:
        images: to train on.
        classes: number of them.
        side: median of the shorter sides in pixels; None where no image could be looked at.
        channels: 1 where all are grey, 3 for colour, or as many as arrays have.
        mirrored: whether a mirrored image still shows its class, as far as the names of the classes tell.
        streamed: whether the images are only met one after another.
    """

    images: int
    classes: int
    side: float | None
    channels: int
    mirrored: bool = True
    streamed: bool = False


def glance(dataset: Dataset, sample: int = SAMPLE) -> Glance:
    """Look at the training images; broken ones are passed over, for the run itself names them."""
    looks = list(_looks(dataset, sample))
    channels = {bands for _, bands in looks}
    return Glance(
        images=len(dataset.train),
        classes=len(dataset.classes),
        side=float(np.median([side for side, _ in looks])) if looks else None,
        channels=max(channels, default=3) if len(channels) < 2 else 3,
        mirrored=flip_hint(dataset.classes) is None,
        streamed=isinstance(dataset.train, ShardStream),
    )


def _looks(dataset: Dataset, sample: int) -> Iterator[tuple[int, int]]:
    """Shorter side and channels of evenly spaced images."""
    images = dataset.train
    if isinstance(images, ShardStream):
        contents = stream(images.urls[:1], len(dataset.classes))
        yield from (look for _, content, _ in islice(contents, sample) if (look := _look(content)) is not None)
        return
    for index in spaced(len(images), sample):
        source, place = stored_at(images, index)
        if isinstance(source, Arrays):
            bands, height, width = source.images.shape[1:]
            yield min(height, width), bands
        elif (look := _look_at(source, place)) is not None:
            yield look


def _look_at(images: ImageSet, index: int) -> tuple[int, int] | None:
    try:
        return _look(images.content(index))
    except Exception:  # a file that is gone, an archive that is damaged: the run says so
        return None


def _look(content: bytes) -> tuple[int, int] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_image(io.BytesIO(content)) as opened:
                return min(opened.size), 1 if opened.mode in GREY_MODES else 3
    except Exception:  # damaged bytes make Pillow's readers fail in any way
        return None
