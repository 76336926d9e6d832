"""Masks of objects: polygons and run lengths as COCO stores them, checked before a library reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlet.errors import VitletError, require_extra

SIGNS = range(48, 112)
"""Characters of compressed run lengths."""


def library() -> Any:
    """The mask functions of faster-coco-eval."""
    return require_extra("faster_coco_eval.core.mask", "detection", "reading masks")


def as_rle(segmentation: Any, height: int, width: int, where: str) -> dict[str, Any]:
    """Polygons or run lengths as compressed run lengths; ``empty`` says that no pixel is set."""
    if isinstance(segmentation, list):
        if not all(isinstance(polygon, list) for polygon in segmentation):
            raise VitletError(f"{where} has a segmentation that is not a list of polygons: [[x, y, x, y, ...], ...].")
        polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
        for polygon in polygons:
            good = len(polygon) % 2 == 0 and all(isinstance(side, (int, float)) for side in polygon)
            if not good or not all(abs(side) <= 1e6 for side in polygon):
                raise VitletError(f"{where} has a polygon that is not a list of x, y, x, y, ... in pixels.")
        if not polygons:
            return {**_encoded(np.zeros((height, width), np.uint8)), "empty": True}
        found: dict[str, Any] = library().merge(library().frPyObjects(polygons, height, width))
        return _noted(found)
    if isinstance(segmentation, Mapping) and segmentation.get("size") == [height, width]:
        return _noted(_checked_rle(segmentation.get("counts"), height, width, where))
    if isinstance(segmentation, Mapping):
        raise VitletError(
            f"{where} has a mask of size {segmentation.get('size')!r:.80}, but its image has {height}x{width} pixels."
        )
    raise VitletError(f"{where} has a segmentation that is neither polygons nor run lengths.")


def _noted(rle: dict[str, Any]) -> dict[str, Any]:
    return rle | ({"empty": True} if int(library().area(rle)) == 0 else {})


def _checked_rle(counts: Any, height: int, width: int, where: str) -> dict[str, Any]:
    """Run lengths that fill the image exactly: the library would read beyond its memory otherwise."""
    if isinstance(counts, str):
        runs = _uncompressed(counts)
    elif isinstance(counts, list) and all(isinstance(run, int) for run in counts):
        runs = counts
    else:
        runs = []
    if min(runs, default=-1) < 0 or sum(runs) != height * width:
        raise VitletError(f"{where} has run lengths that do not fill its image of {height}x{width} pixels.")
    values = np.repeat(np.arange(len(runs), dtype=np.uint8) % 2, runs)
    return _encoded(values.reshape((height, width), order="F"))


def _uncompressed(text: str) -> list[int]:
    """COCO's compressed run lengths: groups of five bits, from the third run on differences to the run two before."""
    runs: list[int] = []
    place = 0
    while place < len(text):
        value = shift = 0
        more = True
        while more:
            if place >= len(text) or ord(text[place]) not in SIGNS or shift > 60:
                return []
            sign = ord(text[place]) - SIGNS.start
            value |= (sign & 31) << shift
            more, shift, place = bool(sign & 32), shift + 5, place + 1
            if not more and sign & 16:
                value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    return runs


def _encoded(mask: np.ndarray[Any, np.dtype[np.uint8]]) -> dict[str, Any]:
    found: dict[str, Any] = library().encode(np.asfortranarray(mask))
    return {"size": [int(side) for side in found["size"]], "counts": found["counts"]}


def encode(mask: Tensor) -> dict[str, Any]:
    """A mask ``(height, width)`` of 0 and 1 as compressed run lengths."""
    return _encoded(mask.to(torch.uint8).cpu().numpy())


def decode(rle: Mapping[str, Any]) -> Tensor:
    """The mask of run lengths that `as_rle` or `encode` made: uint8 ``(height, width)``."""
    plain = {"size": list(rle["size"]), "counts": rle["counts"]}
    return torch.from_numpy(np.ascontiguousarray(library().decode(plain)))
