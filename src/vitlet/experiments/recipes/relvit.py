"""The settings of "Where are my Neighbors? Exploiting Patches Relations in Self-Supervised Vision Transformer".

(BMVC 2022.) Its published accuracies are not at hand, so none is quoted; the settings are those of the released
scripts. Not measured at full size: that takes GPUs.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

from vitlet.config import RunConfig, TaskConfig
from vitlet.experiments.recipes.recipe import PaperTable, Recipe

SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10": {"img_size": (32, 32), "model_kwargs": {"patch_size": 4}},
    "cifar100": {"img_size": (32, 32), "model_kwargs": {"patch_size": 4}},
    "tiny-imagenet": {"img_size": (64, 64), "model_kwargs": {"patch_size": 8}},
    "flowers102-split": {"img_size": (224, 224), "model": "vit_small_patch32_224"},
    "svhn": {"img_size": (32, 32), "model_kwargs": {"patch_size": 4}},
    "imagenet100": {"img_size": (224, 224), "model": "vit_small_patch32_224"},
}
AT_224: dict[str, dict[str, Any]] = {
    "swin_t": {"model": "swin_tiny_patch4_window7_224"},
    "t2t_vit_14": {"model": "t2t_vit_14"},
}
"""The other models of the release: images of 224 px, batches of 64."""
RELVIT_TASKS = ("sprel", "distance", "angle", "position")


def released(
    dataset: str, tasks: dict[str, TaskConfig], *, network: str = "vit_s", pretrain: bool = False
) -> RunConfig:
    """The released scripts: AdamW 5e-4, decay 0.1, drop path 0.1, batch 256, 100 epochs, a tenth of warm-up, clip 1.

    Args:
        dataset: by its name here.
        tasks: beside the labels, or alone.
        network: ``vit_s``, or one of `AT_224`.
        pretrain: without labels; the positional embedding is then off.
    """
    settings = {"model": "vit_small_patch16_224", "batch_size": 256, **SETTINGS[dataset]}
    if network in AT_224:
        settings = {**AT_224[network], "img_size": (224, 224), "batch_size": 64}
    if any(task.view == "mega" for task in tasks.values()):  # a view of fewer tokens, so of another size
        settings["model_kwargs"] = {**settings.get("model_kwargs", {}), "dynamic_img_size": True}
    return RunConfig(
        data=dataset,
        **settings,
        drop_path=0.1,
        epochs=100,
        warmup_epochs=10.0,
        lr=5e-4,
        min_lr=1.25e-6,
        sched="quarter-cosine",
        weight_decay=0.1,
        clip_grad=1.0,
        aug="relvit",
        pretrain=pretrain,
        amp=True,
        tasks=tasks,
    )


def _tasks(*names: str, **options: Any) -> dict[str, TaskConfig]:
    return {name: TaskConfig(1.0, **options) for name in names}


def _four_ways(dataset: str) -> list[Recipe]:
    """Baseline, two pre-trainings, and joint training, on a dataset of the release that can be had by name."""
    both = ("sprel", "position")
    plain, joint = partial(released, dataset, {}), partial(released, dataset, _tasks(*both))
    before = partial(released, dataset, _tasks(*both, patch_augment=True), pretrain=True)
    side = 6 if dataset == "imagenet100" else 5
    mega = partial(released, dataset, _tasks(*both, view="mega", mega_side=side, patch_augment=True), pretrain=True)
    recipe = partial(Recipe, "relvit_training", dataset, "vit_s")
    return [
        recipe("baseline", plain),
        recipe("pretrained", plain, first=before),
        recipe("joint", joint),
        recipe("pretrained-mega", plain, first=mega),
    ]


def _other_networks(dataset: str) -> list[Recipe]:
    """Joint training against the baseline, with Swin-T and T2T-ViT-14, whose 14 x 14 tokens the tasks see as 7 x 7."""
    found = []
    for network in AT_224:
        options = {"options": {"pool": "3x3/2"}} if network == "t2t_vit_14" else {}
        for arm, tasks in (("baseline", {}), ("joint", _tasks("sprel", "position", **options))):
            make = partial(released, dataset, tasks, network=network)
            found.append(Recipe("relvit_networks", dataset, network, arm, make))
    return found


def _ablation(names: tuple[str, ...]) -> Recipe:
    """Some of the tasks, jointly with the labels on CIFAR-10."""
    make = partial(released, "cifar10", _tasks(*names))
    return Recipe("relvit_tasks", "cifar10", "vit_s", "+".join(names) or "baseline", make)


RELVIT_TABLES = (
    PaperTable(
        "relvit_training",
        "RelViT: baseline (cross-entropy only), pre-training then fine-tuning, joint training, and mega-patches",
        tuple(recipe for dataset in SETTINGS for recipe in _four_ways(dataset)),
    ),
    PaperTable(
        "relvit_networks",
        "RelViT: baseline (cross-entropy only) and joint training of Swin-T and T2T-ViT-14, at 224 px",
        tuple(recipe for dataset in SETTINGS for recipe in _other_networks(dataset)),
    ),
    PaperTable(
        "relvit_tasks",
        "RelViT: each of its tasks alone, in pairs, and all, in joint training",
        tuple(_ablation(names) for count in (0, 1, 2, 4) for names in combinations(RELVIT_TASKS, count)),
    ),
)
