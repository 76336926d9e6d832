"""Semantic segmentation of CamVid from three starts: random weights, and a backbone trained with and without DRLoc.

    python benchmarks/transfer.py CAMVID IMAGENETTE [--work FOLDER] [--output benchmarks/results/transfer.md]

CAMVID holds {train,val,test}/{images,masks} (367, 101 and 233 images of 240 x 180, 11 classes, 11 does not count),
IMAGENETTE {train,val}/CLASS. For each of three seeds a small Swin (32 wide, three stages of two blocks) is trained on
Imagenette's classes at 64 px, without and with DRLoc, and a UPerNet of 64 channels on CamVid from random weights and
from each of the two. The weights that are best on the validation images are tested once. The command can be stopped at
any moment and given again: every run is continued where it was, a finished one is not run again, and the table is
written after each.
"""

from __future__ import annotations

import argparse
import json
import statistics
from datetime import date
from pathlib import Path

import torch

from timing import interval, processor, run

MODEL = "swin_tiny_patch4_window7_224"
SIZES = ["--model-kwargs", "embed_dim=32", "depths=2,2,2", "num_heads=2,4,8", "window_size=4"]
CLASSIFY = [
    *("--model", MODEL, *SIZES, "--img-size", "64", "--epochs", "8", "-b", "64", "--lr", "1e-3"),
    *("--warmup-epochs", "1", "--checkpoint-minutes", "5"),
]
SEGMENT = [
    *("--ignore-index", "11", "--img-size", "128x192", "--short-side", "160", "--decoder-channels", "64"),
    *("--epochs", "12", "-b", "8", "--lr", "5e-4", "--warmup-epochs", "1", "--rescale-min", "0.75"),
    *("--rescale-max", "1.5", "--clip-grad", "5", "--checkpoint-minutes", "5"),
]
ARMS = {"random": None, "Imagenette": (), "Imagenette with DRLoc": ("--task", "drloc=0.5")}


def one(arm: str, seed: int, chosen: argparse.Namespace) -> None:
    """One cell of the study: the backbone if it needs one, then the segmenter."""
    name, flags = arm.lower().replace(" ", "-"), ARMS[arm]
    backbone = chosen.work / f"{name}-{seed}-backbone"
    if flags is not None:
        run(["train", str(chosen.imagenette), *CLASSIFY, *(flags or ("--task", "none")), "--seed", str(seed)], backbone)
    start = [MODEL, *SIZES] if flags is None else [str(backbone)]
    words = ["segment", "train", str(chosen.camvid), "--backbone", *start, *SEGMENT, "--seed", str(seed)]
    run(words, chosen.work / f"{name}-{seed}")


def result(arm: str, seed: int, work: Path) -> dict[str, float] | None:
    """The test numbers of a cell that is done."""
    file = work / f"{arm.lower().replace(' ', '-')}-{seed}" / "result.json"
    found: dict[str, float] | None = json.loads(file.read_text())["test"] if file.is_file() else None
    return found


def write(chosen: argparse.Namespace) -> None:
    """The table of what is done."""
    lines = [
        "# CamVid from three starts",
        "",
        f"`python benchmarks/transfer.py CAMVID IMAGENETTE`, {date.today()}; {processor()}, one thread; torch"
        f" {torch.__version__}.",
        "",
        *(__doc__ or "").strip().splitlines()[4:],
        "",
        f"Backbone: `vitlet train IMAGENETTE {' '.join(CLASSIFY)}`, `--task none` or, with DRLoc, `--task drloc=0.5`.",
        "",
        f"Segmenter: `vitlet segment train CAMVID --backbone RUN {' '.join(SEGMENT)}`.",
        "",
        "| start | mIoU % by seed | mean, 95 % interval | mAcc % | pixel accuracy % |",
        "|---|---|---|---|---|",
    ]
    for arm in ARMS:
        cells = [found for seed in range(chosen.seeds) if (found := result(arm, seed, chosen.work))]
        miou = [cell["mIoU"] for cell in cells]
        mean = "{:.2f} ± {:.2f}".format(*interval(miou)) if len(miou) > 1 else "not measured"
        others = [
            f"{statistics.mean(c[key] for c in cells):.2f}" if cells else "" for key in ("mAcc", "pixel_accuracy")
        ]
        shown = ", ".join(f"{each:.2f}" for each in miou) or "not measured"
        lines.append(f"| {arm} | {shown} | {mean} | {' | '.join(others)} |")
    lines += ["", *differences(chosen)]
    chosen.output.write_text("\n".join(lines) + "\n")


def differences(chosen: argparse.Namespace) -> list[str]:
    """Differences of mIoU with the same seed."""
    lines = []
    for better, base in (("Imagenette", "random"), ("Imagenette with DRLoc", "Imagenette")):
        pairs = [(result(better, seed, chosen.work), result(base, seed, chosen.work)) for seed in range(chosen.seeds)]
        found = [one["mIoU"] - other["mIoU"] for one, other in pairs if one and other]
        if len(found) > 1:
            mean, half = interval(found)
            lines.append(f"- {better} minus {base}: {mean:+.2f} ± {half:.2f} points of mIoU over {len(found)} seeds.")
    return lines


def main() -> None:
    """All seeds of all starts, a seed at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("camvid", type=Path)
    parser.add_argument("imagenette", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/transfer.md"))
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    for seed in range(chosen.seeds):
        for arm in ARMS:
            one(arm, seed, chosen)
            write(chosen)
    print(chosen.output.read_text())


if __name__ == "__main__":
    main()
