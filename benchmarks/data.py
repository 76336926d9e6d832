"""How fast images reach the network, beside timm's Pillow loader; the command behind part of ``make bench``.

timm: Pillow decodes every file and augments it alone. vitlet: images are kept decoded, in memory at 32 px, in the
memory-mapped cache at 224 px. Both: random resized crop (8 to 100 % of the area, bicubic), flip, normalise. CPU time,
interleaved medians, on crops of the two photographs that scikit-learn ships.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from timm.data import create_transform

import vitlet
from timing import Report, cpu_ms
from vitlet.data.augment import Augmentation, Augmenter
from vitlet.data.images import Files
from vitlet.data.loading import TrainingSet
from vitlet.data.preprocess import Preprocess
from vitlet.data.randaugment import RandAugment
from vitlet.data.store import Fit, Shrink, Storing, keep_images

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = 128
ROUNDS = 9


def write_photographs(folder: Path, side: int, count: int, suffix: str) -> Files:
    """Crops of scikit-learn's two photographs."""
    generator = np.random.default_rng(0)
    paths = []
    for number in range(count):
        photograph = load_sample_images().images[number % 2]
        top, left = generator.integers(0, 427 - 360), generator.integers(0, 640 - 480)
        image = Image.fromarray(photograph[top : top + 360, left : left + 480])
        size = (side, side) if side <= 64 else (side * 4 // 3, side)
        paths.append(folder / f"{number}{suffix}")
        image.resize(size, Image.Resampling.LANCZOS).save(paths[-1])
    return Files(tuple(paths), (0,) * count)


def compare(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median CPU milliseconds of both, interleaved."""
    ours()
    theirs()
    pairs = [(cpu_ms(ours), cpu_ms(theirs)) for _ in range(ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def timm_way(files: Files, size: int, rand: bool) -> Callable[[], object]:
    """Pillow decodes each file; timm crops, flips, normalises."""
    transform = create_transform(
        size,
        is_training=True,
        auto_augment="rand-m9-mstd0-inc1" if rand else None,  # with a spread it asks Pillow 13 for 0 bits, and crashes
        color_jitter=0.0,
        interpolation="bicubic",
        mean=MEAN,
        std=STD,
    )

    def work() -> torch.Tensor:
        return torch.stack([transform(Image.open(path).convert("RGB")) for path in files.paths])

    return work


def our_way(files: Files, size: int, rand: bool, cache: Path | None) -> Callable[[], object]:
    """Images kept decoded, augmented as the training loop does."""
    preprocess = Preprocess((size, size), crop_pct=1.0, mean=MEAN, std=STD)
    transform = Shrink(size * 8 // 7) if size > 64 else Fit(preprocess)
    limit = 0 if cache else 2**30
    kept = keep_images(files, transform, Storing(3, cache, limit))
    recipe = Augmentation(crop="resized", scale=0.08, rand=RandAugment(spread=0.0) if rand else None)
    dataset = TrainingSet(kept.images, Augmenter(recipe, preprocess), channels=3, seed=0)
    epochs = iter(range(10**6))

    def work() -> object:
        epoch = next(epochs)
        return dataset.__getitems__([(epoch, index) for index in range(len(files))])

    return work


def training_step(batch: int) -> Callable[[], object]:
    """A step of a ViT 128 wide and 6 deep on 32 px images, the smallest of our studies."""
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=128, depth=6, num_heads=4, num_classes=10
    )
    objective = vitlet.Objective(vitlet.TimmBackbone(model))
    optimizer = torch.optim.AdamW(objective.parameters(), fused=True)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def work() -> None:
        optimizer.zero_grad()
        objective(images, labels).loss.backward()
        optimizer.step()

    return work


def main() -> int:
    """Measure, print the table, and exit with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write the table here")
    output: Path | None = parser.parse_args().output
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, missed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        small = write_photographs(Path(folder), 32, BATCH, ".png")
        large = write_photographs(Path(folder), 300, 48, ".jpg")
        cases = [
            ("32 px: crop, flip, normalise", small, 32, False, None, 4.0),
            ("32 px: the same and RandAugment", small, 32, True, None, 2.0),
            ("224 px, from the cache: crop, flip, normalise", large, 224, False, Path(folder) / "cache", 1.3),
            ("224 px, from the cache: the same and RandAugment", large, 224, True, Path(folder) / "cache", None),
        ]
        for name, files, size, rand, cache, bar in cases:
            ours, theirs = compare(our_way(files, size, rand, cache), timm_way(files, size, rand))
            ratio = theirs / ours
            passed = bar is None or ratio >= bar
            missed += not passed
            micro = 1e3 / len(files)
            verdict = "no bar" if bar is None else f"at least {bar}: {'pass' if passed else 'MISSED'}"
            rows.append(f"| {name} | {theirs * micro:.0f} | {ours * micro:.0f} | {ratio:.2f} | {verdict} |")
        data, step = compare(our_way(small, 32, False, None), training_step(BATCH))
        share = 100 * data / step
        missed += share > 5
        verdict = f"at most 5 %: {'pass' if share <= 5 else 'MISSED'}"
        rows.append(f"| share of data in a step of a ViT 128 x 6, 32 px | | | {share:.2f} % | {verdict} |")
    report = Report("How fast images reach the network", __doc__, output)
    header = ["| what | timm, us an image | vitlet, us an image | timm / vitlet | bar |", "|---|---|---|---|---|"]
    report.add(["", *header, *rows])
    report.close()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
