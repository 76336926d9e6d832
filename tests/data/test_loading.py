"""Folders, splits, decoding and augmentation, on real image files."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms.v2 import functional as V

from builders.digits import write_digits
from vitlet.data.augment import Augmentation, Augmenter, shifted
from vitlet.data.images import Arrays, Dataset, ImageSet
from vitlet.data.loading import (
    EpochOrder,
    EvaluationSet,
    TrainingSet,
    evaluation_loader,
    loader_options,
    training_loader,
)
from vitlet.data.preprocess import Preprocess
from vitlet.data.randaugment import RandAugment
from vitlet.data.randomness import keyed_uniforms, mix_seed
from vitlet.data.sources import Request, load_dataset
from vitlet.data.splits import hold_out
from vitlet.data.store import Fit, Lazy


def load(data: Path | str, **request: object) -> Dataset:
    return load_dataset(Request(str(data), **request))  # type: ignore[arg-type]


def names(images: ImageSet | None) -> set[str]:
    assert images is not None
    return {images.name(index) for index in range(len(images))}


def preprocess(size: tuple[int, int] = (8, 12), crop_pct: float = 1.0, channels: int = 3) -> Preprocess:
    return Preprocess(size, crop_pct=crop_pct, mean=[0.5] * channels, std=[0.25] * channels)


def test_a_folder_without_splits_gets_a_stratified_one(folder: Path) -> None:
    dataset = load(folder, val_fraction=0.25, seed=3)
    assert dataset.classes == ("digit 0", "digit 1", "digit 2")
    assert dataset.val is not None
    assert dataset.test is None
    assert [list(dataset.val.labels).count(label) for label in range(3)] == [2, 2, 2]
    assert not names(dataset.train) & names(dataset.val)
    assert len(names(dataset.train) | names(dataset.val)) == 24
    assert names(load(folder, val_fraction=0.25, seed=3).val) == names(dataset.val)
    assert names(load(folder, val_fraction=0.25, seed=4).val) != names(dataset.val)


def test_given_splits_are_kept(shared_folder: Path) -> None:
    dataset = load(shared_folder)
    assert {name: len(images) for name, images in dataset.splits().items()} == {"train": 24, "val": 12, "test": 12}


def test_train_and_test_without_val_hold_some_out(tmp_path: Path) -> None:
    write_digits(tmp_path / "train")
    write_digits(tmp_path / "test", per_class=2, skip=20)
    dataset = load(tmp_path, val_fraction=0.25)
    assert {name: len(images) for name, images in dataset.splits().items()} == {"train": 18, "val": 6, "test": 6}


def test_a_class_of_one_image_stays_in_training() -> None:
    images = Arrays(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), (0, 0, 0, 0, 1))
    train, held = hold_out(images, 0.25, 0)
    assert sorted(train.labels) == [0, 0, 0, 1]
    assert held.labels == [0]


def test_digits_keep_their_test_images() -> None:
    first, second = load("digits", seed=0), load("digits", seed=1)
    assert names(first.test) == names(second.test)
    assert names(first.val) != names(second.val)
    assert sum(len(images) for images in first.splits().values()) == 1797
    scan = first.train.image(0, 3)
    assert scan.shape == (3, 8, 8)
    assert scan.dtype == torch.uint8


def test_preprocess_covers_the_centre() -> None:
    image = torch.zeros(3, 20, 60, dtype=torch.uint8)
    image[:, :, 20:40] = 255
    out = preprocess((10, 10))(image)  # scaled to 10 x 30, the middle 10 x 10 is the white third
    assert out.shape == (3, 10, 10)
    assert out[:, :, 2:-2].min() == pytest.approx(2.0)
    smaller = preprocess((10, 10), crop_pct=0.5)(image)
    assert smaller.shape == (3, 10, 10)


def keys(augment: Augmenter, count: int, seed: int = 0) -> torch.Tensor:
    return keyed_uniforms(augment.keys, seed, [0] * count, range(count))


def test_a_thread_of_pixels_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    resize = V.resize

    def listen(image: torch.Tensor, size: list[int], **options: Any) -> torch.Tensor:
        sizes.append(size)
        return resize(image, size, **options) if max(size) < 1000 else torch.zeros(1, 24, 16)

    monkeypatch.setattr(V, "resize", listen)
    small = preprocess((24, 16), channels=1)
    row = torch.arange(1_000_001) // 3907  # a long and slow ramp
    for thread in (row[None, None].byte(), row[None, :, None].byte()):
        assert small.pixels(thread).shape == (1, 24, 16)
        assert (small.pixels(thread).float() - 128).abs().max() <= 1
    assert max(max(size) for size in sizes) <= 32 * 24  # not 24 million columns


@pytest.mark.parametrize("crop", ["resized", "padded", "none"])
def test_augmentation_without_crop_or_flip_is_the_image(crop: str) -> None:
    images = torch.randint(256, (4, 3, 8, 12), dtype=torch.uint8)
    plain = Augmentation(crop=crop, scale=1.0, padding=0, hflip=0.0)  # type: ignore[arg-type]
    augment = Augmenter(plain, preprocess())
    expected = torch.stack([preprocess().normalize(image) for image in images])
    still = keys(augment, 4)
    still[:, 1] = 0.5  # the middle of the aspects: as it is
    assert torch.allclose(augment(images, still), expected, atol=1e-4)
    assert torch.allclose(augment(list(images), still), expected, atol=1e-4)
    flipping = Augmenter(replace(plain, hflip=1.0), preprocess())
    assert torch.allclose(flipping(images, still), expected.flip(-1), atol=1e-4)
    assert torch.allclose(flipping(list(images), still), expected.flip(-1), atol=1e-4)


def test_batched_and_single_crops_agree_on_the_box() -> None:
    """On a smooth picture both ways give the same crop, up to rounding to whole pixels."""
    rows, columns = torch.meshgrid(torch.linspace(0, 255, 128), torch.linspace(0, 255, 192), indexing="ij")
    image = torch.stack([rows, columns, (rows + columns) / 2]).to(torch.uint8)
    augment = Augmenter(Augmentation(scale=0.3), preprocess((48, 64)))
    chosen = keys(augment, 6)
    batched, single = augment(image.expand(6, -1, -1, -1), chosen), augment([image] * 6, chosen)
    assert (batched - single).abs().max() < 0.1  # values span 4


def test_shifts_equal_a_loop() -> None:
    images = torch.randint(256, (5, 2, 6, 7), dtype=torch.uint8)
    moves, flips = torch.rand(5, 2), torch.tensor([True, False, True, False, True])
    out = shifted(images, 2, moves, flips)
    for index in range(5):
        canvas = torch.zeros(2, 10, 11, dtype=torch.uint8)
        canvas[:, 2:8, 2:9] = images[index]
        top, left = int(moves[index, 0] * 5), int(moves[index, 1] * 5)
        expected = canvas[:, top : top + 6, left : left + 7]
        assert torch.equal(out[index], expected.flip(-1) if flips[index] else expected)


def test_crops_stay_inside_and_vary() -> None:
    augment = Augmenter(Augmentation(scale=0.3), preprocess())
    boxes = augment.boxes(torch.rand(2000, 4))
    assert boxes[:, :2].min() >= 0
    assert (boxes[:, :2] + boxes[:, 2:]).max() <= 1 + 1e-6
    area = boxes[:, 2] * boxes[:, 3]
    assert area.min() > 0.25
    assert area.std() > 0.1


def test_erasing_is_rare_noise_of_the_right_size() -> None:
    augment = Augmenter(Augmentation(crop="none", hflip=0.0, reprob=0.25), preprocess((32, 32)))
    batch = augment(torch.zeros(400, 3, 32, 32, dtype=torch.uint8), keys(augment, 400))
    changed = (batch != batch[0, 0, 0, 0]).any(1).flatten(1).float().mean(1)
    erased = changed[changed > 0]
    assert 0.18 < len(erased) / 400 < 0.32
    assert erased.min() > 0.015
    assert erased.max() < 0.36
    assert 0.8 < batch[batch != batch[0, 0, 0, 0]].std() < 1.2


FULL = Augmentation(crop="resized", scale=0.5, rand=RandAugment(), color_jitter=0.4, reprob=0.5)


@pytest.mark.parametrize("recipe", [Augmentation(scale=0.5), Augmentation(crop="padded", padding=1), FULL])
@pytest.mark.parametrize("one_size", [True, False])
def test_batches_depend_on_seed_epoch_and_index_only(one_size: bool, recipe: Augmentation) -> None:
    pixels = torch.randint(256, (10, 3, 8, 12), dtype=torch.uint8)
    images = Lazy(Arrays(pixels, tuple(range(10))), one_size)
    dataset = TrainingSet(images, Augmenter(recipe, preprocess()), channels=3, seed=5)

    def epoch(workers: int) -> dict[int, torch.Tensor]:
        order = EpochOrder(range(10), batch_size=3, seed=5)
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
    assert ((other_epoch - in_another_batch).abs().amax((1, 2, 3)) > 0.01).float().mean() > 0.6


def test_order_is_a_permutation_that_changes_with_the_epoch() -> None:
    order = EpochOrder([0] * 7, batch_size=2, seed=0)
    epochs = []
    for order.epoch in (0, 1, 0):
        epochs.append([index for batch in order for _, index in batch])
    assert epochs[0] == epochs[2] != epochs[1]
    assert len(set(epochs[0])) == len(order) * 2 == 6


def test_balanced_order_draws_classes_alike() -> None:
    labels = [0] * 900 + [1] * 90 + [2] * 10
    drawn = [labels[index] for index in EpochOrder(labels, batch_size=10, seed=0, balanced=True).order()]
    assert all(0.27 < drawn.count(label) / 1000 < 0.4 for label in range(3))


def test_seeds_are_well_spread() -> None:
    seeds = {mix_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert mix_seed(1, 2) != mix_seed(2, 1)
    uniforms = keyed_uniforms(2, 0, [0] * 4000, range(4000))
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    assert (uniforms.mean(0) - 0.5).abs().max() < 0.02
    assert torch.corrcoef(uniforms.T)[0, 1].abs() < 0.05
    row = keyed_uniforms(2, 0, [0], [17])[0]
    assert torch.equal(row, uniforms[17])  # a row does not depend on its neighbours


def test_evaluation_reads_every_image_once(folder: Path) -> None:
    dataset = load(folder)
    fitted = Lazy(dataset.train, True, Fit(preprocess(channels=1)))
    loader = evaluation_loader(
        EvaluationSet(fitted, preprocess(channels=1), channels=1), batch_size=5, workers=0, device="cpu"
    )
    batches = list(loader)
    assert sum(len(labels) for _, labels in batches) == len(dataset.train)
    assert torch.equal(batches[0][0][0], preprocess(channels=1)(dataset.train.image(0, 1)))


def test_a_loading_process_whose_parent_is_gone_before_it_begins_ends() -> None:
    code = (
        "import multiprocessing, os, sys, time; from vitlet.data.loading import begin_worker\n"
        "def load():\n    time.sleep(0.5); begin_worker(0); time.sleep(600)\n"
        "worker = multiprocessing.get_context('fork').Process(target=load); worker.start()\n"
        "print(worker.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=200)
    # The worker holds the pipe as long as it lives, so we come here once it has ended.
    assert done.stdout.strip().isdecimal()


def test_loading_processes_leave_the_end_to_the_one_that_they_load_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    options = loader_options(2, "cpu")
    options["worker_init_fn"](0)
    for problem in (ConnectionResetError("gone"), EOFError(), ValueError("a fault")):
        sys.excepthook(type(problem), problem, None)
    assert capsys.readouterr().err == "ValueError: a fault\n"
    assert "worker_init_fn" not in loader_options(0, "cpu")
