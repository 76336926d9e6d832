"""Demo of `vitlet train` without DATA: automatic settings on handwritten digits, then the effect of tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import torch

from vitlet.cli.summary import demo_table, print_result, say
from vitlet.config import RunConfig, TaskConfig
from vitlet.pictures import panels, save_figure
from vitlet.statistics import student
from vitlet.training.choice import choose
from vitlet.training.loop import train

SEEDS = 4
PER_CLASS = 20
"""Labelled images of each digit in the comparison of tasks, which matter most where there are few."""

ARMS: Mapping[str, Mapping[str, TaskConfig]] = {
    "baseline (cross-entropy only)": {},
    "baseline + spatial tasks": {"sprel": TaskConfig(1.0), "position": TaskConfig(1.0)},
}


def digits_config() -> RunConfig:
    """A small ViT that suits 8 x 8 scans: 64 wide, 4 deep, patches of 2 x 2 pixels, so 4 x 4 tokens."""
    return RunConfig(
        data="digits",
        model="vit_tiny_patch16_224",
        model_kwargs={"patch_size": 2, "embed_dim": 64, "depth": 4, "num_heads": 4},
        img_size=(8, 8),
        in_chans=1,
        epochs=40,
        batch_size=64,
        lr=2e-3,
        crop="resized",
        scale=0.6,
        hflip=0.0,
        crop_pct=1.0,
        val_fraction=0.2,
    )


def few_digits_config() -> RunConfig:
    """Settings for few labels, with smaller batches."""
    return replace(digits_config(), per_class=PER_CLASS, batch_size=32, val_interval=10, checkpoint_epochs=None)


def demo(root: Path = Path("runs"), *, epochs: int = 8, seeds: int = SEEDS) -> dict[str, list[float]]:
    """Train with what is chosen, then a small ViT with and without tasks; a table and one picture."""
    torch.set_num_threads(1)  # so small a model gets slower with more
    number = 1
    while (root / f"demo-{number}").exists():
        number += 1
    folder = root / f"demo-{number}"
    say("No DATA given: scikit-learn's handwritten digits.")
    say(f"1. `vitlet train digits --epochs {epochs}`, with automatic settings:")
    asked = RunConfig(data="digits", epochs=epochs, output=str(folder / "chosen"))
    choice = choose(asked, {"epochs": epochs})
    print_result(train(choice.config, choice=choice))
    say(
        f"2. The effect of tasks: a small ViT on {10 * PER_CLASS} labelled digits, {seeds} seeds with tasks and"
        " without:"
    )
    found: dict[str, list[float]] = {name: [] for name in ARMS}
    for seed in range(seeds):
        for name, tasks in ARMS.items():
            found[name].append(_accuracy(seed, name, tasks, folder))
    demo_table(found)
    picture = folder / "demo.png"
    draw_demo(found, picture)
    say(f"picture: {picture}")
    return found


def _accuracy(seed: int, name: str, tasks: Mapping[str, TaskConfig], folder: Path) -> float:
    """Test accuracy of one run, in percent; its progress is not printed."""
    short = name.partition(" (")[0].replace(" ", "").replace("+", "-")
    output = str(folder / f"{short}-{seed}")
    config = replace(few_digits_config(), seed=seed, tasks=tasks, output=output)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        result = train(config)
    assert result.test is not None
    say(f"seed {seed}, {name}: {result.test.top1:.2f} % of {result.test.count} test images")
    return result.test.top1


def draw_demo(found: Mapping[str, Sequence[float]], picture: Path) -> None:
    """Every seed as a line from one training to the other, and the means with their 95 % intervals."""
    figure, (axis,) = panels(1, 6, 4.2)
    for pair in zip(*found.values(), strict=True):
        axis.plot(range(len(found)), pair, color="0.7", marker="o", markersize=4, zorder=1)
    for place, values in enumerate(found.values()):
        mean = student(values) if len(values) > 1 else None
        if mean is not None:
            axis.errorbar(place, mean.value, mean.high - mean.value, color=f"C{place}", marker="s", capsize=6, lw=2)
            left = place == 0  # the lines are on its right
            about = {"ha": "right" if left else "left", "va": "center", "weight": "bold"}
            shift = (-12 if left else 12, 0)
            axis.annotate(f"{mean.value:.1f} %", (place, mean.value), shift, textcoords="offset points", **about)
    axis.set_xticks(range(len(found)), list(found))
    axis.set(xlim=(-0.5, len(found) - 0.3), ylabel="accuracy on test images, %")
    axis.set_title(f"A small ViT on {10 * PER_CLASS} labelled digits: one line per seed, mean and 95 % interval")
    axis.title.set_fontsize(9)
    axis.grid(alpha=0.3)
    save_figure(figure, picture)
