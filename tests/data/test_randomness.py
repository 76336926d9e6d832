"""Random numbers as a function of what they are for: against plain integers, and as they have always been."""

from __future__ import annotations

import pytest
import torch

from vitlet.data.augment import Augmentation, Augmenter
from vitlet.data.images import Arrays
from vitlet.data.loading import TrainingSet
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import keyed_uniforms, mix_seed


def mixed_by_hand(mixed: int, part: int) -> int:
    """A step of splitmix64 in integers that cannot overflow."""
    mixed = (mixed ^ (part + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return mixed ^ (mixed >> 31)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [((), 2177342782468422677), ((0,), 0), ((3,), 6699831591024755153), ((3, 0, 7), 362755688506935505)],
)
def test_seeds_are_those_of_earlier_versions(parts: tuple[int, ...], expected: int) -> None:
    """A run that another version began is continued with the same order, augmentation and splits."""
    assert mix_seed(*parts) == expected


def test_keyed_numbers_equal_a_loop() -> None:
    epochs, indices = [0, 0, 1, 7, 2**40], [0, 5, 0, 123456, 3]
    found = keyed_uniforms(4, 11, epochs, indices)
    for row, epoch, index in zip(found.tolist(), epochs, indices, strict=True):
        base = mixed_by_hand(mixed_by_hand(mix_seed(11), epoch), index)
        assert row == [(mixed_by_hand(base, place) >> 40) / 2**24 for place in range(4)]


def test_every_pair_of_epoch_and_index_has_numbers_of_its_own() -> None:
    epochs, indices = torch.meshgrid(torch.arange(20), torch.arange(20), indexing="ij")
    rows = keyed_uniforms(3, 0, epochs.flatten().tolist(), indices.flatten().tolist())
    assert len(rows.unique(dim=0)) == 400  # (2, 3) is not (3, 2), nor anything else whose sum is 5


def test_an_image_is_augmented_by_the_pair_and_not_by_a_sum() -> None:
    pixels = torch.randint(256, (1, 3, 16, 16), dtype=torch.uint8).expand(12, -1, -1, -1)  # one picture, twelve times
    preprocess = Preprocess((16, 16), crop_pct=1.0, mean=[0.5] * 3, std=[0.25] * 3)
    augment = Augmenter(Augmentation(scale=0.5), preprocess)
    dataset = TrainingSet(Arrays(pixels, (0,) * 12), augment, channels=3, seed=5)
    pairs = [(epoch, index) for epoch in range(12) for index in range(12)]
    images, _ = dataset.__getitems__(pairs)
    assert len(images.flatten(1).unique(dim=0)) == len(pairs)
