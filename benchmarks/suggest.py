"""Images chosen by `vitlet suggest` against images chosen at random: CIFAR-10, three rounds of labelling.

    python benchmarks/suggest.py DATA_DIR

For every seed: 300 labelled images, 30 of each class, and a pool of 10,000 others. A run on what is labelled chooses
300 more (arm suggest), or they are drawn at random (arm random); a new run from scratch on all of them, and so on for
three rounds. Both arms begin with the same run. Settings are those of `vitlet train` for such images, with the smallest
network and few epochs, equal for both arms. Every finished run is a row of ``benchmarks/results/suggest.csv`` and is
not run again. DATA_DIR holds cifar10.
"""

from __future__ import annotations

import argparse
import datetime
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from learn_curve import decoded
from timing import append_row, interval, processor, read_rows
from vitlet.analysis.suggest import diverse_batch
from vitlet.config import RunConfig
from vitlet.data.images import Dataset, Subset
from vitlet.data.splits import keep
from vitlet.inference.predict import Predictor
from vitlet.training.knowledge import knowledge
from vitlet.training.loop import train

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("seed", "arm", "images", "top1", "epochs", "cpu_seconds", "processor")
START, STEP, ROUNDS, POOL, SIDE = 300, 300, 3, 10_000, 24
EPOCHS = {300: 40, 600: 26, 900: 22, 1200: 20}
ARMS = ("random", "suggest")


def settings(images: int, seed: int) -> RunConfig:
    """Of one run."""
    rule = knowledge().rules[0].settings
    recipe = {key: rule[key] for key in ("opt", "lr", "weight_decay", "clip_grad", "aug", "model_ema")}
    ways = {"amp": True, "channels_last": True, "workers": 0, "checkpoint_epochs": None, "checkpoint_minutes": None}
    size, side = min(64, images // 8 // 8 * 8), (SIDE, SIDE)
    model = {"model": "resnet_xs_for_32px", "img_size": side, "crop_pct": 1.0}
    return RunConfig(data="cifar10", epochs=EPOCHS[images], batch_size=size, seed=seed, **model, **recipe, **ways)


def next_images(arm: str, run: Path, dataset: Dataset, pool: list[int], seed: int) -> list[int]:
    """The images that an arm labels next."""
    if arm == "random":
        return [int(each) for each in np.random.default_rng(seed).choice(pool, STEP, replace=False)]
    probabilities, features = Predictor.load(run).describe(Subset(dataset.train, tuple(pool)))
    chosen, _ = diverse_batch(probabilities.numpy(), features.numpy(), STEP, seed)
    return [pool[place] for place in chosen]


def rounds(dataset: Dataset, arm: str, seed: int, file: Path, work: Path) -> None:
    """All rounds of an arm; runs that have a row are not trained again."""
    done = {(row["seed"], row["arm"], row["images"]): row for row in read_rows(file)}
    first = keep(dataset.train, per_class=START // 10, seed=seed)
    assert isinstance(first, Subset)
    labelled = list(first.indices)
    everything = np.random.default_rng(1000 + seed).permutation(len(dataset.train)).tolist()
    pool = [index for index in everything if index not in set(labelled)][:POOL]
    for number in range(ROUNDS + 1):
        who = "both" if number == 0 else arm
        run = work / f"{seed}-{who}-{number}"
        row = done.get((str(seed), who, str(len(labelled))))
        if row is None or not (run / "result.json").is_file():
            began, config = time.process_time(), settings(len(labelled), seed)
            subset = replace(dataset, train=Subset(dataset.train, tuple(sorted(labelled))))
            result = train(replace(config, output=str(run), overwrite=True), subset)
            assert result.test is not None
            seconds = round(time.process_time() - began, 1)
            if row is None:
                found = (seed, who, len(labelled), round(result.test.top1, 3), config.epochs, seconds, processor())
                append_row(file, COLUMNS, dict(zip(COLUMNS, found, strict=True)))
                print(*found, flush=True)
        if number < ROUNDS:
            labelled += next_images(arm, run, dataset, pool, 10 * seed + number)
            pool = [index for index in pool if index not in set(labelled)]


def report(file: Path) -> str:
    """Accuracy by arm and round, and paired differences."""
    rows = read_rows(file)
    lines = ["| labelled images | seeds | random | suggest | difference | ahead |", "|---|---|---|---|---|---|"]
    for images in sorted({int(row["images"]) for row in rows}):
        mine = [row for row in rows if int(row["images"]) == images]
        found = {arm: {row["seed"]: float(row["top1"]) for row in mine if row["arm"] in (arm, "both")} for arm in ARMS}
        both = [seed for seed in found["random"] if seed in found["suggest"]]
        if both:
            means = [f"{np.mean([found[arm][seed] for seed in both]):.2f}" for arm in ARMS]
            pairs = [found["suggest"][seed] - found["random"][seed] for seed in both]
            shown = f"{pairs[0]:+.2f}"
            if len(pairs) > 1:
                mean, half = interval(pairs)
                shown = f"{mean:+.2f} ± {half:.2f}"
            ahead = "the same run" if images == START else f"{sum(each > 0 for each in pairs)} of {len(pairs)}"
            lines.append(f"| {images:,} | {len(both)} | {' | '.join(means)} | {shown} | {ahead} |")
    runs = f"{len(rows)} of {3 * (1 + len(ARMS) * ROUNDS)} planned runs were run."
    return "\n".join([*lines, "", runs]) + "\n"


def run_all(chosen: argparse.Namespace) -> None:
    """Every run that has no row yet."""
    torch.set_num_threads(1)
    dataset = decoded(chosen.data_dir.resolve(), "cifar10")
    for seed in range(chosen.seeds):
        for arm in ARMS:
            rounds(dataset, arm, seed, chosen.output, chosen.work)


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--table-only", action="store_true", help="train nothing: write the table of the rows there are"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/suggest"))
    parser.add_argument("--output", type=Path, default=RESULTS / "suggest.csv")
    chosen = parser.parse_args()
    if not chosen.table_only:
        run_all(chosen)
    about = (__doc__ or "").replace("    python", "`python").replace("DATA_DIR\n", "DATA_DIR`\n", 1)
    place = f"{datetime.date.today()}; {processor()}, one thread; torch {torch.__version__}."
    text = f"# {about}\n{place} Test accuracy in percent, 10,000 images.\n\n{report(chosen.output)}"
    chosen.output.with_suffix(".md").write_text(text)
    print(report(chosen.output))


if __name__ == "__main__":
    main()
