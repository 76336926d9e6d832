"""A backbone, the main criterion and any number of weighted tasks as one module.

One ``nn.Module``, so that DDP, ``torch.compile``, EMA and checkpoints wrap one object; its ``forward`` is the only
entry. Without labels it is pre-training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.backbones import Backbone
from vitlet.errors import VitletError
from vitlet.objective.balance import Balance, Weights
from vitlet.objective.schedules import Constant, Schedule
from vitlet.tasks.task import Task, ask
from vitlet.tokens.features import Features, Needs
from vitlet.tokens.views import PlainView, ViewMaker, fitted, settled

Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Term:
    """A task with its weight (a number, or a schedule over epochs) and its view of the images.

    Example:
        >>> term = vitlet.Term(vitlet.Rotation(), 0.3, vitlet.Rotated())
    """

    task: Task
    weight: float | Schedule = 1.0
    view: ViewMaker = field(default_factory=PlainView)

    def weight_at(self, epoch: float | None) -> float:
        """The weight at this (fractional) epoch, which only a weight that never changes can do without."""
        if not callable(self.weight):
            return self.weight
        if epoch is None and not isinstance(self.weight, Constant):
            raise VitletError(
                f"the weight of {self.task.name!r} follows a schedule, and no epoch was given: at each step pass"
                " weights=objective.weights(epoch) to an objective, call attached.loss(epoch), or set the epoch of a"
                " TimmTrainingTask."
            )
        return self.weight(epoch or 0.0)


def as_terms(tasks: Task | Term | Sequence[Task | Term]) -> tuple[Term, ...]:
    """One task or several, each with a weight: where none is given, the suggested one."""
    terms = []
    for each in (tasks,) if isinstance(tasks, (Task, Term, str)) or not isinstance(tasks, Iterable) else tasks:
        task = each.task if isinstance(each, Term) else each
        if not isinstance(task, Task):
            found = f"the text {task!r}" if isinstance(task, str) else f"{task!r} of type {type(task).__name__}"
            raise VitletError(
                f"found {found}, needed a task such as vitlet.DRLoc(), or vitlet.Term(vitlet.DRLoc(), 0.5) with a"
                " weight. `vitlet tasks` lists them."
            )
        terms.append(each if isinstance(each, Term) else Term(task, task.suggested_weight, task.suggested_view))
    return tuple(terms)


@dataclass(frozen=True)
class Outcome:
    """Result of a training step: loss, logits, and the parts of the loss with metrics.

    Attributes:
        loss: weighted total, for ``backward``.
        logits: class scores; None if no term uses the plain view.
        parts: unweighted loss of the criterion and of each task, by name.
        metrics: the tasks' metrics as ``task/metric``.
        weights: weight of each task's loss in this step.
        norms: gradient norms by name, where a `Balance` needs them for its ``update`` after the step.
    """

    loss: Tensor
    logits: Tensor | None
    parts: dict[str, Tensor]
    metrics: dict[str, Tensor | float]
    weights: Weights = field(default_factory=dict)
    norms: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(nn.Module):
    """Training objective: a backbone, a criterion on its logits, and weighted tasks, as one module.

    Args:
        backbone: a `TimmBackbone`, a `LayerBackbone` or another `Backbone`.
        terms: tasks with weights, or at their suggested weights; their heads are built for the backbone's grids.
        criterion: loss of logits and labels (default: cross-entropy).
        balance: adapts the weights while training (default: they are fixed).

    Example:
        >>> objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(vitlet.DRLoc(), 0.5)])
        >>> optimizer.add_param_group({"params": list(objective.task_parameters())})
        >>> outcome = objective(images, labels)  # in place of criterion(model(images), labels)
        >>> outcome.loss.backward()
    """

    MAIN = "criterion"
    main_needs = Needs()
    """What `main` reads of the forward pass besides the logits."""

    def __init__(
        self,
        backbone: Backbone,
        terms: Task | Term | Sequence[Task | Term] = (),
        criterion: Criterion | None = None,
        balance: Balance | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.balance = balance
        self.terms = _fitted(as_terms(terms), backbone)
        self.criterion = criterion or nn.CrossEntropyLoss()
        names = [term.task.name for term in self.terms]
        if len(set(names)) < len(names) or self.MAIN in names:
            raise VitletError(f"the tasks of an objective must have different names, got {names}.")
        for term in self.terms:
            if not callable(term.weight) and term.weight < 0:
                raise VitletError(f"the weight of {term.task.name!r} must be at least 0, got {term.weight:g}.")
        for view, group in _by_view(self.terms).items():
            needs = joint_needs(group)
            shapes = backbone.shapes(needs, view)
            for term in group:
                term.task.build(shapes)
            if joint_needs(group) != needs:  # a task knows by now what it reads of all that it asked about
                backbone.shapes(joint_needs(group), view)
        parameter = next(backbone.parameters(), None)
        self.tasks = nn.ModuleDict({term.task.name: term.task for term in self.terms})
        if parameter is not None:
            self.tasks.to(parameter.device)

    def task_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the tasks' heads (and of their balance), for an optimizer that already has the model's."""
        yield from self.tasks.parameters()
        if self.balance is not None:
            yield from self.balance.parameters()

    def weights(self, epoch: float | None = None) -> dict[str, float]:
        """Each task's weight at this (fractional) epoch; None will do where no weight follows a schedule."""
        return {term.task.name: term.weight_at(epoch) for term in self.terms}

    def main(self, features: Features, labels: Any) -> dict[str, Tensor]:
        """Losses on the labels by name; their sum is the main loss."""
        if features.logits is None:
            raise VitletError("labels were given, but the backbone gives no logits. Leave the labels out.")
        return {self.MAIN: self.criterion(features.logits, labels)}

    def forward(self, images: Tensor, labels: Any = None, weights: Weights | None = None) -> Outcome:
        """Forward pass of a training step and its losses.

        Args:
            images: ``(B, channels, height, width)``.
            labels: class indices ``(B,)`` or soft targets ``(B, classes)`` (of another kind of objective: what its
                `main` takes); None to leave the criterion out.
            weights: weight of each task at this step, needed if one follows a schedule; a task that is not named is
                left out. Without tasks and labels, in evaluation, the logits are all there is.
        """
        weights = self.weights() if weights is None else weights
        groups = _by_view([t for t in self.terms if t.task.name in weights], evaluation=not self.training)
        if labels is not None or not groups:
            groups = {PlainView(): [], **groups}
        parts: dict[str, Tensor] = {}
        metrics: dict[str, Tensor | float] = {}
        logits: Tensor | None = None
        total: Tensor | None = None
        for maker, terms in groups.items():
            labelled = labels is not None and maker == PlainView()
            needs = joint_needs(terms) | self.main_needs if labelled else joint_needs(terms)
            beside = PlainView() in groups and maker != PlainView()
            with _unchanged_statistics(self.backbone) if beside else nullcontext():
                features: Features = self.backbone(maker(images), needs)
            if maker == PlainView():
                logits = features.logits
            if labelled:
                parts |= self.main(features, labels)
                total = parts[self.MAIN] = reduce(torch.add, parts.values())
            for term in terms:
                name = term.task.name
                loss, found = ask(self.tasks[name], features)
                parts[name] = loss
                metrics.update({f"{name}/{key}": value for key, value in found.items()})
                weighted = loss * weights[name]
                total = weighted if total is None else total + weighted
        if total is None and logits is not None and not self.training:
            total = logits.new_zeros(())
        if total is None:
            raise VitletError(
                "nothing to train: got neither labels nor tasks. Pass labels, or add a task to the objective."
            )
        detached = {name: part.detach() for name, part in parts.items()}
        if self.balance is not None and self.training and parts:
            losses = {name: part for name, part in parts.items() if name == self.MAIN or name in self.tasks}
            balanced = self.balance(losses, weights, self.backbone.model)
            return Outcome(balanced.total, logits, detached, metrics, balanced.weights, balanced.norms)
        return Outcome(total, logits, detached, metrics, weights)


