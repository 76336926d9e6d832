"""The picture of the findings: ``python docs/pictures/gains.py`` writes ``gains.png`` beside this file.

What the task `sprel` brings to plain transformers in short trainings (``studies/confirmation``) and to stronger models
in strong trainings (``benchmarks/results/versus.csv``): paired differences with 95 % intervals, test images.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib as mpl

from vitlet.statistics import student

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHORT = {"vit": ("sprel+position", "ViT + sprel + position"), "swin": ("sprel-0.3", "Swin + sprel")}
STRONG = {"resnet": "ResNet + sprel", "botnet": "BoTNet + sprel"}
NAMES = {"imagenette": "Imagenette", "cifar10": "CIFAR-10", "flowers102": "Flowers-102"}
DATASETS = {"imagenette-852": "imagenette", "cifar10-2000": "cifar10", "flowers102": "flowers102"}
COLOURS = ("#0b7285", "#e8590c")

Gain = tuple[str, float, float]
"""Name, mean and half width of the interval."""


def read(file: str) -> list[dict[str, str]]:
    """Rows of a committed table."""
    with (ROOT / file).open(newline="") as found:
        return list(csv.DictReader(found))


def short_gains() -> list[Gain]:
    """Of plain transformers in short trainings."""
    rows = {(row["dataset"], row["model"], row["arm"]): row for row in read("studies/confirmation/report/table.csv")}
    found = []
    for model, (arm, name) in SHORT.items():
        for dataset, shown in NAMES.items():
            if row := rows.get((dataset, model, arm)):
                found.append((f"{name}, {shown}", float(row["gain"]), float(row["gain_half"])))
    return found


def strong_gains() -> list[Gain]:
    """Of strong models in two minutes of CPU time."""
    rows = read("benchmarks/results/versus.csv")
    found = []
    for model, name in STRONG.items():
        for dataset, short in DATASETS.items():
            tops = {(row["arm"], row["seed"]): float(row["top1"]) for row in rows if row["dataset"] == dataset}
            seeds = [seed for arm, seed in tops if arm == f"{model}+sprel" and (model, seed) in tops]
            gain = student([tops[f"{model}+sprel", seed] - tops[model, seed] for seed in seeds])
            found.append((f"{name}, {NAMES[short]}", gain.value, gain.high - gain.value))
    return found


def main() -> None:
    """Draw one axis with all gains."""
    groups = {"plain transformers, 20 epochs": short_gains(), "strong recipe, 2 minutes of CPU time": strong_gains()}
    figure, axis = plt.subplots(figsize=(8, 4.4), layout="constrained")
    place, names = 0, []
    for (title, gains), colour in zip(groups.items(), COLOURS, strict=True):
        for name, gain, half in gains:
            label = title if name == gains[0][0] else None
            axis.errorbar(gain, -place, xerr=half, color=colour, marker="o", capsize=4, linewidth=2, label=label)
            names.append(name)
            place += 1
    axis.axvline(0, color="0.4", linewidth=1)
    axis.set_yticks([-number for number in range(place)], names, fontsize=9.5)
    axis.set_xlabel("gain by the task in points of test accuracy, with its 95 % interval")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.42), fontsize=9.5)
    axis.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(HERE / "gains.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
