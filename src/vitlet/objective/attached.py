"""Tasks attached to any module in any training loop, by a forward hook.

The model is not wrapped: its forward pass, its state dict and its export stay what they are. Hooks keep the output of
one layer, and `Attached.detach` takes them off again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.backbones import Backbone, model_img_size
from vitlet.backbones.find_attention import Survey, survey
from vitlet.backbones.find_grid import GridLayout, find_grid, require_layer
from vitlet.backbones.tap_attention import EXPLICIT_TOKENS, AttentionTap
from vitlet.errors import VitletError
from vitlet.objective.objective import Term, as_terms, joint_needs
from vitlet.tasks.task import Task, ask
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.views import PlainView, View, ViewMaker


class Ear:
    """Keeps the last thing that passed by. A copy of it, as in a copy of the model for averaging, is deaf."""

    def __init__(self, deaf: bool = False) -> None:
        self.deaf = deaf
        self.heard: Any = None

    def images(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A hook before the model: its images, wherever they are among its arguments."""
        if not self.deaf and not torch.compiler.is_exporting():
            parts = [part for part in (*inputs, *named.values()) if isinstance(part, Tensor) and part.ndim == 4]
            self.heard = parts[0] if parts else None

    def output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """A hook after a layer."""
        if not self.deaf and not torch.compiler.is_exporting():
            self.heard = output

    def take(self) -> Any:
        """The recorded output; cleared by this call."""
        heard, self.heard = self.heard, None
        return heard

    def __deepcopy__(self, memo: Any) -> Ear:
        return Ear(deaf=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ear, (True,)


class Listening(Backbone):
    """A model that others run, and what was heard while they did.

    Args:
        model: any module; it is run once, to find its grid.
        img_size, in_chans: of the images.
        layer, layout, prefix_tokens: of the grid, as in `attach`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        img_size: int | tuple[int, int],
        in_chans: int,
        layer: str | None,
        layout: GridLayout,
        prefix_tokens: int | None,
    ) -> None:
        super().__init__(model, img_size=img_size, in_chans=in_chans)
        with self._quiet(), self._explained(*self.img_size):
            name = self.describe()
            place = find_grid(model, self._empty(), name=name, layer=layer, layout=layout, prefix=prefix_tokens)
        self.place, self.entry, self.layer = place, Ear(), Ear()
        self.taps: dict[int, AttentionTap] = {}
        self.survey: Survey | None = None
        self.handles = [
            model.register_forward_pre_hook(self.entry.images, with_kwargs=True),
            require_layer(model, place.layer, self.describe()).register_forward_hook(self.layer.output),
        ]

    def forward(self, view: View, needs: Needs = Needs()) -> Features:
        """Run the model ourselves, to learn sizes."""
        self.model(view.images)
        return self.heard()

    def shapes(self, needs: Needs = Needs(), view: ViewMaker = PlainView(), *, least: int = 2) -> Shapes:
        """Shapes of the features, as in `Backbone`; the grid of a hooked layer is the same before and after a norm."""
        if needs.every_grid:
            raise VitletError(
                f"attached tasks read one layer ({self.place.layer!r}): found a task that reads every block. Use"
                " another variant, or vitlet.Objective with a timm model."
            )
        shapes = super().shapes(Needs(), view, least=least)
        if not needs.attention:
            return shapes
        grids = {(shapes.last.height, shapes.last.width)}
        with self._quiet():
            self.survey = survey(self.model, self._empty().repeat(2, 1, 1, 1), grids)
        asked = self.survey.resolve(needs.attention, self.describe())
        if needs.attention != "all":
            for index in asked:
                self.taps[index] = self.survey.layers[index].tap(self.model, EXPLICIT_TOKENS)
                self.taps[index].listening = True
        return replace(shapes, attention=tuple(layer.shape for layer in self.survey.layers))

    def heard(self) -> Features:
        """Outputs of the last forward pass; cleared by this call."""
        images, output = self.entry.take(), self.layer.take()
        if images is None or output is None:
            what = "the model was not called with images" if images is None else f"{self.place.layer!r} did not run"
            raise VitletError(
                f"nothing was heard: {what} since the last loss. Call model(images) before loss(); a model that was"
                " compiled and run before is deaf: attach first, then compile."
            )
        view = View(images)
        attention = self.survey.read(self.taps, view) if self.survey is not None else {}
        return Features(images=images, last=self.place.grid(output, view), attention=attention)

    def remove(self) -> None:
        """Take everything off the model again."""
        for handle in self.handles:
            handle.remove()
        for index in sorted(self.taps, reverse=True):
            self.taps.pop(index).remove()


class Attached(nn.Module):
    """Tasks that are attached to a model; created by `attach`.

    Its parameters and state dict are only those of the tasks' heads. Under DDP, wrap it like the model and call it:
    ``heads = DistributedDataParallel(attached)``, ``loss = criterion(model(images), labels) + heads()``.

    Attributes:
        layer: name of the layer that is read.
        parts: latest unweighted loss of each task.
        metrics: latest metrics, as ``task/metric``.
    """

    def __init__(self, listening: Listening, terms: Sequence[Term]) -> None:
        super().__init__()
        self._listening = (listening,)  # in a tuple: the model is no part of this module
        self.layer = listening.place.layer
        self.terms = tuple(terms)
        self.parts: dict[str, Tensor] = {}
        self.metrics: dict[str, Tensor | float] = {}
        needs = joint_needs(terms)
        shapes = listening.shapes(needs)
        for term in terms:
            term.task.build(shapes)
        if needs.attention == "all":  # by now the tasks know which layers they read
            listening.shapes(joint_needs(terms))
        parameter = next(listening.model.parameters(), torch.empty(0))
        self.tasks = nn.ModuleDict({term.task.name: term.task for term in terms}).to(parameter.device)

    def loss(self, epoch: float | None = None) -> Tensor:
        """The weighted sum of the tasks' losses on the model's last forward pass.

        Args:
            epoch: needed where a weight follows a schedule.
        """
        weights = {term.task.name: term.weight_at(epoch) for term in self.terms}
        features = self._listening[0].heard()
        self.parts, self.metrics = {}, {}
        losses = []
        for term in self.terms:
            name = term.task.name
            loss, metrics = ask(self.tasks[name], features)
            self.parts[name] = loss.detach()
            self.metrics |= {f"{name}/{key}": value for key, value in metrics.items()}
            losses.append(loss * weights[name])
        return torch.stack(losses).sum()

    def forward(self, epoch: float | None = None) -> Tensor:
        """`loss`, for wrappers such as DDP."""
        return self.loss(epoch)

    def detach(self) -> None:
        """Take the hooks off the model: it is what it was before."""
        self._listening[0].remove()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *problem: object) -> None:
        self.detach()


def attach(
    model: nn.Module,
    tasks: Task | Term | Sequence[Task | Term],
    *,
    layer: str | None = None,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int | None = None,
    layout: GridLayout = "auto",
    prefix_tokens: int | None = None,
) -> Attached:
    """Attach tasks to any model; their loss is added to yours.

    The model is not changed: a hook saves the output of one layer in the forward pass, for ``attached.loss()``.

    Args:
        model: any module that is called with images ``(B, channels, height, width)``, among other arguments or not.
        tasks: one or several tasks at their suggested weights, or `Term` objects with weights.
        layer: name of the layer whose output is the token grid (default: the last layer that has one).
        img_size: side, or ``(height, width)``, of the images (default: from the model's configuration).
        in_chans: channels of the images (default: from the model).
        layout: layout of the layer's output, where its shape is ambiguous.
        prefix_tokens: number of class and register tokens in front of a sequence (default: found).

    Example:
        >>> attached = vitlet.attach(model, [vitlet.DRLoc()], img_size=64)
        >>> optimizer = torch.optim.AdamW([*model.parameters(), *attached.parameters()])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """
    terms = as_terms(tasks)
    names = [term.task.name for term in terms]
    if not terms or len(set(names)) < len(names):
        raise VitletError(f"attach requires tasks with different names, got {names}.")
    for term in terms:
        if term.view != PlainView():
            raise VitletError(
                f"{term.task.name} uses its own view of the images ({type(term.view).__name__}); attached tasks see"
                " what the"
                " model sees. Use vitlet.Objective, which runs the model on each view."
            )
    listening = Listening(
        model,
        img_size=_size(model) if img_size is None else img_size,
        in_chans=in_chans or _channels(model),
        layer=layer,
        layout=layout,
        prefix_tokens=prefix_tokens,
    )
    try:
        return Attached(listening, terms)
    except BaseException:
        listening.remove()
        raise


def _size(model: nn.Module) -> int | tuple[int, int]:
    """The image size that a model's own configuration names."""
    for owner in (getattr(model, "config", None), model):
        size = getattr(owner, "image_size", None)
        if isinstance(size, int):
            return size
        if isinstance(size, (tuple, list)) and len(size) == 2:
            return int(size[0]), int(size[1])
    if getattr(model, "pretrained_cfg", None):
        return model_img_size(model)
    raise VitletError(
        f"{type(model).__name__} has no known input size: pass img_size, such as img_size=224 or img_size=(64, 96)."
    )


def _channels(model: nn.Module) -> int:
    """The channels that a model says it takes, else those of its first convolution, else 3."""
    said = getattr(getattr(model, "config", None), "num_channels", None) or getattr(model, "in_chans", None)
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    return int(said or (first.in_channels if first is not None else 3))
