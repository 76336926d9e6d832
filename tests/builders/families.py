"""A small model of every family of timm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import timm
import torch

Size = tuple[int, int]
SQUARE, LARGER, WIDE = (32, 32), (64, 64), (64, 96)
CLASSES = 5


@dataclass(frozen=True)
class Family:
    """A timm model made small, and what its last grid should be.

    Attributes:
        stride: pixels of the image per cell of the grid, along each axis.
        channels: of the last grid.
        options: for ``timm.create_model``.
        sized: whether the model is made for one image size.
        normed: channels of the grid that the head receives (by default the same), None if that is not a grid.
        norm: name of the norm between the two, where it is one module that works on ``(..., C)``.
        sizes: heights and widths to try.
        local: whether at random weights a token still depends most on its own place of an image this small.
    """

    name: str
    stride: int
    channels: int
    options: dict[str, Any] = field(default_factory=dict)
    sized: bool = False
    normed: int | None = -1
    norm: str | None = None
    sizes: tuple[Size, ...] = (SQUARE, LARGER, WIDE)
    local: bool = True

    def grid(self, size: Size) -> Size:
        return -(-size[0] // self.stride), -(-size[1] // self.stride)

    def make(self, size: Size) -> Any:
        """The model with every parameter moved off its initial value, so that no layer is 0 or an identity."""
        sized = {"img_size": size} if self.sized else {}
        model = timm.create_model(self.name, num_classes=CLASSES, **self.options, **sized)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
        return model.eval()


def flat(name: str, **more: Any) -> Family:
    options = {"patch_size": 8, "depth": 2, "embed_dim": 96, "num_heads": 3}
    return Family(name, 8, 96, options, sized=True, **more)


def swin(name: str, **more: Any) -> Family:
    options = {"embed_dim": 24, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4}
    return Family(name, 8, 48, options, sized=True, **more)


SHALLOW = {"depths": (1, 1, 1, 1)}
FAMILIES = [
    flat("vit_tiny_patch16_224", norm="norm"),
    flat("deit_tiny_distilled_patch16_224", norm="norm"),
    flat("deit3_small_patch16_224", norm="norm"),
    flat("vit_little_patch16_reg4_gap_256"),
    flat("vit_small_patch14_reg4_dinov2", norm="norm"),
    flat("vit_small_patch16_dinov3", norm="norm"),
    flat("eva02_tiny_patch14_224"),
    flat("beit_base_patch16_224"),
    flat("cait_xxs24_224"),
    Family("xcit_nano_12_p8_224", 8, 128, {"depth": 2}, sized=True),
    Family("mixer_s16_224", 16, 512, {"mlp_ratio": (0.1, 0.1)}, sized=True, norm="norm"),
    swin("swin_tiny_patch4_window7_224", norm="norm"),
    swin("swinv2_tiny_window8_256", norm="norm"),
    Family("hiera_tiny_224", 32, 192, {"stages": (1, 1, 1, 1), "embed_dim": 24}, sized=True),
    Family("pit_ti_distilled_224", 32, 256, {"depth": (1, 1, 1)}, sized=True, normed=None),
    Family("pvt_v2_b0", 32, 256, SHALLOW),
    Family("twins_svt_small", 32, 512, SHALLOW, sized=True, norm="norm"),
    Family("mvitv2_tiny", 32, 768, sized=True, norm="norm", sizes=(SQUARE, LARGER)),  # square images only
    Family("davit_tiny", 32, 192, SHALLOW | {"embed_dims": (24, 48, 96, 192), "num_heads": (1, 2, 4, 8)}),
    Family("coatnet_pico_rw_224", 32, 96, SHALLOW | {"embed_dim": (16, 32, 64, 96), "stem_width": 16}, sized=True),
    Family("maxvit_rmlp_pico_rw_256", 32, 256, SHALLOW, sized=True),
    Family("levit_128s", 64, 384, sized=True, sizes=(SQUARE, WIDE, (128, 192)), local=False),
    Family("efficientformerv2_s0", 32, 176, sized=True),
    Family("mobilevit_xxs", 32, 320, local=False),
    Family("tiny_vit_5m_224", 32, 320, SHALLOW, local=False),
    Family("fastvit_t8", 32, 384, {"layers": (1, 1, 1, 1)}, normed=768, local=False),
    Family("resnet10t", 32, 512),
    Family("convnext_atto", 32, 320, SHALLOW),
    Family("regnety_002", 32, 368),
    Family("efficientnet_b0", 32, 320, normed=1280, local=False),
    Family("mobilenetv3_small_050", 32, 288, local=False),
]
