"""Default tasks where none is named: those that were measured to help on such data, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torch.nn import CrossEntropyLoss

from vitlet.config import RunConfig
from vitlet.data.images import Dataset
from vitlet.errors import VitletError
from vitlet.objective import Objective
from vitlet.training.build import build_backbone
from vitlet.training.knowledge import MeasuredGain, knowledge
from vitlet.training.terms import make_terms

MEASURED: tuple[MeasuredGain, ...] = knowledge().gains
"""What has been shown so far; see docs/findings.md."""


def choose_tasks(
    config: RunConfig, dataset: Dataset, measured: Sequence[MeasuredGain] | None = None
) -> tuple[RunConfig, str, str]:
    """The settings with the tasks that were measured to help, a short and a long description of the choice.

    Args:
        config: settings in which no task was named.
        dataset: the images.
        measured: what is known (default: `MEASURED`).
    """
    images, none = len(dataset.train), "no task was named, and none is chosen: "
    unknown = "no gain that is significant at the 95 % level has been measured (docs/findings.md)."
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
            f"no task was named; chosen: {names}, which gained {best.shown()} points over the baseline (cross-entropy"
            " only) with"
            f" {best.fewest:,} to {best.most:,} images ({best.how}; studies/{best.study}). --task none turns it off."
        ),
    )


def _problem(config: RunConfig, classes: int, most: int) -> str | None:
    """Why this model cannot have these tasks: what was not asked for must not stop a run, nor fill the memory."""
    backbone, _ = build_backbone(replace(config, tasks={}), config.num_classes or classes)  # its faults stop the run
    try:
        grid = backbone.shapes(least=2).last
        Objective(backbone, make_terms(config, backbone), CrossEntropyLoss())
    except VitletError as problem:
        return str(problem)
    found = f"{config.model} ends in a grid of {grid.height}x{grid.width} tokens"
    return f"{found}, and they are chosen up to {most} tokens." if grid.height * grid.width > most else None
