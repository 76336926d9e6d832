"""Attention regularization by similarity (ARViT): a penalty on attention to patches of different style."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlet.errors import VitletError
from vitlet.tasks.attention_penalty import AttentionTask, cost_of_maps
from vitlet.tasks.task import TaskResult
from vitlet.tokens.attention import AttentionMap, Heads, Penalty
from vitlet.tokens.features import Features, Shapes

__all__ = ["AttentionSimilarity", "attention_similarity_loss", "gram_matrices"]

SMALL_POWER = 0.1
"""The exponent of the released code's distance between Gram matrices."""
THRESHOLD = 0.17
"""Differences below this share of an image's largest are rewarded there."""
GRAM_ROWS = 256
"""Rows at a time when the largest difference is looked for."""


@torch.no_grad()
def gram_matrices(images: Tensor, height: int, width: int, region: int = 1) -> Tensor:
    """Gram matrix of the pixels under each token: ``(B, H*W, C*C)``.

    The matrix of a patch of p x p pixels is ``F F^T / (C p p)``, a mean over pixels; so that of a larger region is the
    mean over its patches.

    Args:
        images: ``(B, C, height, width)`` of pixels.
        height: H, rows of the token grid.
        width: W, its columns.
        region: side of a region in tokens; all tokens of a region get its matrix.
    """
    with torch.autocast(images.device.type, enabled=False):
        images = images.to(torch.promote_types(images.dtype, torch.float32))
        products = (images[:, :, None] * images[:, None]).flatten(1, 2) / images.shape[1]  # B, C*C, pixels
        grams = F.adaptive_avg_pool2d(products, (height, width))
        if region > 1:
            grams = F.avg_pool2d(grams, region, ceil_mode=True)
            grams = grams.repeat_interleave(region, 2).repeat_interleave(region, 3)[:, :, :height, :width]
    return grams.flatten(2).transpose(1, 2)


class GramPenalty:
    """Penalties on pairs of tokens from their Gram matrices ``(B, G, N, C*C)``, for some rows or for all."""

    def __init__(self, grams: Tensor, preset: str) -> None:
        self.grams, self.preset = grams, preset
        self.largest: Tensor | None = None

    @torch.no_grad()
    def __call__(self, rows: slice, distances: Tensor) -> Tensor:
        """Penalties ``(B, G, R, N)``; the coordinates are not used."""
        with torch.autocast(self.grams.device.type, enabled=False):
            if self.preset == "paper":
                return self._differences(rows, 2.0).square_().div_(self.grams.shape[-1])  # mean squared error
            found = self._differences(rows, SMALL_POWER)
            if self.largest is None:
                starts = range(0, self.grams.shape[2], GRAM_ROWS)
                parts = [found] if rows == slice(None) else [
                    self._differences(slice(start, start + GRAM_ROWS), SMALL_POWER) for start in starts
                ]  # fmt: skip
                largest = torch.stack([part.amax((1, 2, 3), keepdim=True) for part in parts]).amax(0)
                self.largest = largest.clamp(min=torch.finfo(largest.dtype).tiny)
            return found / self.largest - THRESHOLD

    def _differences(self, rows: slice, power: float) -> Tensor:
        return torch.cdist(self.grams[:, :, rows], self.grams, p=power, compute_mode="donot_use_mm_for_euclid_dist")


def attention_similarity_loss(
    maps: Tensor,
    images: Tensor,
    size: tuple[int, int],
    *,
    preset: Literal["paper", "reference"] = "paper",
    heads: Heads = "averaged",
    region: int = 1,
) -> Tensor:
    """The loss of attention maps ``(B, h, N, N)`` over a grid of ``size`` rows and columns, on these images."""
    penalty = GramPenalty(gram_matrices(images, *size, region)[:, None], preset)
    return cost_of_maps(maps, size, penalty, preset, heads)


class AttentionSimilarity(AttentionTask):
    """Penalize attention between patches of different style.

    Mormille, Broni-Bediako, Atsumi: "Introducing inductive bias on vision transformers through Gram matrix similarity
    based regularization" (ARViT), https://doi.org/10.1007/s10015-022-00845-9. The attention maps of a layer,
    ``(B, h, N, N)``, are weighted by the distance between the Gram matrices of the two patches.

    Args:
        preset: paper: mean squared error between Gram matrices, summed over the map; reference: as in the authors'
            released code, a distance of power 0.1 minus a threshold, on maps rescaled to [0, 1], and the logarithm of
            the sum.
        layers: attention layers, counted from 1: 5, or 4,5, or -1 for the last, or all; auto: the 5th of 6, the paper's
            best, or at the same relative depth.
        region: side, in tokens, of the regions whose Gram matrices are compared.
        heads: penalty on the average over heads, or on each head (the same unless maps are rescaled).
        rows: attention to patches where there is a class token; normalised: rows sum to 1 over patches; plain: as it
            is, so that attention to the class token is free (default: paper normalised, reference plain).

    Example:
        >>> attached = vitlet.attach(model, [vitlet.AttentionSimilarity(layers="-1")])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "attention-similarity"
    suggested_weight = 0.03
    best_depth = 5 / 6  # on three of the paper's five datasets

    def __init__(
        self,
        *,
        preset: Literal["paper", "reference"] = "paper",
        layers: str = "auto",
        region: int = 1,
        heads: Literal["averaged", "each"] = "averaged",
        rows: Literal["normalised", "plain"] | None = None,
    ) -> None:
        super().__init__(preset=preset, layers=layers, heads=heads, rows=rows)
        if region < 1:
            raise VitletError(f"attention-similarity needs regions of at least 1 token a side, found {region}.")
        self.preset, self.region = preset, region

    def penalty_of(self, attention: AttentionMap, images: Tensor) -> Penalty:
        grams = gram_matrices(images, attention.shape.height, attention.shape.width, self.region)
        return GramPenalty(grams[:, None] if attention.cells is None else grams[:, attention.cells], self.preset)

    def build(self, shapes: Shapes) -> None:
        super().build(shapes)
        for index in self.layers:
            height, width = shapes.attention[index].height, shapes.attention[index].width
            if self.region >= max(height, width):
                raise VitletError(
                    f"attention-similarity has regions of {self.region} tokens a side, but layer {index + 1} has a grid"
                    f" of {height}x{width}: there would be one region. Use a smaller region."
                )

    def forward(self, features: Features) -> TaskResult:
        if self.region > 1 and features.last.coords.shape[0] != 1:
            raise VitletError(
                "regions join neighbouring patches: found a view that moves them. Use region 1 with this view."
            )
        return super().forward(features)
