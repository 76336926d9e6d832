"""The picture at the top of the README: ``python docs/pictures/first.py`` writes ``first.png`` beside this file.

Left: what a spatial task asks of two tokens. Right: test accuracy in two minutes of CPU time, from
``benchmarks/results/versus.csv`` and, with half of the labels, from the cells of ``studies/half-labels``.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from vitlet.statistics import student

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "benchmarks" / "results" / "versus.csv"
CELLS = HERE.parents[1] / "studies" / "half-labels" / "cells"
ARMS = {"expert": "expert's script", "resnet-wsd": "vitlet", "half": "vitlet, half of the labels"}
COLOURS = ("#9aa5b1", "#0b7285", "#e8590c")
DATASETS = {"imagenette-852": "Imagenette\n852 images", "cifar10-2000": "CIFAR-10\n2,000 images"}
DATASETS |= {"flowers102": "Flowers-102\n1,020 images"}


def draw_tokens(axis: Any) -> None:
    """A grid of tokens, two of them marked, and the question about them."""
    side, first, second = 6, (1, 1), (4, 3)
    rows, columns = np.mgrid[0:side, 0:side]
    axis.imshow(np.hypot(rows - 2.2, columns - 2.8), cmap="Greys", vmin=-2, vmax=9)
    axis.set_xticks(np.arange(side + 1) - 0.5, [])
    axis.set_yticks(np.arange(side + 1) - 0.5, [])
    axis.grid(color="white", linewidth=2)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    for (row, column), colour, name in ((first, COLOURS[1], "A"), (second, COLOURS[2], "B")):
        axis.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour))
        axis.text(column, row, name, color="white", ha="center", va="center", fontsize=15, weight="bold")
    start, end = first[::-1], second[::-1]
    style = {"arrowstyle": "-|>", "color": "black", "linewidth": 2, "shrinkA": 16, "shrinkB": 16}
    axis.annotate("", end, start, arrowprops=style)
    axis.set_title("Beside the labels, a model tells\nwhere its own tokens are", fontsize=12)
    axis.set_xlabel("sprel: A is above and left of B\ndrloc: B is 3 rows and 2 columns from A", fontsize=10.5)


def accuracies(dataset: str, arm: str) -> list[float]:
    """Test accuracies of an arm over its seeds, in percent."""
    if arm == "half":
        files = sorted((CELLS / dataset.partition("-")[0] / "model").glob("half-*-wsd/*.json"))
        return [json.loads(file.read_text())["test_best"] for file in files]
    with TABLE.open(newline="") as file:
        return [float(row["top1"]) for row in csv.DictReader(file) if (row["dataset"], row["arm"]) == (dataset, arm)]


def draw_accuracy(axis: Any) -> None:
    """Bars with 95 % intervals."""
    for number, (arm, name) in enumerate(ARMS.items()):
        places = np.arange(len(DATASETS)) + 0.27 * (number - 1)
        found = [student(accuracies(dataset, arm)) for dataset in DATASETS]
        axis.bar(places, [each.value for each in found], 0.25, color=COLOURS[number], label=name)
        for place, each in zip(places, found, strict=True):
            axis.plot([place, place], [each.low, each.high], color="black", linewidth=1.5)
            axis.text(place, 2, f"{each.value:.1f}", color="white", ha="center", fontsize=9.5, weight="bold")
    axis.set_xticks(range(len(DATASETS)), list(DATASETS.values()), fontsize=10.5)
    axis.set_ylim(0, 95)
    axis.set_ylabel("accuracy on test images, %")
    axis.set_title("From scratch in 2 minutes on one CPU core\n(mean and 95 % interval over seeds)", fontsize=12)
    axis.legend(frameon=False, ncols=3, fontsize=9.5, loc="upper center", columnspacing=1.0, handlelength=1.2)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw both."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4), width_ratios=(1, 1.9), layout="constrained")
    draw_tokens(axes[0])
    draw_accuracy(axes[1])
    figure.savefig(HERE / "first.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
