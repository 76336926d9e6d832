"""Reconstruction: predicts the pixels of masked patches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.tasks.task import LEARNED_ERROR, Task, TaskResult, chance_verdict
from vitlet.tokens.features import Features, Shapes
from vitlet.tokens.masked import Masked
from vitlet.tokens.patch_views import from_patches, to_patches

__all__ = ["Reconstruction", "hidden_error", "reconstruction_loss", "sincos_positions"]

HEADS = 4
"""Of attention in the decoder; sines and cosines of rows and columns are four as well."""


def _normalised(pixels: Tensor, patch: int) -> Tensor:
    """Patches ``(B, N, values)`` of images, each with mean 0 and variance 1 over its pixels and channels."""
    values = to_patches(pixels.float(), patch).flatten(2)
    return F.layer_norm(values, values.shape[2:], eps=1e-6)


def _patch_errors(predicted: Tensor, pixels: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared errors over the masked patches: of the prediction, and of each patch's mean colour."""
    patch = pixels.shape[2] // cells.shape[1]
    wanted = _normalised(pixels, patch)
    said = to_patches(predicted.float(), patch).flatten(2)
    hidden = cells.flatten(1).float()  # B, N
    return tuple(  # type: ignore[return-value]
        (values.square().mean(2) * hidden).sum() / hidden.sum() for values in (said - wanted, wanted)
    )


def reconstruction_loss(predicted: Tensor, pixels: Tensor, cells: Tensor) -> Tensor:
    """Mean squared error over the masked patches, each normalised by its own mean and variance.

    Args:
        predicted: ``(B, channels, height, width)``, of normalised patches.
        pixels: the images before patches were hidden, of the same size.
        cells: ``(B, rows, columns)``, true where a patch is hidden.
    """
    return _patch_errors(predicted, pixels, cells)[0]


@torch.no_grad()
def hidden_error(predicted: Tensor, pixels: Tensor, cells: Tensor) -> Tensor:
    """`reconstruction_loss` in percent of the error of the patches' mean colours, ``(B, channels, height, width)``."""
    error, chance = _patch_errors(predicted, pixels, cells)
    return 100 * error / chance.clamp(min=1e-12)


def sincos_positions(coords: Tensor, width: int) -> Tensor:
    """Sines and cosines of coords ``(B or 1, N, 2)`` at ``width / 4`` wavelengths: ``(B or 1, N, width)``."""
    steps = torch.arange(width // 4, device=coords.device) / (width // 4)
    angles = (coords[..., None] * 10000**-steps).flatten(2)  # B or 1, N, width / 2
    return torch.cat([angles.sin(), angles.cos()], dim=2)


class Reconstruction(Task):
    """Reconstruct the pixels of masked patches.

    Das, Jain, Reilly and others: "Limited Data, Unlimited Potential: A Study on ViTs Augmented by Masked Autoencoders"
    (SSAT), WACV 2024, https://arxiv.org/abs/2310.20704: the classifier sees the full image, and a copy with most
    patches masked is reconstructed. Here masked patches are blank, so that any model works; a small decoder,
    ``(B, N, width)``, takes the last grid and predicts ``(B, channels, height, width)``. Each patch is normalised by
    its own mean and variance. ``error`` is in percent of the error of the patches' mean colours, so ``chance`` is 100.

    Args:
        ratio: fraction of the patches that are masked.
        share: fraction of a batch's images that is reconstructed, to save time.
        depth: number of transformer blocks of the decoder; 0 for a linear decoder.
        width: channels of the decoder, divisible by 4.

    Example:
        >>> task = vitlet.Reconstruction(ratio=0.75)
        >>> outcome = vitlet.Objective(vitlet.TimmBackbone(model), [task])(images, labels)
    """

    name = "reconstruction"
    suggested_weight = 1.0
    suggested_view = Masked()
    asks_for_places = False

    def __init__(self, *, ratio: float = 0.75, share: float = 1.0, depth: int = 2, width: int = 128) -> None:
        super().__init__()
        if depth < 0 or width < HEADS or width % HEADS:
            raise VitletError(
                f"the decoder of reconstruction has depth {depth} and width {width}; needed are 0 or more blocks, and a"
                f" width that is a multiple of {HEADS}."
            )
        self.suggested_view = Masked(ratio=ratio, share=share)
        self.depth, self.width, self.patch = depth, width, 0
        self.entry: nn.Module = nn.Identity()
        self.blocks = nn.ModuleList()
        self.exit: nn.Module = nn.Identity()

    def build(self, shapes: Shapes) -> None:
        grid, images = shapes.last, shapes.images
        if images is None or not shapes.hides:
            raise VitletError(
                "reconstruction requires a view with masked patches, found one without. Leave its view out, or give its"
                " term the view vitlet.Masked()."
            )
        self.patch = images.height // grid.height
        if (grid.height * self.patch, grid.width * self.patch) != (images.height, images.width):
            raise VitletError(
                f"reconstruction needs tokens of whole square patches: found {grid.height}x{grid.width} tokens on"
                f" images of {images.height}x{images.width} pixels. Use another --img-size."
            )
        self.entry = nn.Sequential(nn.LayerNorm(grid.channels), nn.Linear(grid.channels, self.width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                self.width, HEADS, 4 * self.width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(self.depth)
        )
        self.exit = nn.Sequential(nn.LayerNorm(self.width), nn.Linear(self.width, images.channels * self.patch**2))

    def forward(self, features: Features) -> TaskResult:
        hidden = features.hidden
        if hidden is None:
            raise VitletError("reconstruction draws what is hidden: found images of which nothing is.")
        height, width = hidden.pixels.shape[2:]
        tokens = self.entry(features.last.sequence())
        tokens = tokens + sincos_positions(features.last.coords, self.width).to(tokens.dtype)
        for block in self.blocks:
            tokens = block(tokens)
        patches = self.exit(tokens).unflatten(2, (-1, self.patch, self.patch))  # B, N, channels, P, P
        predicted = from_patches(patches, height, width)
        loss = reconstruction_loss(predicted, hidden.pixels, hidden.cells)
        error = hidden_error(predicted, hidden.pixels, hidden.cells)
        return TaskResult(loss, {"error": error, "chance": 100.0})

    def verdict(self, metrics: Mapping[str, float]) -> str | None:
        error = metrics["error"]
        finding = f"its error is {error:.0f} % of that of the patches' mean colours"
        return chance_verdict(error < LEARNED_ERROR * metrics["chance"], finding)
