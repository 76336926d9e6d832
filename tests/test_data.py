"""Folders, splits, decoding and augmentation, on real image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import write_digits
from vitlet.data.loading import (
    Augment,
    EpochOrder,
    EvaluationSet,
    Preprocess,
    TrainingSet,
    keyed_uniforms,
    mix_seed,
    training_loader,
)
from vitlet.data.sources import Arrays, Files, hold_out, in_memory, load_dataset, read_image
from vitlet.errors import VitletError


def preprocess(size: tuple[int, int] = (8, 12), crop_pct: float = 1.0, channels: int = 3) -> Preprocess:
    return Preprocess(size, crop_pct=crop_pct, mean=[0.5] * channels, std=[0.25] * channels)


def test_a_folder_without_splits_gets_a_stratified_one(folder: Path) -> None:
    dataset = load_dataset(str(folder), val_fraction=0.25, seed=3)
    assert dataset.classes == ("digit 0", "digit 1", "digit 2")
    assert dataset.val is not None
    assert dataset.test is None
    assert [list(dataset.val.labels).count(label) for label in range(3)] == [2, 2, 2]
    names = [{part.name(index) for index in range(len(part))} for part in (dataset.train, dataset.val)]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 24
    again = load_dataset(str(folder), val_fraction=0.25, seed=3)
    other = load_dataset(str(folder), val_fraction=0.25, seed=4)
    assert [again.val.name(i) for i in range(6)] == [dataset.val.name(i) for i in range(6)]  # type: ignore[union-attr]
    assert [other.val.name(i) for i in range(6)] != [dataset.val.name(i) for i in range(6)]  # type: ignore[union-attr]


def test_given_splits_are_kept(shared_folder: Path) -> None:
    dataset = load_dataset(str(shared_folder), val_fraction=0.1, seed=0)
    assert dataset.val is not None
    assert dataset.test is not None
    assert [len(part) for part in (dataset.train, dataset.val, dataset.test)] == [24, 12, 12]


def test_train_and_test_without_val_hold_some_out(tmp_path: Path) -> None:
    write_digits(tmp_path / "train")
    write_digits(tmp_path / "test", per_class=2, skip=20)
    dataset = load_dataset(str(tmp_path), val_fraction=0.25, seed=0)
    assert dataset.val is not None
    assert dataset.test is not None
    assert [len(part) for part in (dataset.train, dataset.val, dataset.test)] == [18, 6, 6]


def test_a_class_of_one_image_stays_in_training() -> None:
    images = Arrays(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), (0, 0, 0, 0, 1))
    train, held = hold_out(images, 0.25, 0)
    assert sorted(train.labels) == [0, 0, 0, 1]
    assert held.labels == [0]


def test_digits_keep_their_test_images() -> None:
    first, second = (load_dataset("digits", val_fraction=0.1, seed=seed) for seed in (0, 1))
    assert first.test is not None
    assert second.test is not None
    assert [first.test.name(i) for i in range(20)] == [second.test.name(i) for i in range(20)]
    assert len(first.train) + len(first.val or ()) + len(first.test) == 1797  # type: ignore[arg-type]
    scan = first.train.image(0, 3)
    assert scan.shape == (3, 8, 8)
    assert scan.dtype == torch.uint8


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    image = read_image(tmp_path / "turned.png", 3)
    assert image.shape == (3, 8, 4)
    assert image[:, :4].min() == 255
    assert image[:, 4:].max() == 0


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\nbroken"])
def test_unreadable_files_are_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.png"
    file.write_bytes(content)
    with pytest.raises(VitletError, match=r"cannot read the image .*bad\.png"):
        read_image(file, 3)


def test_a_truncated_file_is_named(folder: Path) -> None:
    file = next((folder / "digit 1").glob("*.png"))
    file.write_bytes(file.read_bytes()[:-30])
    dataset = load_dataset(str(folder), val_fraction=0.2, seed=0)
    with pytest.raises(VitletError, match=file.name):
        for part in (dataset.train, dataset.val):
            assert part is not None
            in_memory(part, 3)


def test_small_images_are_kept_decoded(folder: Path, tmp_path: Path) -> None:
    dataset = load_dataset(str(folder), val_fraction=0.2, seed=0)
    kept = in_memory(dataset.train, 3)
    assert isinstance(kept, Arrays)
    for index in (0, len(kept) - 1):
        assert torch.equal(kept.image(index, 3), dataset.train.image(index, 3))
    assert in_memory(dataset.train, 3, limit=1000) is dataset.train
    Image.new("RGB", (5, 7)).save(tmp_path / "other.png")
    mixed = Files((next((folder / "digit 0").iterdir()), tmp_path / "other.png"), (0, 0))
    assert in_memory(mixed, 3) is mixed


def test_preprocess_covers_the_centre() -> None:
    image = torch.zeros(3, 20, 60, dtype=torch.uint8)
    image[:, :, 20:40] = 255
    out = preprocess((10, 10))(image)  # scaled to 10 x 30, the middle 10 x 10 is the white third
    assert out.shape == (3, 10, 10)
    assert out[:, :, 2:-2].min() == pytest.approx(2.0)
    smaller = preprocess((10, 10), crop_pct=0.5)(image)
    assert smaller.shape == (3, 10, 10)


def test_augmentation_without_crop_or_flip_is_the_image() -> None:
    images = torch.randint(256, (4, 3, 8, 12), dtype=torch.uint8)
    augment = Augment(preprocess(), hflip=0.0, scale=1.0)
    keys = torch.rand(4, Augment.KEYS)
    expected = torch.stack([preprocess().normalize(image) for image in images])
    assert torch.allclose(augment.batch(images, keys), expected, atol=1e-4)
    assert torch.allclose(torch.stack([augment.single(i, k) for i, k in zip(images, keys, strict=True)]), expected)
    flipping = Augment(preprocess(), hflip=1.0, scale=1.0)
    assert torch.allclose(flipping.batch(images, keys), expected.flip(-1), atol=1e-4)
    assert torch.allclose(flipping.single(images[0], keys[0]), expected[0].flip(-1))


def test_batched_and_single_crops_agree_on_the_box() -> None:
    """On a smooth picture both ways give the same crop, up to rounding to whole pixels."""
    rows, columns = torch.meshgrid(torch.linspace(0, 255, 128), torch.linspace(0, 255, 192), indexing="ij")
    image = torch.stack([rows, columns, (rows + columns) / 2]).to(torch.uint8)
    augment = Augment(preprocess((64, 96)), hflip=0.5, scale=0.3)
    for seed in range(5):
        keys = keyed_uniforms(Augment.KEYS, seed)
        batched, single = augment.batch(image[None], keys[None])[0], augment.single(image, keys)
        assert (batched - single).abs().max() < 0.1  # values span 4


def test_crops_stay_inside_and_vary() -> None:
    augment = Augment(preprocess(), hflip=0.5, scale=0.3)
    keys = torch.rand(2000, Augment.KEYS)
    boxes, flips = augment.boxes(keys)
    assert boxes[:, :2].min() >= 0
    assert (boxes[:, :2] + boxes[:, 2:]).max() <= 1 + 1e-6
    area = boxes[:, 2] * boxes[:, 3]
    assert area.min() > 0.25
    assert area.std() > 0.1
    assert 0.4 < flips.float().mean() < 0.6


@pytest.mark.parametrize("one_size", [True, False])
def test_batches_depend_on_seed_epoch_and_index_only(one_size: bool) -> None:
    pixels = torch.randint(256, (10, 3, 9, 9), dtype=torch.uint8)
    images = Arrays(pixels, tuple(range(10)), one_size=one_size)
    dataset = TrainingSet(images, Augment(preprocess(), hflip=0.5, scale=0.5), channels=3, seed=5)

    def epoch(workers: int) -> dict[int, torch.Tensor]:
        order = EpochOrder(10, batch_size=3, seed=5)
        order.epoch = 2
        loader = training_loader(dataset, order, workers=workers, device="cpu")
        return {int(label): image for batch, labels in loader for image, label in zip(batch, labels, strict=True)}

    torch.manual_seed(1)
    alone = epoch(0)
    torch.manual_seed(2)  # the global state does not matter
    with_workers = epoch(2)
    assert alone.keys() == with_workers.keys()
    assert len(alone) == 9  # the last, smaller batch is left out
    assert all(torch.equal(alone[label], with_workers[label]) for label in alone)
    in_another_batch, _ = dataset.__getitems__([(2, label) for label in sorted(alone)])
    for position, label in enumerate(sorted(alone)):
        assert torch.allclose(in_another_batch[position], alone[label], atol=1e-5)
    other_epoch, _ = dataset.__getitems__([(3, label) for label in sorted(alone)])
    assert (other_epoch - in_another_batch).abs().amax((1, 2, 3)).min() > 0.01


def test_order_is_a_permutation_that_changes_with_the_epoch() -> None:
    order = EpochOrder(7, batch_size=2, seed=0)
    epochs = []
    for order.epoch in (0, 1, 0):
        epochs.append([index for batch in order for _, index in batch])
    assert epochs[0] == epochs[2] != epochs[1]
    assert len(set(epochs[0])) == len(order) * 2 == 6


def test_seeds_are_well_spread() -> None:
    seeds = {mix_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert mix_seed(1, 2) != mix_seed(2, 1)
    uniforms = torch.stack([keyed_uniforms(2, 0, 0, index) for index in range(4000)])
    assert (uniforms.mean(0) - 0.5).abs().max() < 0.02
    assert torch.corrcoef(uniforms.T)[0, 1].abs() < 0.05


def test_evaluation_reads_every_image_once(folder: Path) -> None:
    dataset = load_dataset(str(folder), val_fraction=0.2, seed=0)
    images = EvaluationSet(dataset.train, preprocess(channels=1), channels=1)
    assert len(images) == len(dataset.train)
    assert images[0][0].shape == (1, 8, 12)
