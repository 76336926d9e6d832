"""Honest splits: seeded, by class, nested, independent of the order of files, and groups never straddle them.

The images of a class are ranked by key and seed alone and the first of them held out: the order of files has no say,
and the 10 % subset contains the 5 % one. Files added later move the cut; a run keeps a fingerprint of what it had.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TypeVar

import torch

from vitlet.data.images import ImageSet, Subset
from vitlet.data.randomness import mix_seed
from vitlet.errors import VitletError

_Item = TypeVar("_Item")


def ranked(images: ImageSet, seed: int, salt: str) -> dict[int, list[int]]:
    """The images of each class in an order drawn by seed and key."""
    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(images.labels):
        by_class[label].append(index)
    return {
        label: sorted(members, key=lambda index: draw(seed, salt, images.key(index)))
        for label, members in sorted(by_class.items())
    }


def draw(seed: int, salt: str, key: str) -> bytes:
    """A number that looks random and depends on nothing but these."""
    return hashlib.blake2b(f"{seed}\0{salt}\0{key}".encode(errors="surrogateescape"), digest_size=8).digest()


def fingerprint(images: ImageSet) -> str:
    """Fingerprint of a set of labelled images, independent of their order."""
    digest = hashlib.blake2b(digest_size=16)
    for line in sorted(f"{images.key(index)}\0{label}" for index, label in enumerate(images.labels)):
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()


def hold_out(
    images: ImageSet, fraction: float, seed: int, *, groups: Sequence[str] | None = None, salt: str = "val"
) -> tuple[Subset, Subset]:
    """Split off a share of every class; at least one image where a class has two.

    With ``groups`` (one name per image) whole groups are held out, chosen so that the classes come as near to the
    share as they can.
    """
    if groups is not None:
        held = _whole_groups(images, fraction, seed, groups, salt)
    else:
        held = set()
        for members in ranked(images, seed, salt).values():
            held |= set(members[: min(max(1, round(fraction * len(members))), len(members) - 1)])
    if not held or len(held) == len(images):
        raise VitletError(
            "no image could be held out for validation: found one image in each class, or one group."
            " Add images, or give a val folder."
        )
    return _pick(images, set(range(len(images))) - held), _pick(images, held)


def hold_out_items(items: Sequence[_Item], fraction: float, seed: int) -> tuple[list[_Item], list[_Item]]:
    """Items without a class (images with boxes or masks) to train on, and a random share of them to validate on.

    The choice is a function of the number of items, their order and the seed.
    """
    count = round(len(items) * fraction)
    if fraction > 0 and not 0 < count < len(items):
        raise VitletError(
            f"{len(items)} training images are too few to hold out a fraction of {fraction:g}. Add validation images,"
            " or use"
            " --val-fraction 0."
        )
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(mix_seed(seed))).tolist()
    held = set(order[:count])
    return [item for place, item in enumerate(items) if place not in held], [items[place] for place in sorted(held)]


def fold(
    images: ImageSet, folds: int, number: int, seed: int, *, groups: Sequence[str] | None = None
) -> tuple[Subset, Subset]:
    """Training and validation images of one of ``folds`` parts (``number`` from 1), every class dealt evenly."""
    if not 1 <= number <= folds or folds < 2:
        raise VitletError(f"fold {number} of {folds}: needs at least 2 folds and a number from 1 to {folds}.")
    if groups is not None:
        names = sorted(set(groups), key=lambda name: draw(seed, "fold", name))
        if len(names) < folds:
            raise VitletError(f"found {len(names)} groups for {folds} folds; each fold needs one.")
        chosen = set(names[number - 1 :: folds])
        held = {index for index, group in enumerate(groups) if group in chosen}
    else:  # dealt on from class to class, so that sizes stay even
        dealt = [index for members in ranked(images, seed, "fold").values() for index in members]
        held = set(dealt[number - 1 :: folds])
    return _pick(images, set(range(len(images))) - held), _pick(images, held)


def keep(
    images: ImageSet, *, fraction: float = 1.0, per_class: int | None = None, seed: int = 0, least: int = 1
) -> ImageSet:
    """A share, or a number, of the images of every class, ``least`` if it has them; larger ones contain smaller."""
    if fraction >= 1.0 and per_class is None:
        return images
    chosen: set[int] = set()
    for label, members in ranked(images, seed, "keep").items():
        count = max(least, round(fraction * len(members)))
        if per_class is not None:
            if per_class > len(members):
                raise VitletError(f"class {label} has {len(members)} training images, but per_class is {per_class}.")
            count = min(count, per_class)
        chosen |= set(members[:count])
    return _pick(images, chosen)


def pick_classes(images: ImageSet, labels: Sequence[int]) -> Relabelled:
    """Images of these classes only, with labels in this order."""
    new = {label: position for position, label in enumerate(labels)}
    indices = tuple(index for index, label in enumerate(images.labels) if label in new)
    return Relabelled(images, indices, new)


def pick_names(images: ImageSet, found: Sequence[str], known: Sequence[str], *, source: str) -> Relabelled:
    """All images, with labels by the index of their class name in ``known``."""
    strangers = [name for name in found if name not in known]
    if strangers:
        shown = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
        raise VitletError(
            f"{source} holds the class {strangers[0]!r}, which is not among the {len(known)} classes of the run"
            f" ({shown}): its label would exceed the outputs of the classifier. Leave that class out."
        )
    new = {label: list(known).index(name) for label, name in enumerate(found)}
    return Relabelled(images, tuple(range(len(images))), new)


class Relabelled(Subset):
    """Some classes of a set, with labels of their own."""

    def __init__(self, base: ImageSet, indices: tuple[int, ...], new: dict[int, int]) -> None:
        super().__init__(base, indices)
        object.__setattr__(self, "labels", [new[base.labels[index]] for index in indices])


def _pick(images: ImageSet, chosen: set[int]) -> Subset:
    return Subset(images, tuple(sorted(chosen)))


def _whole_groups(images: ImageSet, fraction: float, seed: int, groups: Sequence[str], salt: str) -> set[int]:
    """Groups in a drawn order, each taken if that brings the held-out classes nearer to their share."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    totals = Counter(images.labels)
    wanted = {label: fraction * count for label, count in totals.items()}
    held: set[int] = set()
    counts: Counter[int] = Counter()
    farther: dict[str, float] = {}
    for group in sorted(members, key=lambda name: draw(seed, salt, name)):
        added = Counter(images.labels[index] for index in members[group])
        before = sum((wanted[label] - counts[label]) ** 2 for label in added)
        after = sum((wanted[label] - counts[label] - count) ** 2 for label, count in added.items())
        if any(counts[label] + count >= totals[label] for label, count in added.items()):
            continue  # would leave a class nothing to train on
        if after < before:
            held |= set(members[group])
            counts += added
        else:
            farther[group] = after - before
    if not held and farther:  # few and large groups: the one that overshoots least
        held = set(members[min(farther, key=farther.__getitem__)])
    return held
