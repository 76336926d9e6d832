"""Copies among images: the same pixels, or the same picture in another encoding, size or brightness.

Near copies are found in two steps. A difference hash (dHash: is each place brighter than the one left of it? 8 x 8
places, 64 bits) proposes pairs that differ in at most ``RADIUS`` bits. Such pairs may still be two pictures of little
more than sky, so what is left of their grey thumbnails after removing smooth shading must agree as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

HASH_SHAPE = (8, 9)
"""Height and width of the grey image that is hashed."""

THUMBNAIL_SHAPE = (16, 16)
"""Height and width of the grey image that confirms a likeness."""

RADIUS = 7
"""Bits in which the hashes of near copies may differ."""

LIKENESS = (0.9, 0.95, 0.98)
"""Least correlation of the thumbnails of near copies, smooth shading removed; the next where too many reach it."""

COMMON = (50, 0.1)
"""Images, and share of all, beyond which likeness is no evidence of a copy: digits look alike by nature."""

PLAIN = 3.0
"""Thumbnails that vary less than this (grey levels, shading removed) are too plain to recognise."""

WORK = 200_000_000
"""Pairs that may be compared; where more would be, the search narrows and says so."""

_BANDS, _BAND_BITS = 4, 16
_SLICE = 2_000_000

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class CopyGroup:
    """Images that are copies of each other, by index; ``likeness`` is the least that joined two of them."""

    members: tuple[int, ...]
    exact: bool
    likeness: float


@dataclass(frozen=True)
class Copies:
    """Duplicates that were found, and the number of images that could not be searched.

    Attributes:
        groups: in the order of their first members.
        radius: bits in which hashes of near copies could differ.
        likeness: the least that was asked of near copies.
        plain: images left out of the search for near copies as too plain.
        crowded: images left out because too many others have nearly the same hash.
    """

    groups: tuple[CopyGroup, ...]
    radius: int
    likeness: float
    plain: int
    crowded: int

    @property
    def search(self) -> dict[str, float]:
        """Settings of the near-duplicate search, and the number of images left out, by name."""
        return {"bits": self.radius, "likeness": self.likeness, "plain": self.plain, "crowded": self.crowded}


def find_copies(
    digests: NDArray[np.uint64], grids: NDArray[np.uint8], thumbnails: NDArray[np.uint8], *, work: int = WORK
) -> Copies:
    """Group images by their pixels' digests ``(N, 2)``, and by grey grids ``(N, 8, 9)`` and thumbnails ``(N, 16, 16)``.

    Each picture is compared once, however often it is there exactly.
    """
    if not len(digests):
        return Copies((), RADIUS, LIKENESS[0], 0, 0)
    _, first, group = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    first, group = first.astype(np.int64), group.reshape(-1).astype(np.int64)
    detail, strength = _detail(thumbnails[first])
    seen = np.flatnonzero(strength >= PLAIN)
    pairs, radius, crowded = _near_hashes(_bits(grids[first][seen]), work)
    pairs = seen[pairs]
    likeness = _likeness(detail, pairs)
    least_likeness = _least_likeness(len(first), pairs, likeness)
    pairs, likeness = pairs[likeness >= least_likeness], likeness[likeness >= least_likeness]
    joined = _components(len(first), pairs)
    least = np.ones(len(first))
    np.minimum.at(least, joined[pairs[:, 0]], likeness)
    near = np.zeros(len(first), dtype=bool)
    near[joined[pairs[:, 0]]] = True
    groups = _groups(joined[group], least, near)
    return Copies(groups, radius, least_likeness, int((strength < PLAIN).sum()), crowded)


def _groups(group: Whole, least: NDArray[np.float64], near: NDArray[np.bool_]) -> tuple[CopyGroup, ...]:
    """Groups of two or more images, from each image's group number."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    found = [
        CopyGroup(tuple(members.tolist()), not near[group[members[0]]], round(float(least[group[members[0]]]), 4))
        for members in np.split(order, starts[1:])
        if len(members) > 1
    ]
    return tuple(sorted(found, key=lambda copies: copies.members))


