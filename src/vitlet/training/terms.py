"""The tasks of a run as terms of its objective: weight schedules, views, and how they are balanced."""

from __future__ import annotations

from collections.abc import Sequence

from vitlet.backbones import Backbone
from vitlet.config import BaseConfig, RunConfig, TaskConfig
from vitlet.errors import VitletError
from vitlet.models.factory import data_statistics
from vitlet.objective import Objective, Term
from vitlet.objective.balance import Balance, GradientNorms, Uncertainty
from vitlet.objective.schedules import Constant, Ramp, Schedule
from vitlet.tasks.declared import load_task
from vitlet.tasks.task import Task
from vitlet.tokens.patch_augment import PatchAugment
from vitlet.tokens.patch_views import MegaPatches, ShuffledPatches
from vitlet.tokens.rotated import Rotated
from vitlet.tokens.views import Chain, PlainView, ViewMaker
from vitlet.training.teachers import find_teacher


def make_terms(config: BaseConfig, backbone: Backbone, classes: Sequence[str] | None = None) -> list[Term]:
    """The tasks of a run with their weight schedules and views; an option ``teacher`` becomes the model it names.

    Args:
        config: the settings.
        backbone: the model.
        classes: names of its classes, where they are known: a teacher of soft labels needs the same.
    """
    terms = []
    for name, chosen in config.tasks.items():
        options = dict(chosen.options)
        if isinstance(options.get("teacher"), str):
            options["teacher"] = find_teacher(options["teacher"], config, backbone, classes)
        task = load_task(name)(**options)
        weight = _weight_schedule(chosen, task.suggested_schedule, config.epochs)
        terms.append(Term(task, weight, make_view(chosen, task, backbone)))
    return terms


def _weight_schedule(chosen: TaskConfig, suggested: str, epochs: int) -> Schedule:
    if (chosen.schedule or suggested) == "constant":
        return Constant(chosen.weight)
    warmup = min(20.0, epochs / 5) if chosen.warmup_epochs is None else chosen.warmup_epochs
    return Ramp(chosen.weight, epochs=epochs, warmup_epochs=warmup)


def make_balance(config: RunConfig, *, labels: bool) -> Balance | None:
    """The loss weighting of a run; None for fixed weights."""
    if config.balance_tasks == "fixed":
        return None
    names = [*([Objective.MAIN] if labels else []), *config.tasks]
    if len(names) < 2:
        raise VitletError(
            f"balance_tasks {config.balance_tasks} requires at least two losses, found only {names[0]}. Add a task."
        )
    if config.balance_tasks == "uncertainty":
        return Uncertainty(names)
    return GradientNorms(names, labels=labels)


def make_view(chosen: TaskConfig, task: Task, backbone: Backbone) -> ViewMaker:
    """View of a term (default: what its task suggests), with patches as large as the model's last tokens."""
    makers: list[ViewMaker] = []
    if chosen.view == "rotate":
        makers.append(Rotated())
    elif chosen.view is None and task.suggested_view != PlainView():
        makers.append(task.suggested_view)
    if chosen.view not in ("shuffle", "mega") and not chosen.patch_augment:
        return makers[0] if makers else PlainView()
    patch = _patch(backbone)
    if chosen.view == "shuffle":
        makers.append(ShuffledPatches(patch))
    elif chosen.view == "mega":
        makers.append(MegaPatches(patch, chosen.mega_side, chosen.mega_coords))
    if chosen.patch_augment:
        mean, std = data_statistics(backbone.model, backbone.in_chans)
        makers.append(PatchAugment(patch, tuple(mean), tuple(std)))
    return makers[0] if len(makers) == 1 else Chain(tuple(makers))


def _patch(backbone: Backbone) -> int:
    """Pixels along a token of the last grid."""
    height, width = backbone.img_size
    grid = backbone.shapes().last
    patch = height // grid.height
    if (grid.height * patch, grid.width * patch) != (height, width):
        raise VitletError(
            f"{backbone.describe()} has {grid.height}x{grid.width} tokens on images of {height}x{width} pixels, which"
            " are not square patches: they cannot be shuffled, merged or augmented independently."
            " Use another image size, or view 'plain' without patch_augment."
        )
    return patch
