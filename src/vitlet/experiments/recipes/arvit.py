"""Table 1 of "Vision transformers with Inductive Bias introduced through self-attention regularization" (ARViT).

Each network learns rotations on ImageNet without labels, its price on attention on, then is fine-tuned. The weights of
the prices are not published: those suggested here are used. The paper's accuracies come from random 80/20 splits of all
files; these recipes use the official splits, so the numbers are not of the same kind. Not measured at full size.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from vitlet.config import RunConfig, TaskConfig
from vitlet.experiments.recipes.recipe import PaperTable, Recipe, published

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
        tasks[f"attention-{kind}"] = TaskConfig(ATTENTION_WEIGHTS[kind], view="rotate", options={"layers": layer})
    config = replace(fine_tuning("imagenet1k", arm), pretrain=True, epochs=90, lr=5e-5, tasks=tasks)
    return replace(config, crop=RunConfig().crop)


ARVIT_TABLES = (
    PaperTable(
        "arvit_table1",
        "ARViT, table 1: each layer, both prices on attention, five datasets",
        tuple(  # one pre-training serves all columns of its row
            Recipe("arvit_table1", data, model, arm, partial(fine_tuning, data, arm), number, partial(pretraining, arm))
            for data, model, arm, number in published("arvit_table1")
        ),
    ),
)
