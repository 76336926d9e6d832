"""What a dataset's shape suggests for training: simple rules, stated, not measured."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

IMBALANCE = 5.0
"""Largest class over smallest beyond which balancing is worth a thought."""

FEW = 2_000
MANY = 50_000
"""Training images below which a smaller network is suggested, and from which on a larger one."""

_SIZES = ((20, 16, 2), (40, 32, 4), (80, 64, 8), (128, 96, 8))
"""Median shorter side up to this: image size, patch size."""

_DIGIT_WORDS = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}


@dataclass(frozen=True)
class Suggestion:
    """A model for this many images of this size, as a command line, with the rule that led to it."""

    img_size: int
    patch_size: int
    model: str
    command: str
    reason: str
    measured: bool = False


def suggest(side: float, count: int, *, channels: int, grey: bool, signs: bool, data: str = "DATA") -> Suggestion:
    """A plain timm ViT.

    Args:
        side: median of the images' shorter sides.
        count: of training images.
        channels: that were asked for.
        grey: whether all images are grey.
        signs: whether mirroring changes what an image shows.
        data: what was scanned, as it was typed.
    """
    img_size, patch_size = next(((size, patch) for most, size, patch in _SIZES if side <= most), (224, 16))
    model = "vit_small_patch16_224" if count >= MANY and img_size == 224 else "vit_tiny_patch16_224"
    words = [f"vitlet train {shlex.quote(data)}", f"--model {model}"]
    arguments = [f"patch_size={patch_size}"] if patch_size != 16 else []
    if count < FEW:
        arguments += ["embed_dim=128", "depth=6", "num_heads=4"]
    if img_size != 224:
        words.append(f"--img-size {img_size}")
    if arguments:
        words.append("--model-kwargs " + " ".join(arguments))
    if grey or channels != 3:
        words.append(f"--in-chans {1 if grey else channels}")
    if signs:
        words.append("--hflip 0")
    width = "a narrower and shallower ViT than tiny" if count < FEW else model.split("_patch")[0].replace("_", "-")
    tokens = (img_size // patch_size) ** 2
    reason = (
        f"median shorter side {side:g} px: {img_size} px in patches of {patch_size} ({tokens} tokens);"
        f" {count:,} training images: {width}. A rule of thumb, not measured on this data"
    )
    return Suggestion(img_size, patch_size, model, " ".join(words), reason)


def looks_like_signs(classes: Sequence[str]) -> bool:
    """Whether at least four in five classes are named like single digits or letters (``3``, ``b``, ``digit 3``)."""
    bare = [re.sub(r"^(digit|number|num|letter|char|character)[\s_-]*", "", name.strip().lower()) for name in classes]
    signs = [name for name in bare if (len(name) == 1 and name.isalnum()) or name in _DIGIT_WORDS]
    return len(signs) >= max(2, 0.8 * len(classes))


def sides_in_names(classes: Sequence[str]) -> bool:
    """Whether the classes tell left from right."""
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
        return "the classes tell left from right: mirroring an image changes its class. Train with --hflip 0."
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
