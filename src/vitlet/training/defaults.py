"""Which task to train with where none is named: the one that was measured to help, for this kind of data, or none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch.nn import CrossEntropyLoss

from vitlet.config import RunConfig, TaskConfig
from vitlet.data.images import Dataset
from vitlet.errors import VitletError
from vitlet.objective import Objective
from vitlet.training.build import build_backbone
from vitlet.training.terms import make_terms


@dataclass(frozen=True)
class MeasuredGain:
    """Gains whose intervals exclude zero, found by a committed study on test data.

    Attributes:
        study: its folder under ``studies/``.
        arm: the tasks' name in it.
        models: pattern of the names of models that it speaks for.
        fewest: training images from which on it speaks ...
        most: ... up to here.
        tokens: the most tokens of a final grid that they are chosen for; a task on all pairs needs their square.
        tasks: the tasks that gained.
        gains: of each dataset, points over labels only: mean over seeds, half width of the 95 % interval.
        how: under which conditions, in a few words.
    """

    study: str
    arm: str
    models: str
    fewest: int
    most: int
    tokens: int
    tasks: Mapping[str, TaskConfig]
    gains: Mapping[str, tuple[float, float]]
    how: str

    def __post_init__(self) -> None:
        for dataset, (gain, half) in self.gains.items():
            if not 0 < half < gain:
                raise ValueError(f"{self.study}: {dataset}: {gain} ± {half} is no gain whose interval excludes zero")

    @property
    def surely(self) -> float:
        """The least that the intervals promise."""
        return min(gain - half for gain, half in self.gains.values())

    def shown(self) -> str:
        """Such as ``2.00 ± 0.50 (digits), 3.00 ± 1.00 (cifar10)``."""
        return ", ".join(f"{gain:.2f} ± {half:.2f} ({dataset})" for dataset, (gain, half) in self.gains.items())


MEASURED: tuple[MeasuredGain, ...] = (
    MeasuredGain(
        study="confirmation",
        arm="sprel+position",
        models="vit_.*",
        fewest=500,
        most=2000,
        tokens=256,
        tasks={"sprel": TaskConfig(1.0), "position": TaskConfig(1.0)},
        gains={"cifar10": (7.82, 1.49), "flowers102": (3.27, 0.94), "imagenette": (7.49, 1.35)},
        how="a small ViT from scratch, 32 and 64 px, 20 epochs; it lasts for 80, studies/longer, and is there with 512"
        " images, studies/sizes",
    ),
    MeasuredGain(
        study="confirmation",
        arm="sprel-0.3",
        models="swin_.*",
        fewest=1000,
        most=2000,
        tokens=256,
        tasks={"sprel": TaskConfig(0.3)},
        gains={"cifar10": (7.34, 2.05), "flowers102": (2.98, 1.21)},
        how="a small Swin from scratch, 32 and 64 px, 20 epochs; with 852 images of Imagenette it needed twice the"
        " learning rate, studies/swin-confirmation",
    ),
)
"""What has been shown so far; see docs/findings.md."""


def choose_tasks(
    config: RunConfig, dataset: Dataset, measured: Sequence[MeasuredGain] | None = None
) -> tuple[RunConfig, str, str]:
    """The settings with the measured best tasks, the choice in a few words, and a sentence on why.

    Args:
        config: settings in which no task was named.
        dataset: the images.
        measured: what is known (default: `MEASURED`).
    """
    images, none = len(dataset.train), "no task was named, and none is chosen: "
    unknown = "no gain has been measured whose interval excludes zero (docs/findings.md)."
    if config.init or config.pretrained:
        return (
            config,
            "none (no gain measured from trained weights)",
            f"{none}for a start from trained weights {unknown}",
        )
    known = MEASURED if measured is None else measured
    fitting = [each for each in known if re.fullmatch(each.models, config.model) and each.fewest <= images <= each.most]
    if not fitting:
        data = f"for {config.model} and {images:,} training images"
        brief = f"none (no gain measured {data}; try --task drloc)"
        return config, brief, f"{none}{data} {unknown} Try one: --task drloc, --task sprel."
    best = max(fitting, key=lambda each: each.surely)
    chosen = replace(config, tasks=dict(best.tasks))
    names = " and ".join(f"{name} (weight {task.weight:g})" for name, task in best.tasks.items())
    if problem := _problem(chosen, len(dataset.classes), best.tokens):
        return config, f"none ({names} would be, but {problem.rstrip('.')})", f"{none}{names} would be, but {problem}"
    gains = [gain for gain, _ in best.gains.values()]
    gained = f"{min(gains):.1f} to {max(gains):.1f}"
    return (
        chosen,
        f"chosen: {names}, {gained} points gained in studies/{best.study}; or --task none",
        (
            f"no task was named; chosen: {names}, which gained {best.shown()} points over labels only with"
            f" {best.fewest:,} to {best.most:,} images ({best.how}; studies/{best.study}). --task none turns it off."
        ),
    )


def _problem(config: RunConfig, classes: int, most: int) -> str | None:
    """Why this network cannot have these tasks: what was not asked for must not stop a run, nor fill the memory."""
    backbone, _ = build_backbone(replace(config, tasks={}), config.num_classes or classes)  # its faults stop the run
    try:
        grid = backbone.shapes(least=2).last
        Objective(backbone, make_terms(config, backbone), CrossEntropyLoss())
    except VitletError as problem:
        return str(problem)
    found = f"{config.model} ends in a grid of {grid.height}x{grid.width} tokens"
    return f"{found}, and they are chosen up to {most} tokens." if grid.height * grid.width > most else None
