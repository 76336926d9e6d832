"""A trained model that guides another one: frozen, and called with the images that the student sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.tokens.features import Features, Needs, Shapes
from vitlet.tokens.views import View

Statistics = tuple[Sequence[float], Sequence[float]]
"""Mean and standard deviation per channel, with which images were normalised."""

NO_CHANGE: Statistics = ((0.0,), (1.0,))


class Teacher(nn.Module):
    """Frozen teacher model in evaluation mode; images are normalized again if its normalization differs.

    Args:
        backbone: the model, such as ``vitlet.TimmBackbone(model)``.
        seen: how the student's images are normalised; None: as the teacher's.
        own: how the teacher's images were.
        unlike: how its classes differ from the student's, in a sentence; empty where they do not.

    Attributes:
        sha256: checksum of the file of its weights; empty where there is none.
    """

    mean: Tensor
    std: Tensor
    own_mean: Tensor
    own_std: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        seen: Statistics | None = None,
        own: Statistics | None = None,
        unlike: str = "",
        sha256: str = "",
    ) -> None:
        super().__init__()
        if not hasattr(backbone, "shapes"):
            raise VitletError(
                f"the teacher is a {type(backbone).__name__}; needed is a backbone, which shows its grids:"
                " teacher=vitlet.TimmBackbone(model)."
            )
        self.backbone, self.unlike, self.sha256 = backbone.requires_grad_(False), unlike, sha256
        self.same = seen is None or own is None or seen == own
        (mean, std), (own_mean, own_std) = seen or NO_CHANGE, own or NO_CHANGE
        for name, values in {"mean": mean, "std": std, "own_mean": own_mean, "own_std": own_std}.items():
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1))
        self.train(False)

    def train(self, mode: bool = True) -> Teacher:
        """Stays in evaluation mode."""
        return super().train(False)

    def shapes(self, needs: Needs) -> Shapes:
        """Sizes of its grids; refuses images that it cannot take."""
        backbone: Any = self.backbone
        found: Shapes = backbone.shapes(needs, least=1)
        return found

    @torch.no_grad()
    def forward(self, images: Tensor, needs: Needs) -> Features:
        """Feature maps and logits of the student's images ``(B, channels, height, width)``, without gradient."""
        if not self.same:
            images = ((images * self.std + self.mean) - self.own_mean) / self.own_std
        weights = next(self.backbone.parameters(), images)
        found: Features = self.backbone(View(images.to(weights.dtype)), needs)
        return found
