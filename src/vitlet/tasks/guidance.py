"""Locality guidance: distils the feature maps of a trained teacher, such as a CNN, into the tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.tasks.task import LEARNED_ERROR, Task, TaskResult, chance_verdict
from vitlet.tasks.teacher import Teacher
from vitlet.tokens.features import Features, Grid, Needs, Shapes

__all__ = ["Guidance", "guidance_loss", "soft_label_loss", "teacher_targets"]


def teacher_targets(maps: Tensor, size: tuple[int, int], *, normalised: bool = True) -> Tensor:
    """Targets for tokens from a teacher's feature map: ``(B, C, h, w)`` to ``(B, H*W, C)`` in float32.

    Args:
        maps: feature map; resized to the student's grid (bilinear, antialiased).
        size: rows and columns of the student's grid.
        normalised: standardize each token's channels, so that the loss does not depend on the teacher's scale.
    """
    maps = maps.float()
    if maps.shape[2:] != size:
        maps = F.interpolate(maps, size, mode="bilinear", antialias=True)
    targets = maps.flatten(2).transpose(1, 2)
    return F.layer_norm(targets, targets.shape[2:]) if normalised else targets


def guidance_loss(predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Mean squared error of projected tokens ``(B, N, C)`` against targets of the same sizes, mean over depths."""
    losses = [F.mse_loss(said.float(), wanted) for said, wanted in zip(predictions, targets, strict=True)]
    return torch.stack(losses).mean()


