"""timm's model interface for vitlet's models that are not derived from a timm class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from vitlet.values import ImageSize


def as_pair(size: int | Sequence[int]) -> ImageSize:
    """Height and width of a side, or of both."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


class LayeredModel(nn.Module):
    """Layers in a row, a norm after the last, and a head.

    A subclass builds its layers and ``norm``, ``head_drop`` and ``head``, has ``forward_head``, and says how a layer is
    run.
    """

    LAYERS: ClassVar[str]
    """Name of the list of layers."""

    pools: tuple[str, ...] = ("token", "avg", "")
    norm: nn.Module
    head: nn.Module
    head_hidden_size: int
    global_pool: str

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Input of the first layer, and positional embeddings that all layers add, if any."""
        return images, None

    def run_layer(self, layer: nn.Module, given: Tensor, positions: Tensor | None) -> tuple[Tensor, tuple[int, int]]:
        """Tokens ``(B, P + N, C)`` after a layer, and the size of their grid."""
        raise NotImplementedError

    def between(self, tokens: Tensor, size: tuple[int, int]) -> Tensor:
        """Input of the next layer."""
        return tokens

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores of output tokens."""
        raise NotImplementedError

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head; 0 classes for none."""
        if global_pool is not None:
            if global_pool not in self.pools:
                raise ValueError(f"global_pool must be one of {self.pools}, '' for none, got {global_pool!r}")
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head = nn.Linear(self.head_hidden_size, num_classes) if num_classes else nn.Identity()

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """timm's contract: the outputs of layers as maps, after that of the last layer as tokens."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be NCHW or NLC, got {output_fmt!r}")
        layers = getattr(self, self.LAYERS)
        wanted, last = feature_take_indices(len(layers), indices)
        run = layers[: last + 1] if stop_early else layers
        found: list[Tensor] = []
        given, positions = self.embed(x)
        tokens = given
        for index, layer in enumerate(run):
            tokens, size = self.run_layer(layer, given, positions)
            given = self.between(tokens, size)
            if index in wanted:
                shown = self.norm(tokens) if norm and index == len(layers) - 1 else tokens
                found.append(as_map(shown, size) if output_fmt == "NCHW" else shown[:, -size[0] * size[1] :])
        if intermediates_only:
            return found
        return (self.norm(tokens) if len(run) == len(layers) else tokens), found

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> Sequence[int]:
        """Drop the layers after the last one that is wanted."""
        layers = getattr(self, self.LAYERS)
        wanted, last = feature_take_indices(len(layers), indices)
        if prune_norm or last < len(layers) - 1:  # the norm is as wide as the last layer
            self.norm = nn.Identity()
        setattr(self, self.LAYERS, layers[: last + 1])
        if prune_head:
            self.reset_classifier(0, "")
        return list(wanted)

    def forward_features(self, images: Tensor) -> Tensor:
        """Tokens of the last layer after the norm, ``(B, P + N, C)``."""
        final: Tensor = self.forward_intermediates(images, indices=1)[0]
        return final

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        return self.forward_head(self.forward_features(images))


def as_map(tokens: Tensor, size: tuple[int, int]) -> Tensor:
    """Tokens ``(B, P + N, C)`` as a map ``(B, C, H, W)``, without those in front."""
    patches = tokens[:, tokens.shape[1] - size[0] * size[1] :]
    maps: Tensor = patches.transpose(1, 2).unflatten(2, size).contiguous()
    return maps


class Tokenizer(nn.Module):
    """Base class of tokenizers with the interface of timm's patch embedding.

    Args:
        stride: pixels of the image per token, along each axis.
        strict_img_size: refuse images of other sizes than ``img_size``.
        output_fmt: NHWC for tokens that keep their rows and columns, as timm's models ask for at any image size.
    """

    def __init__(self, stride: int, strict_img_size: bool, output_fmt: str | None) -> None:
        super().__init__()
        self.patch_size = (stride, stride)
        self.strict_img_size, self.output_fmt = strict_img_size, output_fmt

    def set_input_size(self, img_size: int | ImageSize | None = None, patch_size: Any = None) -> None:
        """Say which images are to come."""
        if img_size is not None:
            self.img_size = as_pair(img_size)
            self.grid_size = self.dynamic_feat_size(self.img_size)
            self.num_patches = self.grid_size[0] * self.grid_size[1]
        if min(self.grid_size) < 1:
            height, width = self.img_size
            raise ValueError(f"images of {height}x{width} pixels are too small for the soft splits")

    def feat_ratio(self, as_scalar: bool = True) -> Any:
        """Pixels of the image per token, along each axis."""
        return self.patch_size[0] if as_scalar else self.patch_size

    def dynamic_feat_size(self, img_size: ImageSize) -> tuple[int, int]:
        """Rows and columns of tokens for images of this size."""
        raise NotImplementedError

    def tokens(self, images: Tensor) -> Tensor:
        """``(B, C, H, W)`` to tokens in rows and columns, ``(B, rows, columns, C)``."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """``(B, C, H, W)`` to tokens ``(B, N, C)``."""
        size = as_pair(images.shape[2:])
        if self.strict_img_size and size != self.img_size:
            raise ValueError(f"images of {size[0]}x{size[1]} pixels, made for {self.img_size[0]}x{self.img_size[1]}")
        tokens = self.tokens(images)
        return tokens if self.output_fmt == "NHWC" else tokens.flatten(1, 2)
