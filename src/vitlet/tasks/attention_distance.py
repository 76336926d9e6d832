"""Attention regularization by distance (ARViT): a penalty on attention to distant patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from vitlet.tasks.attention_penalty import AttentionTask, cost_of_maps
from vitlet.tokens.attention import AttentionMap, Heads, Penalty

__all__ = ["AttentionDistance", "attention_distance_loss"]


def linear_penalty(distances: Tensor) -> Tensor:
    """Penalty that is linear in distances ``(..., R, N)`` in cells, from 0.1 to about 1 in each row."""
    return (distances + 0.1).div_(distances.amax(-1, keepdim=True) + 1)


def smooth_sign_penalty(distances: Tensor) -> Tensor:
    """Penalty below 0 within a quarter of a row's largest distance, up to 1 beyond: near pairs are rewarded."""
    beyond = distances - distances.amax(-1, keepdim=True) / 4
    return beyond.square().add_(0.5).rsqrt_().mul_(beyond)


PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {"linear": linear_penalty, "smooth-sign": smooth_sign_penalty}
PENALTY_OF_PRESET = {"paper": "linear", "reference": "smooth-sign"}


def attention_distance_loss(
    maps: Tensor, size: tuple[int, int], *, preset: Literal["paper", "reference"] = "paper", heads: Heads = "averaged"
) -> Tensor:
    """The loss of attention maps ``(B, h, N, N)`` over a grid of ``size`` rows and columns."""
    penalty = PENALTIES[PENALTY_OF_PRESET[preset]]
    return cost_of_maps(maps, size, lambda rows, distances: penalty(distances), preset, heads)


class AttentionDistance(AttentionTask):
    """Penalize attention to distant patches.

    Mormille, Broni-Bediako, Atsumi: "Regularizing self-attention on vision transformers with 2D spatial distance loss",
    Artificial Life and Robotics 27, 2022 (ARViT), https://doi.org/10.1007/s10015-022-00774-7. The attention maps of a
    layer, ``(B, h, N, N)``, are weighted by a penalty that grows with the Manhattan distance between patches.

    Args:
        preset: paper: linear penalty, summed over the map; reference: as in the authors' released code, a smooth-sign
            penalty on maps rescaled to [0, 1], and the logarithm of the sum.
        layers: attention layers, counted from 1: 3, or 2,3, or -1 for the last, or all; auto: the middle one (the 3rd
            of 6, the paper's best).
        penalty: function of the distance: linear, or smooth-sign, which rewards near pairs (default: by preset).
        heads: penalty on the average over heads, or on each head (the same unless maps are rescaled).
        rows: attention to patches where there is a class token; normalised: rows sum to 1 over patches; plain: as it
            is, so that attention to the class token is free (default: paper normalised, reference plain).

    Example:
        >>> attached = vitlet.attach(model, [vitlet.AttentionDistance(layers="1")])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "attention-distance"
    suggested_weight = 0.3
    best_depth = 3 / 6  # on all five datasets of the paper

    def __init__(
        self,
        *,
        preset: Literal["paper", "reference"] = "paper",
        layers: str = "auto",
        penalty: Literal["linear", "smooth-sign"] | None = None,
        heads: Literal["averaged", "each"] = "averaged",
        rows: Literal["normalised", "plain"] | None = None,
    ) -> None:
        super().__init__(preset=preset, layers=layers, heads=heads, rows=rows)
        self.penalty = PENALTIES[penalty or PENALTY_OF_PRESET[preset]]

    def penalty_of(self, attention: AttentionMap, images: Tensor) -> Penalty:
        return lambda rows, distances: self.penalty(distances)
