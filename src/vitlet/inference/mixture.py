"""Several models as one: the weighted mean of their probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.data.preprocess import Preprocess
from vitlet.models.factory import rebuild

ENSEMBLE = "ensemble"
"""The architecture that an export of several networks names; its arguments are those of `rebuild_mixture`."""


class OwnInput(nn.Module):
    """Convert an ensemble's input images to those of a member: crop, resize, normalize.

    Args:
        common: preprocessing of the ensemble's images.
        own: that of the member.
    """

    def __init__(self, common: Preprocess, own: Preprocess) -> None:
        super().__init__()
        self.size, (height, width), share = own.size, common.size, min(1.0, own.crop_pct / common.crop_pct)
        self.crop = (round(height * share), round(width * share))
        # (x * std + mean - own mean) / own std, as one product and one sum
        self.scale = [std / other for std, other in zip(common.std, own.std, strict=True)]
        pairs = zip(common.mean, own.mean, own.std, strict=True)
        self.shift = [(mean - other) / std for mean, other, std in pairs]

    def forward(self, images: Tensor) -> Tensor:
        """``(B, channels, height, width)`` -> ``(B, channels, *own size)``."""
        top, left = ((side - cut) // 2 for side, cut in zip(images.shape[2:], self.crop, strict=True))
        if (top, left) != (0, 0):
            images = images[:, :, top : top + self.crop[0], left : left + self.crop[1]]
        if tuple(images.shape[2:]) != tuple(self.size):
            images = F.interpolate(images, self.size, mode="bilinear", align_corners=False)
        if any(scale != 1 for scale in self.scale) or any(self.shift):
            scale, shift = (images.new_tensor(each)[:, None, None] for each in (self.scale, self.shift))
            images = images * scale + shift
        return images


class Mixture(nn.Module):
    """Ensemble as one module: the logarithm of the mean probabilities of models with the same classes.

    It has timm's two halves of a network, so that whatever takes a timm model takes it. Its embedding is that of the
    first network.

    Args:
        models: timm models.
        weights: of their probabilities; the sum is 1.
        preprocesses: of the images of each.
    """

    def __init__(
        self, models: Sequence[nn.Module], weights: Sequence[float], preprocesses: Sequence[Preprocess]
    ) -> None:
        super().__init__()
        self.models, self.weights = nn.ModuleList(models), tuple(weights)
        self.preprocess = common_preprocess(preprocesses)
        self.inputs = nn.ModuleList(OwnInput(self.preprocess, own) for own in preprocesses)

    def forward_features(self, images: Tensor) -> list[Tensor]:
        """Features of each model."""
        pairs: Any = zip(self.inputs, self.models, strict=True)
        return [model.forward_features(own(images)) for own, model in pairs]

    def forward_head(self, features: Sequence[Tensor], pre_logits: bool = False) -> Tensor:
        """Logits ``(B, classes)``; or the first model's features before its classifier."""
        models: Any = self.models
        if pre_logits:
            embedding: Tensor = models[0].forward_head(features[0], pre_logits=True)
            return embedding
        found = [
            model.forward_head(each).float().log_softmax(-1) + math.log(weight)
            for model, each, weight in zip(models, features, self.weights, strict=True)
        ]
        return torch.stack(found).logsumexp(0)

    def forward(self, images: Tensor) -> Tensor:
        """``(B, channels, height, width)`` -> ``(B, classes)``."""
        return self.forward_head(self.forward_features(images))


def common_preprocess(found: Sequence[Preprocess]) -> Preprocess:
    """The largest image and the widest crop of several, normalised as the first wants it."""
    size = max((each.size for each in found), key=math.prod)
    widest = max(each.crop_pct for each in found)
    return Preprocess(size, crop_pct=widest, mean=found[0].mean, std=found[0].std)


def rebuild_mixture(members: Sequence[Mapping[str, Any]], weights: Sequence[float], *, classes: int) -> Mixture:
    """The mixture of an export, with fresh weights.

    Args:
        members: ``architecture``, ``model_args`` and ``preprocessing`` of each, as an export of it alone would say.
        weights: of their probabilities.
        classes: how many.
    """
    models = [rebuild(str(each["architecture"]), each["model_args"], classes=classes) for each in members]
    names = ("crop_pct", "mean", "std")
    own = [each["preprocessing"] for each in members]
    preprocesses = [Preprocess(tuple(each["input_size"][1:]), **{name: each[name] for name in names}) for each in own]
    return Mixture(models, [float(weight) for weight in weights], preprocesses)
