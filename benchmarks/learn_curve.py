"""Learning curves fitted on at most a quarter of the images against what was measured on all of them.

    python benchmarks/learn_curve.py DATA_DIR

Imagenette, CIFAR-10 and Flowers-102 (which is trained on its largest split, 6,149 images, and tested on the two
others): nested subsets of 1/32 (CIFAR-10: 1/128) to all of the training images, three seeds up to a quarter, one above.
Each size has the epochs that `vitlet train` takes for so many images, all of them times ``SHARE``; equal time would
train small subsets to their end and cut large ones short, and the curve would show that instead of the images. Model
and pixels are the smallest ones, to keep this cheap. Every finished run is a row of
``benchmarks/results/learn_curve.csv`` and is not run again; the fits are written to ``learn_curve.md``. DATA_DIR holds
cifar10, flowers102-split and imagenette.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from timing import append_row, processor, read_rows
from vitlet.analysis.learning_curve import CurveFit, CurvePoint
from vitlet.config import RunConfig
from vitlet.data.glance import Glance
from vitlet.data.images import Dataset, ImageSet, Joined
from vitlet.data.preprocess import Preprocess
from vitlet.data.sources import Request, load_dataset
from vitlet.data.splits import keep
from vitlet.data.store import Fit, Storing, keep_images
from vitlet.training.choice import completed
from vitlet.training.knowledge import knowledge
from vitlet.training.loop import train

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("dataset", "images", "parts", "seed", "epochs", "top1", "cpu_seconds", "processor")
SHARE = 0.1
"""Of the epochs of `vitlet train`, to keep it cheap."""

PARTS = {32: 3, 16: 3, 8: 3, 4: 3, 2: 1, 1: 1}
"""Seeds by the part of the training images: a 32nd, a 16th, ..., all."""

MORE_PARTS = {"cifar10": {128: 3, 64: 3}}
"""Of a dataset with many images, smaller parts as well: they are cheap."""

LOOKED = """The constants of the fit were chosen among five settings on synthetic curves of the kinds below. How points
are weighed, and the sigmoid among the families, were decided after a look at fits of the first seeds of Imagenette and
Flowers-102: without the sigmoid one interval of Flowers-102 (383 to 3,073, twice the images) did not cover. So neither
these rows nor the synthetic curves are an independent test. No fit of CIFAR-10 was looked at before. Windows of one
dataset share runs, and intervals are wide: covering is easier than being near."""

DATASETS = {"imagenette": 48, "flowers102-split": 48, "cifar10": 24}
"""Sides in pixels."""


def decoded(data_dir: Path, name: str) -> Dataset:
    """All images of a dataset in memory, at the sizes that training and test read them."""
    source = str(data_dir / name) if name == "flowers102-split" else name
    found = load_dataset(Request(source, data_dir=str(data_dir), val_fraction=0))
    train, test = found.train, found.test
    assert test is not None
    if found.val is not None:
        train, test = test, Joined((train, found.val))
    side = DATASETS[name]
    return Dataset(found.classes, _at(train, side * 3 // 2), None, _at(test, side), name)


def _at(images: ImageSet, side: int) -> ImageSet:
    fit = Fit(Preprocess((side, side), crop_pct=1.0, mean=[0.5] * 3, std=[0.5] * 3))
    return keep_images(images, fit, Storing(3)).images


def settings(name: str, images: int, seed: int) -> RunConfig:
    """Of one run: the recipe of `vitlet train`, a smaller network, fewer epochs."""
    rule = knowledge().rules[0].settings
    side = DATASETS[name]
    usual = completed(rule, RunConfig(), (), Glance(images, 10, side, 3))
    epochs, size = max(2, round(SHARE * usual["epochs"])), usual["batch_size"]
    recipe = {key: rule[key] for key in ("opt", "lr", "weight_decay", "clip_grad", "aug", "model_ema")}
    model = f"resnet_xs_for_{32 if side < 40 else 64}px"
    ways = {"amp": True, "channels_last": True, "workers": 0, "checkpoint_epochs": None, "checkpoint_minutes": None}
    return RunConfig(
        data=name, model=model, img_size=(side, side), epochs=epochs, batch_size=size, seed=seed, crop_pct=1.0,
        **recipe, **ways,
    )  # fmt: skip


def parts_of(name: str) -> dict[int, int]:
    """Seeds by the part of a dataset's training images, smallest part first."""
    return MORE_PARTS.get(name, {}) | PARTS


