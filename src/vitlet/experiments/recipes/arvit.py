"""Table 1 of "Vision transformers with Inductive Bias introduced through self-attention regularization" (ARViT).

Each network learns rotations on ImageNet without labels, its price on attention on, then is fine-tuned. The weights of
the prices are not published: those suggested here are used. The paper's accuracies come from random 80/20 splits of all
files; these recipes use the official splits, so the numbers are not of the same kind. Not measured at full size.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from vitlet.config import RunConfig, TaskConfig
from vitlet.experiments.recipes.recipe import PaperTable, Recipe

FIVE = ("cifar10", "cifar100", "flowers102", "imagenette", "imagewoof")
PAPER = {
    "vit-tiny": (73.30, 53.55, 73.91, 84.72, 61.77),
    "base": (83.13, 76.27, 81.61, 91.18, 73.01),
    "distance-1": (82.02, 75.89, 80.12, 90.58, 72.92),
    "distance-2": (83.63, 76.20, 81.27, 91.56, 74.81),
    "distance-3": (84.76, 76.63, 83.08, 92.05, 75.90),
    "distance-4": (83.31, 76.52, 81.98, 91.88, 75.24),
    "distance-5": (83.70, 76.01, 81.21, 91.30, 73.46),
    "distance-6": (79.81, 74.84, 79.14, 88.77, 70.44),
    "similarity-1": (88.29, 88.63, 85.58, 95.48, 82.31),
    "similarity-2": (86.99, 86.40, 85.15, 94.28, 79.61),
    "similarity-3": (87.17, 84.91, 85.33, 95.36, 82.20),
    "similarity-4": (87.54, 86.13, 85.31, 95.48, 82.93),
    "similarity-5": (88.45, 89.65, 85.82, 95.40, 82.70),
    "similarity-6": (87.55, 87.31, 85.15, 95.78, 81.15),
}
ATTENTION_WEIGHTS = {"distance": 0.3, "similarity": 0.03}
"""Suggested by the tasks themselves."""


def fine_tuning(dataset: str, arm: str) -> RunConfig:
    """60 epochs at 5e-4 of all weights, batch 80."""
    return RunConfig(
        data="flowers102-split" if dataset == "flowers102" else dataset,
        model="vit_tiny_d6_patch16_256" if arm == "vit-tiny" else "arvit_patch16_256",
        img_size=(256, 256),
        epochs=60,
        batch_size=80,
        lr=5e-4,
        crop="resized",
        aug="light",
        amp=True,
    )


def pretraining(arm: str) -> RunConfig:
    """Rotations on ImageNet, 90 epochs, batch 80, rate 5e-5, with the arm's attention penalty on one layer."""
    kind, _, layer = arm.partition("-")
    tasks = {"rotation": TaskConfig(1.0, options={"head": "tokens"})}
    if kind in ATTENTION_WEIGHTS:
        penalty = TaskConfig(ATTENTION_WEIGHTS[kind], view="rotate", options={"layers": layer})
        tasks[f"attention-{kind}"] = penalty
    same = fine_tuning("imagenet1k", arm)
    return replace(same, pretrain=True, epochs=90, lr=5e-5, crop=RunConfig().crop, tasks=tasks)


def _recipe(arm: str, dataset: str, number: float) -> Recipe:
    """A recipe; one pre-training serves all columns of its row."""
    make, first = partial(fine_tuning, dataset, arm), partial(pretraining, arm)
    return Recipe("arvit_table1", dataset, "arvit", arm, make, number, first)


ARVIT_TABLES = (
    PaperTable(
        "arvit_table1",
        "ARViT, table 1: each layer, both prices on attention, five datasets",
        tuple(
            _recipe(arm, dataset, number)
            for arm, numbers in PAPER.items()
            for dataset, number in zip(FIVE, numbers, strict=True)
        ),
    ),
)
