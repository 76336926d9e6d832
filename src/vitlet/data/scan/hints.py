"""Hints from the names and sizes of classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

IMBALANCE = 5.0
"""Largest class over smallest beyond which balancing is worth a thought."""

_DIGIT_WORDS = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}


def looks_like_signs(classes: Sequence[str]) -> bool:
    """Whether at least four in five classes are named like single digits or letters (``3``, ``b``, ``digit 3``)."""
    bare = [re.sub(r"^(digit|number|num|letter|char|character)[\s_-]*", "", name.strip().lower()) for name in classes]
    signs = [name for name in bare if (len(name) == 1 and name.isalnum()) or name in _DIGIT_WORDS]
    return len(signs) >= max(2, 0.8 * len(classes))


def sides_in_names(classes: Sequence[str]) -> bool:
    """Whether the class names distinguish left and right."""
    words = {word for name in classes for word in re.split(r"[^a-z]+", name.lower())}
    return {"left", "right"} <= words


def flip_hint(classes: Sequence[str]) -> str | None:
    """A warning about mirrored images, where the classes' names give reason for one."""
    if looks_like_signs(classes):
        return (
            f"the classes are named like digits or letters ({', '.join(map(repr, classes[:4]))}, ...): a mirrored sign"
            " is another sign or none. Train with --hflip 0, unless these names are mere numbers of other things."
        )
    if sides_in_names(classes):
        return "the class names distinguish left and right: mirroring an image changes its class. Train with --hflip 0."
    return None


def imbalance_hint(counts: Sequence[int]) -> str | None:
    """A word on balancing, where the largest class dwarfs the smallest."""
    some = [count for count in counts if count]
    if not some or max(some) / min(some) <= IMBALANCE:
        return None
    return (
        f"the largest class has {max(some) / min(some):.1f} times the training images of the smallest ({max(some)},"
        f" {min(some)}): consider balanced sampling or class weights, and judge by balanced accuracy."
    )
