"""Who is dealt to which side: groups, folds, shares, and what tells one choice of images from another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest
import torch

from vitlet.data.images import Arrays, ImageSet
from vitlet.data.splits import fingerprint, fold, hold_out, hold_out_items, keep, pick_classes, pick_names, ranked
from vitlet.errors import VitletError


def arrays(labels: Sequence[int]) -> Arrays:
    return Arrays(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), tuple(labels))


def by_class(images: ImageSet) -> dict[int, int]:
    return dict(sorted(Counter(images.labels).items()))


class Reversed:
    """The same images with the same keys, in the other order."""

    one_size = True

    def __init__(self, base: ImageSet) -> None:
        self.base, self.labels = base, list(base.labels)[::-1]

    def __len__(self) -> int:
        return len(self.base)

    def key(self, index: int) -> str:
        return self.base.key(len(self.base) - 1 - index)


def test_a_fingerprint_is_of_images_and_their_labels() -> None:
    images = arrays([0, 1, 1, 2])
    assert fingerprint(images) == "3306261970751ea89a5cfe328a367103"
    assert fingerprint(Reversed(images)) == fingerprint(images)  # type: ignore[arg-type]
    assert fingerprint(arrays([0, 1, 2, 2])) != fingerprint(images)  # one label was changed
    assert fingerprint(arrays([0, 1, 1])) != fingerprint(images)


def test_a_split_is_that_of_earlier_versions() -> None:
    """A run that another version began holds out the same images."""
    images = arrays([0, 1] * 10)
    assert hold_out(images, 0.2, 3)[1].indices == (6, 12, 15, 17)
    assert fold(images, 4, 2, 3)[1].indices == (0, 5, 9, 14, 16)
    assert hold_out_items(range(10), 0.3, 3)[1] == [5, 7, 9]


def test_folds_go_on_from_class_to_class() -> None:
    """Seven images of each class in four folds: sizes differ by one, and no class lies in one fold alone."""
    images = arrays([0] * 7 + [1] * 7 + [2] * 7)
    parts = [fold(images, 4, number, 1)[1] for number in range(1, 5)]
    assert sorted(len(part) for part in parts) == [5, 5, 5, 6]
    assert all(set(by_class(part).values()) <= {1, 2} and len(by_class(part)) == 3 for part in parts)
    assert sorted(index for part in parts for index in part.indices) == list(range(21))
    dealt = [index for members in ranked(images, 1, "fold").values() for index in members]
    assert [part.indices for part in parts] == [tuple(sorted(dealt[first::4])) for first in range(4)]
    assert parts[0].indices != fold(images, 4, 1, 2)[1].indices


def test_folds_deal_whole_groups_evenly() -> None:
    groups = [str(index // 3) for index in range(33)]  # eleven groups of three
    images = arrays([index % 2 for index in range(33)])
    sides = [fold(images, 4, number, 0, groups=groups) for number in range(1, 5)]
    held = [{groups[index] for index in val.indices} for _, val in sides]
    assert sorted(len(part) for part in held) == [2, 3, 3, 3]
    assert set.union(*held) == set(groups)
    for (train, val), names in zip(sides, held, strict=True):
        assert len(val) == 3 * len(names)
        assert sorted([*train.indices, *val.indices]) == list(range(33))
    assert held != [{groups[index] for index in fold(images, 4, n, 1, groups=groups)[1].indices} for n in range(1, 5)]
    assert len({groups[index] for index in fold(images, 11, 11, 0, groups=groups)[1].indices}) == 1
    with pytest.raises(VitletError, match="found 11 groups for 12 folds"):
        fold(images, 12, 1, 0, groups=groups)


@pytest.mark.parametrize(("folds", "number"), [(1, 1), (4, 0), (4, 5), (0, 1)])
def test_folds_that_are_not_there(folds: int, number: int) -> None:
    with pytest.raises(VitletError, match=f"fold {number} of {folds}: needs at least 2 folds"):
        fold(arrays([0, 1] * 4), folds, number, 0)


def test_two_folds_are_enough() -> None:
    images = arrays([0, 1] * 4)
    train, val = fold(images, 2, 2, 0)
    assert by_class(val) == by_class(train) == {0: 2, 1: 2}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fraction", [0.2, 0.4])
def test_whole_groups_come_near_the_share_of_each_class(fraction: float, seed: int) -> None:
    """Twenty groups of uneven size and mixture: what is held out is within half the largest group of its share."""
    sizes = [1 + place % 5 for place in range(20)]
    groups = [str(place) for place, size in enumerate(sizes) for _ in range(size)]
    labels = [(index + int(group)) % 2 for index, group in enumerate(groups)]
    train, held = hold_out(arrays(labels), fraction, seed, groups=groups)
    assert not {groups[index] for index in train.indices} & {groups[index] for index in held.indices}
    totals = Counter(labels)
    for label, total in totals.items():
        assert abs(by_class(held)[label] - fraction * total) <= 2.5


def test_groups_are_taken_while_that_brings_their_classes_nearer() -> None:
    """Against all orders of the groups, each asked in turn whether the distance of all classes shrinks."""
    members = {"a": [0, 0], "b": [1, 1], "c": [0, 1], "d": [0, 0, 1, 1]}
    groups, labels = zip(*[(name, label) for name, held in members.items() for label in held], strict=True)

    def distance(taken: Sequence[str]) -> int:
        counts = Counter(label for name in taken for label in members[name])
        return sum((2 - counts[label]) ** 2 for label in (0, 1))  # 0.4 of five images each

    expected = set()
    for order in permutations(members):
        taken: list[str] = []
        for name in order:
            if distance([*taken, name]) < distance(taken):
                taken.append(name)
        expected.add(frozenset(taken))
    held = [hold_out(arrays(labels), 0.4, seed, groups=groups)[1].indices for seed in range(60)]
    assert {frozenset(groups[index] for index in indices) for indices in held} == expected
    assert len(expected) > 3


def test_no_class_loses_all_its_images_to_a_group() -> None:
    groups, labels = ["a", "a", "b", "b", "c", "c"], [0, 0, 0, 1, 0, 1]
    for seed in range(10):
        train, held = hold_out(arrays(labels), 0.5, seed, groups=groups)
        assert set(train.labels) == {0, 1}
        assert len(held) in (2, 4)
    with pytest.raises(VitletError, match="no image could be held out"):
        hold_out(arrays([0, 0, 1, 1]), 0.5, 0, groups=["a", "a", "b", "b"])


def test_of_groups_that_are_too_large_the_smallest_overshoot_is_held_out() -> None:
    groups, labels = ["a"] * 6 + ["b"] * 5 + ["c"] * 7, [0] * 18
    for seed in range(6):
        assert {groups[index] for index in hold_out(arrays(labels), 0.1, seed, groups=groups)[1].indices} == {"b"}


def test_shares_of_a_class_are_rounded_and_leave_one_to_train_on() -> None:
    images = arrays([0] * 20 + [1] * 2 + [2] * 1 + [3] * 5)
    train, held = hold_out(images, 0.3, 0)
    assert by_class(held) == {0: 6, 1: 1, 3: 2}
    assert by_class(train) == {0: 14, 1: 1, 2: 1, 3: 3}
    assert by_class(hold_out(images, 0.01, 0)[1]) == {0: 1, 1: 1, 3: 1}  # at least one
    assert by_class(hold_out(images, 0.99, 0)[0]) == {0: 1, 1: 1, 2: 1, 3: 1}  # never all
    with pytest.raises(VitletError, match="no image could be held out"):
        hold_out(arrays([0, 1, 2]), 0.5, 0)


def test_what_is_kept_of_a_class() -> None:
    images = arrays([0] * 20 + [1] * 4)
    assert keep(images) is images
    assert by_class(keep(images, fraction=0.25)) == {0: 5, 1: 1}
    assert by_class(keep(images, fraction=0.01)) == {0: 1, 1: 1}
    assert by_class(keep(images, fraction=0.01, least=3)) == {0: 3, 1: 3}
    assert by_class(keep(images, per_class=4)) == {0: 4, 1: 4}
    assert by_class(keep(images, fraction=0.1, per_class=4)) == {0: 2, 1: 1}
    first, second = (set(keep(images, fraction=0.5, seed=seed).indices) for seed in (0, 1))  # type: ignore[attr-defined]
    assert first != second
    assert keep(images, fraction=0.5).indices == keep(images, fraction=0.5, seed=0).indices  # type: ignore[attr-defined]
    with pytest.raises(VitletError, match="class 1 has 4 training images, but per_class is 5"):
        keep(images, per_class=5)


@pytest.mark.parametrize("fraction", [0.04, 0.96])
def test_items_that_leave_a_side_empty_are_refused(fraction: float) -> None:
    with pytest.raises(VitletError, match="10 training images are too few to hold out"):
        hold_out_items(range(10), fraction, 0)
    assert [len(side) for side in hold_out_items(range(10), 0.9, 0)] == [1, 9]
    assert [len(side) for side in hold_out_items(range(10), 0.1, 0)] == [9, 1]


def test_classes_are_numbered_anew() -> None:
    images = arrays([0, 1, 2, 1])
    picked = pick_classes(images, [2, 1])
    assert (picked.indices, list(picked.labels)) == ((1, 2, 3), [1, 0, 1])
    named = pick_names(images, ["cat", "dog", "owl"], ["owl", "cat", "dog"], source="the folder")
    assert (named.indices, list(named.labels)) == ((0, 1, 2, 3), [1, 2, 0, 2])
    known = ["a", "b", "c", "d", "e", "f"]
    with pytest.raises(VitletError, match=r"class 'cat', .* 6 classes of the run \(a, b, c, d, e, \.\.\.\)"):
        pick_names(images, ["a", "cat"], known, source="the folder")
    with pytest.raises(VitletError, match=r"\(a, b, c, d, e\)"):
        pick_names(images, ["a", "cat"], known[:5], source="the folder")
