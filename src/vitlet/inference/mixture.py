"""Several models as one: the weighted mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Mixture(nn.Module):
    """Networks on the same images and classes; answers with the logarithm of their mean probabilities.

    Args:
        models: that give logits.
        weights: whose sum is 1.
    """

    def __init__(self, models: Sequence[nn.Module], weights: Sequence[float]) -> None:
        super().__init__()
        self.models, self.weights = nn.ModuleList(models), tuple(weights)

    def forward(self, images: Tensor) -> Tensor:
        """``(B, channels, height, width)`` -> ``(B, classes)``."""
        logs = [model(images).log_softmax(-1) for model in self.models]
        shares = torch.tensor(self.weights, device=logs[0].device).log()
        return torch.stack(logs).add(shares[:, None, None]).logsumexp(0)


class MixtureNetwork(nn.Module):
    """The same, with the first network's embedding beside it."""

    def __init__(self, mixture: Mixture, first: nn.Module) -> None:
        super().__init__()
        self.mixture, self.first = mixture, first

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``(B, classes)`` and embeddings ``(B, features)``."""
        return self.mixture(images), self.first(images)[1]
