"""Quick check for the problems that a scan would report, in about a second."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, defaultdict

from vitlet.data.images import Dataset
from vitlet.data.scan.hints import IMBALANCE
from vitlet.data.shards import ShardStream
from vitlet.errors import VitletError

VERY_FEW = 10
"""Training images of a class below which it is mentioned."""


def quick_findings(dataset: Dataset, seconds: float = 1.0) -> list[str]:
    """Unequal and very small classes, and equal files in two splits or classes; nothing where all is well.

    Args:
        dataset: as it was read, not yet decoded.
        seconds: after which the search for equal files is given up.
    """
    if any(isinstance(images, ShardStream) for images in dataset.splits().values()):
        return []
    counts, found = Counter(dataset.train.labels), []
    if counts and max(counts.values()) > IMBALANCE * min(counts.values()):
        unequal = f"the largest class has {max(counts.values()):,} images, the smallest {min(counts.values()):,}"
        found.append(f"{unequal} (--balance sampler draws them equally often; whether it helps here is not measured)")
    if few := sum(counts[label] < VERY_FEW for label in range(len(dataset.classes))):
        found.append(f"{few} of {len(dataset.classes)} classes have fewer than {VERY_FEW} training images")
    return found + _copies(dataset, time.monotonic() + seconds)


def _copies(dataset: Dataset, until: float) -> list[str]:
    """Files with the same bytes that lie on both sides of a split, or in several classes."""
    splits, classes = defaultdict[bytes, set[str]](set), defaultdict[bytes, set[int]](set)
    for split, images in dataset.splits().items():
        for index, label in enumerate(images.labels):
            if time.monotonic() > until:
                return []
            try:
                digest = hashlib.blake2b(images.content(index), digest_size=16).digest()
            except VitletError:  # a file that the run was told to leave out
                continue
            splits[digest].add(split)
            classes[digest].add(label)
    found = []
    if leaks := sum("train" in where and len(where) > 1 for where in splits.values()):
        found.append(f"{leaks} training images are also in val or test")
    if conflicts := sum(len(labels) > 1 for labels in classes.values()):
        found.append(f"{conflicts} images are in several classes")
    return found