def measure(data_dir: Path, file: Path, names: list[str]) -> None:
    """Every run that has no row yet, small subsets first within a seed."""
    torch.set_num_threads(1)
    done = {(row["dataset"], int(row["parts"]), int(row["seed"])) for row in read_rows(file)}
    datasets: dict[str, Dataset] = {}
    for seed in range(3):
        for name in names:
            for part, seeds in parts_of(name).items():
                if seed >= seeds or (name, part, seed) in done:
                    continue
                if name not in datasets:
                    datasets[name] = decoded(data_dir, name)
                dataset = datasets[name]
                subset = replace(dataset, train=keep(dataset.train, fraction=1 / part, seed=seed))
                config, began = settings(name, len(subset.train), seed), time.process_time()
                with tempfile.TemporaryDirectory() as folder:
                    result = train(replace(config, output=f"{folder}/run"), subset)
                assert result.test is not None
                row = (name, len(subset.train), part, seed, config.epochs, round(result.test.top1, 3))
                values = (*row, round(time.process_time() - began, 1), processor())
                append_row(file, COLUMNS, dict(zip(COLUMNS, values, strict=True)))
                print(*row, flush=True)


def report(file: Path) -> str:
    """Measured accuracies, and for every four sizes in a row what they say of twice and four times the largest."""
    rows = read_rows(file)
    table = ["| dataset | images | runs | epochs | test top-1 %, mean |", "|---|---|---|---|---|"]
    fits = [
        "| dataset | fitted on | times | images | expected, 95 % interval | measured | off by | covered |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found: list[tuple[float, bool, int, int]] = []
    for name in DATASETS:
        runs = {
            part: [row for row in rows if row["dataset"] == name and int(row["parts"]) == part]
            for part in parts_of(name)
        }
        runs = {part: mine for part, mine in runs.items() if mine}
        sizes = {part: round(float(np.mean([int(row["images"]) for row in mine]))) for part, mine in runs.items()}
        means = {part: float(np.mean([float(row["top1"]) for row in mine])) for part, mine in runs.items()}
        for part, mine in runs.items():
            table.append(f"| {name} | {sizes[part]:,} | {len(mine)} | {mine[0]['epochs']} | {means[part]:.2f} |")
        for used in (list(runs)[first : first + 4] for first in range(len(runs) - 4)):
            points = [
                CurvePoint(sizes[part], int(row["seed"]), float(row["top1"])) for part in used for row in runs[part]
            ]
            fit = CurveFit(points)
            for factor in (2, 4):
                if (part := used[-1] // factor) in runs:
                    expected, off = fit.accuracy(min(sizes[part], 4 * sizes[used[-1]])), 0.0
                    off = expected.value - means[part]
                    covered = expected.low <= means[part] <= expected.high
                    found.append((abs(off), covered, factor, used[-1]))
                    span = f"{sizes[used[0]]:,} to {sizes[used[-1]]:,}"
                    shown = f"{expected.percent()} | {means[part]:.1f} | {off:+.1f} | {'yes' if covered else 'no'}"
                    fits.append(f"| {name} | {span} | {factor} | {sizes[part]:,} | {shown} |")
    lines = [*fits, "", *_summary(found), "", LOOKED, "", *table, "", _missing(rows)]
    return "\n".join(lines) + "\n"


def true_error(random: np.random.Generator) -> Callable[[float], float]:
    """A curve of the error: power law, the same with a floor, logarithm, sigmoid of the logarithm, or exponential."""
    error, kind, rate = random.uniform(0.05, 0.6), random.integers(5), random.uniform(0.1, 0.8)
    floor = random.uniform(0, 0.7) * error
    middle = ((error - floor) / (0.9 - error)) ** (1 / rate)
    curves: tuple[Callable[[float], float], ...] = (
        lambda n: error * n**-rate,
        lambda n: floor + (error - floor) * n**-rate,
        lambda n: error - 0.2 * error * np.log2(n),
        lambda n: floor + (0.9 - floor) / (1 + (n / middle) ** rate),
        lambda n: floor + (error - floor) * np.exp(-3 * rate * (n - 1)),
    )
    return lambda n: float(np.clip(curves[kind](n), 0.0, 0.98))


def synthetic(count: int = 200) -> str:
    """How often intervals cover, and how far their middles are off, on curves whose truth is known."""
    lines = [
        "| noise of a run, points | times | curves | covered | median error | median width |",
        "|---|---|---|---|---|---|",
    ]
    for noise in (0.5, 1.5):
        random, found = np.random.default_rng(0), {2: [], 4: []}
        for _ in range(count):
            error = true_error(random)
            sizes = {share: round(1000 * share) for share in (0.125, 0.25, 0.5, 1)}
            points = [
                CurvePoint(size, seed, 100 * (1 - error(share)) + noise * random.normal())
                for share, size in sizes.items()
                for seed in range(3)
            ]
            fit = CurveFit(points, draws=400)
            for factor, mine in found.items():
                expected, true = fit.accuracy(1000 * factor), 100 * (1 - error(factor)) + noise * random.normal()
                covered = expected.low <= true <= expected.high
                mine.append((covered, abs(expected.value - true), expected.high - expected.low))
        for factor, mine in found.items():
            share, off, width = np.mean([each[0] for each in mine]), *np.median(np.array(mine)[:, 1:], axis=0)
            lines.append(f"| {noise:g} | {factor} | {count} | {share:.1%} | {off:.1f} | {width:.1f} |")
    return "\n".join(lines) + "\n"


def _summary(found: list[tuple[float, bool, int, int]]) -> list[str]:
    """How often the interval covers, and how far the middle is off."""
    lines = []
    groups = {
        "four times the images": [each for each in found if each[2] == 4],
        "of these, from a quarter of a dataset to all of it": [each for each in found if each[2:] == (4, 4)],
        "twice the images": [each for each in found if each[2] == 2],
    }
    for what, mine in groups.items():
        if mine:
            off, covered = [each[0] for each in mine], sum(each[1] for each in mine)
            shown = (
                f"{covered} of {len(mine)} intervals cover what was measured, median error {np.median(off):.1f} points"
            )
            lines.append(f"- {what}: {shown}, largest {max(off):.1f}.")
    return lines


def _missing(rows: list[dict[str, str]]) -> str:
    done = {(row["dataset"], int(row["parts"]), int(row["seed"])) for row in rows}
    planned = {
        (name, part, seed) for name in DATASETS for part, seeds in parts_of(name).items() for seed in range(seeds)
    }
    left = sorted(f"{name} 1/{part} seed {seed}" for name, part, seed in planned - done)
    return f"Not run: {', '.join(left)}." if left else "Every planned run was run."


def main() -> None:
    """Run what is missing, then fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--fit-only", action="store_true", help="train nothing: fit the rows that are there")
    parser.add_argument("--output", type=Path, default=RESULTS / "learn_curve.csv")
    chosen = parser.parse_args()
    if not chosen.fit_only:
        measure(chosen.data_dir.resolve(), chosen.output, chosen.datasets)
    about = (__doc__ or "").replace("    python", "`python").replace("DATA_DIR\n", "DATA_DIR`\n", 1)
    place = f"{datetime.date.today()}; {processor()}, one thread; torch {torch.__version__}."
    text = f"{report(chosen.output)}\n## Synthetic curves, four sizes, three seeds\n\n{synthetic()}"
    chosen.output.with_suffix(".md").write_text(f"# {about}\n{place}\n\n{text}")
    print(text)


if __name__ == "__main__":
    main()
