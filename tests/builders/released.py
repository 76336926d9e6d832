"""Files of trained weights as other projects have released them, made of timm's own models with random weights."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from torch import Tensor, nn

STEM = {"conv1": "seq.0", "conv2": "seq.2"}


def sam_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's TinyViT -> MobileSAM's names, the other way round than the code under test; and the other parts of SAM."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        parts = name.split(".")
        if parts[:2] == ["head", "fc"]:
            continue
        if parts[0] == "patch_embed":
            parts[1] = STEM[parts[1]]
        elif parts[0] == "stages":
            down = parts[2] == "downsample"
            parts[:2] = ["layers", str(int(parts[1]) - down)]
        elif parts[:2] == ["head", "norm"]:
            parts[:2] = ["norm_head"]
        if parts[-2:] == ["conv", "weight"]:
            parts[-2] = "c"
        renamed[".".join(["image_encoder", *parts])] = tensor
    others = {
        "image_encoder.neck.0.weight": torch.ones(256, 320, 1, 1),
        "image_encoder.head.weight": torch.ones(1, 320),
        "image_encoder.head.bias": torch.ones(1),
        "image_encoder.layers.1.blocks.0.attn.attention_bias_idxs": torch.zeros(49, 49, dtype=torch.long),
        "mask_decoder.iou_token.weight": torch.ones(1, 256),
        "prompt_encoder.no_mask_embed.weight": torch.ones(1, 256),
    }
    return renamed | others


def mobile_sam(file: Path) -> nn.Module:
    """Write a file of MobileSAM's layout; returns the timm model whose weights it holds."""
    model: nn.Module = timm.create_model("tiny_vit_5m_224", num_classes=0)
    for name, tensor in model.state_dict().items():
        if name.endswith(("running_mean", "attention_biases", "norm.bias")):
            tensor.normal_(std=0.1)  # zero otherwise: a mix-up would not be seen
    torch.save(sam_names(model.state_dict()), file)
    return model.eval()


def lite_medsam(file: Path) -> nn.Module:
    """The same of LiteMedSAM's, whose stem is another one and which has no last norm."""
    model: nn.Module = timm.create_model("tiny_vit_5m_224", num_classes=0)
    weights = sam_names(model.state_dict())
    for place, shape in {"0": (32, 3, 1, 1), "2": (64, 32, 1, 1)}.items():
        weights[f"image_encoder.patch_embed.seq.{place}.c.weight"] = torch.ones(shape)
    torch.save({name: one for name, one in weights.items() if "head" not in name}, file)
    return model.eval()