def joint_needs(terms: Sequence[Term]) -> Needs:
    """Union of the features that the tasks of these terms need."""
    return reduce(or_, (term.task.needs for term in terms), Needs())


def _fitted(terms: Sequence[Term], backbone: Backbone) -> tuple[Term, ...]:
    """The terms with their views fitted to the grid of the model, if any needs that."""
    if not any(hasattr(term.view, "fitted") for term in terms):
        return tuple(terms)
    grid = backbone.shapes().last
    cells = grid.height, grid.width
    return tuple(replace(term, view=fitted(term.view, backbone.img_size, cells)) for term in terms)


@contextmanager
def _unchanged_statistics(backbone: Backbone) -> Iterator[None]:
    """Inside, batch normalization leaves its running statistics as they are.

    Evaluation sees plain images: running means over masked, turned or shuffled ones too would not be theirs.
    """
    layers = [layer for layer in backbone.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _by_view(terms: Sequence[Term], *, evaluation: bool = False) -> dict[ViewMaker, list[Term]]:
    """Terms that share a forward pass; in evaluation, views leave as little to chance as they can."""
    groups: dict[ViewMaker, list[Term]] = {}
    for term in terms:
        groups.setdefault(settled(term.view) if evaluation else term.view, []).append(term)
    return groups