def _bits(grids: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The difference hash as ``(N, 4, 16)``: neighbours go to different bands, so that no band is all margin."""
    bits = grids[:, :, 1:] > grids[:, :, :-1]
    return bits.reshape(len(grids), _BAND_BITS, _BANDS).transpose(0, 2, 1)


def _near_hashes(bits: NDArray[np.bool_], work: int) -> tuple[Whole, int, int]:
    """Pairs ``(P, 2)`` of hashes within the radius, the radius, and how many were left out as crowded.

    Hashes that differ in at most 7 bits differ in at most one bit in one of four bands, so images are looked up by
    each band and by each band with one bit flipped. Without the flips, all pairs within 3 bits are found.
    """
    packed = np.ascontiguousarray(np.packbits(bits, axis=2)).reshape(len(bits), 2 * _BANDS)
    bands = packed.view(np.uint16).astype(np.int64)
    hashes = packed.view(np.uint64).reshape(-1)
    counts = [np.bincount(bands[:, band], minlength=2**_BAND_BITS) for band in range(_BANDS)]
    radius = RADIUS
    if _pairs_to_compare(counts, _flips(radius)) > work:
        radius = _BANDS - 1
    crowded = np.zeros(len(bits), dtype=bool)
    if _pairs_to_compare(counts, _flips(radius)) > work:
        most = max(1, work // (_BANDS * len(bits)))
        crowded = np.all([count[bands[:, band]] > most for band, count in enumerate(counts)], axis=0)
        counts = [np.where(count > most, 0, count) for count in counts]
    found: list[Whole] = [np.empty((0, 2), dtype=np.int64)]
    for band, count in enumerate(counts):
        for pairs in _band_pairs(bands[:, band], count, _flips(radius)):
            apart = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]])
            found.append(pairs[apart <= radius])
    return np.unique(np.concatenate(found), axis=0), radius, int(crowded.sum())


def _flips(radius: int) -> list[int]:
    return [0] if radius < _BANDS else [0, *(1 << bit for bit in range(_BAND_BITS))]


def _pairs_to_compare(counts: list[NDArray[Any]], flips: list[int]) -> int:
    values = np.arange(2**_BAND_BITS)
    return int(sum((count * count[values ^ flip]).sum() for count in counts for flip in flips) // 2)


def _band_pairs(band: Whole, count: NDArray[Any], flips: list[int]) -> Iterator[Whole]:
    """Pairs ``(P, 2)``, lower index first, whose bands are equal or differ by one of the flips; in slices."""
    order = np.argsort(band, kind="stable")
    sizes = np.bincount(band, minlength=len(count))
    starts = np.cumsum(sizes) - sizes
    for flip in flips:
        wanted = band ^ flip
        partners = np.where(count[band] > 0, count[wanted], 0)
        if flip:
            partners = np.where(band < wanted, partners, 0)  # each pair once
        ends = np.cumsum(partners)
        for low in range(0, int(ends[-1]) if len(ends) else 0, _SLICE):
            places = np.arange(low, min(low + _SLICE, int(ends[-1])))
            left = np.searchsorted(ends, places, side="right")
            right = order[starts[wanted[left]] + places - (ends - partners)[left]]
            pairs = np.stack([np.minimum(left, right), np.maximum(left, right)], axis=1)
            yield pairs[left < right] if not flip else pairs


@cache
def _shading() -> NDArray[np.float64]:
    """Orthonormal columns that span smooth shading over a thumbnail: polynomials of degree two."""
    rows, columns = (np.linspace(-1, 1, size) for size in THUMBNAIL_SHAPE)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    return np.linalg.qr(np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=-1).reshape(-1, 6))[0]


def _detail(thumbnails: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Thumbnails without shading, scaled to length one ``(N, 256)``, and how much they varied, in grey levels."""
    shading = _shading().astype(np.float32)
    values = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    values -= (values @ shading) @ shading.T
    strength = np.sqrt((values**2).mean(axis=1))
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)
    return values, strength


def _likeness(detail: NDArray[np.float32], pairs: Whole) -> NDArray[np.float64]:
    """Correlation of each pair's detail, from -1 to 1."""
    found = np.empty(len(pairs))
    for start in range(0, len(pairs), 50_000):
        left, right = pairs[start : start + 50_000].T
        found[start : start + 50_000] = (detail[left] * detail[right]).sum(axis=1)
    return np.clip(found, -1, 1)


def _least_likeness(count: int, pairs: Whole, likeness: NDArray[np.float64]) -> float:
    """The mildest demand that not too many images meet."""
    for demand in LIKENESS[:-1]:
        if len(np.unique(pairs[likeness >= demand])) <= max(COMMON[0], COMMON[1] * count):
            return demand
    return LIKENESS[-1]


def _components(count: int, pairs: Whole) -> Whole:
    """Which of ``count`` things are joined by pairs: the number of each one's component."""
    edges = coo_array((np.ones(len(pairs), dtype=bool), pairs.T), shape=(count, count))
    return np.asarray(connected_components(edges, directed=False)[1], dtype=np.int64)