def soft_label_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of the student's class probabilities ``(B, K)`` from the teacher's.

    Both are softened by the temperature; the factor of its square preserves the magnitude of the gradient.
    """
    said = (logits.float() / temperature).log_softmax(1)
    wanted = (teacher.float() / temperature).log_softmax(1)
    return F.kl_div(said, wanted, reduction="batchmean", log_target=True) * temperature**2


class Guidance(Task):
    """Predict the features of a trained teacher, such as a small CNN, at each token's position.

    Li, Yu, Wang, Yuan, Song, Chen: "Locality Guidance for Improving Vision Transformers on Tiny Datasets", ECCV 2022,
    https://arxiv.org/abs/2207.10026. A linear layer for each depth projects tokens ``(B, N, C)`` to the channels of one
    of the teacher's stages, whose map is resized to the student's grid; optionally the teacher's soft labels are used
    too. The teacher sees the same augmented and mixed images, is frozen, and is not in the state dict. ``error`` is the
    unexplained variance of the teacher's maps in percent; ``chance`` is 100, that of predicting the mean.
    ``agreement`` is in percent of the images.

    Args:
        teacher: finished run, or folder in timm's local-dir layout, of a model trained on the same images; auto: train
            a small ResNet first; in Python, a backbone.
        levels: number of depths, evenly spaced, each guided by one of the teacher's last stages; 0: soft labels only.
        normalise: standardize the teacher's channels at each token position.
        soft: weight of the loss on the teacher's soft labels.
        temperature: temperature of the soft labels.
        teacher_share: epochs of teacher auto as a fraction of the run's, in addition to them.

    Example:
        >>> teacher = timm.create_model("resnet10t")  # here without its training
        >>> task = vitlet.Guidance(teacher=vitlet.TimmBackbone(teacher, img_size=16), soft=0.5)
        >>> outcome = vitlet.Objective(vitlet.TimmBackbone(model), [task])(images, labels)
    """

    name = "guidance"
    suggested_weight = 2.5
    asks_for_places = False

    def __init__(
        self,
        *,
        teacher: str | nn.Module | None = None,
        levels: int = 3,
        normalise: bool = True,
        soft: float = 0.0,
        temperature: float = 3.0,
        teacher_share: float = 0.3,
    ) -> None:
        super().__init__()
        if levels < 0 or not 0 <= soft < math.inf or not 0 < temperature < math.inf or (not levels and not soft):
            raise VitletError(
                f"guidance has levels {levels}, soft {soft:g} and temperature {temperature:g}; needed are 0 or more"
                " levels and a soft weight of 0 or more, not both 0, and a temperature above 0."
            )
        if not 0 < teacher_share < math.inf:
            raise VitletError(f"guidance.teacher_share must be greater than 0, got {teacher_share:g}.")
        if isinstance(teacher, nn.Module) and not isinstance(teacher, Teacher):
            teacher = Teacher(teacher)
        self._teacher = (teacher,)  # in a tuple: it is no part of this module, nor of its state dict
        self.levels, self.normalise, self.soft, self.temperature = levels, normalise, soft, temperature
        self.teacher_share = teacher_share
        self.needs = Needs(every_grid=levels > 1)
        self.pairs: list[tuple[int, int]] = []
        self.heads = nn.ModuleList()

    @property
    def teacher(self) -> Teacher:
        """The teacher's backbone."""
        (teacher,) = self._teacher
        if isinstance(teacher, Teacher):
            return teacher
        found = "none" if teacher is None else f"the text {teacher!r}"
        raise VitletError(
            f"guidance needs a teacher, found {found}. On the command line add --guidance.teacher RUN, a finished run"
            " on the same images (or auto); in Python pass teacher=vitlet.TimmBackbone(model)."
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Guidance:
        """Move the teacher to the same device and precision as the task."""
        if isinstance(self._teacher[0], Teacher):
            self._teacher[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def build(self, shapes: Shapes) -> None:
        if self.soft and self.teacher.unlike:
            raise VitletError(
                f"soft labels need a teacher of the same classes in the same order: {self.teacher.unlike}. Leave"
                " guidance.soft at 0, or take another teacher."
            )
        students = shapes.every or (shapes.last,)
        teachers = self.teacher.shapes(self.needs)
        stages = teachers.every or (teachers.last,)
        count = min(self.levels, len(students), len(stages))
        self.pairs = [
            (math.ceil(len(students) * depth / count) - 1, len(stages) - count + depth - 1)
            for depth in range(1, count + 1)
        ]
        self.heads = nn.ModuleList(nn.Linear(students[own].channels, stages[its].channels) for own, its in self.pairs)

    def forward(self, features: Features) -> TaskResult:
        seen = self.teacher(features.images, self.needs)
        losses: list[Tensor] = []
        metrics: dict[str, Tensor | float] = {}
        if self.pairs:
            said, wanted = self._maps(features.every or (features.last,), seen.every or (seen.last,))
            losses.append(guidance_loss(said, wanted))
            metrics |= {"error": _unexplained(said, wanted), "chance": 100.0}
        if self.soft:
            logits, targets = features.logits, seen.logits
            if logits is None or targets is None or logits.shape != targets.shape:
                sizes = ["none" if each is None else f"{each.shape[1]}" for each in (logits, targets)]
                raise VitletError(
                    f"soft labels compare logits: found {sizes[0]} of the student and {sizes[1]} of the teacher, needed"
                    " the same classes. Leave guidance.soft at 0."
                )
            losses.append(self.soft * soft_label_loss(logits, targets, self.temperature))
            agreement = 100 * (logits.detach().argmax(1) == targets.argmax(1)).float().mean()
            metrics |= {"agreement": agreement, "agreement_chance": 100 / logits.shape[1]}
        return TaskResult(torch.stack(losses).sum(), metrics)

    def _maps(self, grids: Sequence[Grid], stages: Sequence[Grid]) -> tuple[list[Tensor], list[Tensor]]:
        """Projected tokens and their targets ``(B, N, C)`` for each depth."""
        said, wanted = [], []
        for head, (own, its) in zip(self.heads, self.pairs, strict=True):
            grid = grids[own]
            size = grid.shape.height, grid.shape.width
            said.append(head(grid.sequence()))
            wanted.append(teacher_targets(stages[its].tokens, size, normalised=self.normalise))
        return said, wanted

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        if "error" not in metrics:
            return None
        error = metrics["error"]
        finding = f"{error:.0f} % of the teacher's maps stay unexplained, where their mean leaves 100 %"
        return chance_verdict(error < LEARNED_ERROR * metrics["chance"], finding)


@torch.no_grad()
def _unexplained(said: Sequence[Tensor], wanted: Sequence[Tensor]) -> Any:
    """Unexplained variance in percent, relative to each channel's mean over the batch; mean over depths."""
    shares = []
    for one, other in zip(said, wanted, strict=True):
        spread = (other - other.mean((0, 1))).square().sum()
        shares.append((one.float() - other).square().sum() / spread.clamp(min=1e-12))
    return 100 * torch.stack(shares).mean()
