"""Class activation maps (Grad-CAM) for any model, without per-model code.

The map is that of Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
ICCV 2017: channels of a token grid weighed by the mean gradient of the class's score, summed, negative parts cut off.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from vitlet.backbones import Backbone
from vitlet.errors import VitletError
from vitlet.tokens.features import Needs
from vitlet.tokens.views import View


class ClassMap(NamedTuple):
    """Class activation map over the token positions.

    Attributes:
        evidence: ``(B, H, W)`` from 0 up; all 0 where nothing speaks for the class.
        logits: ``(B, classes)`` of the same forward pass.
        from_end: which of the model's grids it was read from, 1 for the last.
    """

    evidence: Tensor
    logits: Tensor
    from_end: int


def class_map(backbone: Backbone, images: Tensor, labels: Tensor | None = None) -> ClassMap:
    """The map on the last token grid whose patches the class's score depends on.

    A model that reads its class from a class token takes nothing from the patches of its last block: there, the map
    is that of the block before.

    Args:
        backbone: in evaluation mode.
        images: ``(B, channels, height, width)``, normalised.
        labels: ``(B,)``: the classes; the most likely ones by default.
    """
    with torch.enable_grad():
        features = backbone(View(images.detach().clone().requires_grad_(True)), Needs(every_grid=True))
        logits = features.logits
        if logits is None or logits.shape[1] == 0 or not logits.requires_grad:
            raise VitletError("a class activation map requires class scores, but this model has none.")
        labels = logits.argmax(-1) if labels is None else labels
        score = logits.gather(1, labels[:, None]).sum()
        known = _ancestors(score)
        for from_end, grid in enumerate(reversed(features.every), start=1):
            gradient = _gradient(score, grid.tokens, known)
            if gradient is not None and bool(gradient.any()):
                weights = gradient.mean((2, 3), keepdim=True)  # B, C, 1, 1
                evidence = (weights * grid.tokens).sum(1).clamp(min=0)
                return ClassMap(evidence.detach().float(), logits.detach(), from_end)
    raise VitletError(f"the class scores of {backbone.describe()} depend on none of its token grids.")


def _ancestors(score: Tensor) -> set[Node]:
    """All autograd operations on the way from the inputs to the score."""
    waiting, seen = [get_gradient_edge(score).node], set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(before for before, _ in node.next_functions if before is not None)
    return seen


def _gradient(score: Tensor, tokens: Tensor, known: set[Node]) -> Tensor | None:
    """Gradient of the score at a grid that may be a copy, laid out anew, of what the model went on with.

    The copy itself has no part in the score. So the gradient is taken at the first operation behind it that has, and
    carried over into the grid's layout by the derivative of the copying: that of its transposed derivative.
    """
    edge: GradientEdge = get_gradient_edge(tokens)
    while edge.node not in known:
        before = [found for found in edge.node.next_functions if found[0] is not None]
        if not before:
            return None
        edge = GradientEdge(before[0][0], before[0][1])  # type: ignore[arg-type]
    (inner,) = torch.autograd.grad(score, [edge], retain_graph=True)
    direction = torch.zeros_like(tokens, requires_grad=True)
    (carried,) = torch.autograd.grad(tokens, [edge], direction, create_graph=True, retain_graph=True)
    (gradient,) = torch.autograd.grad(carried, [direction], inner)
    return gradient
