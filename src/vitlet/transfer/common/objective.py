"""A backbone with a head for dense predictions: as something to train, and as something to use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from vitlet.backbones import Backbone
from vitlet.objective import Objective, Outcome, Term
from vitlet.tokens.features import Features, Needs
from vitlet.tokens.views import PlainView

GRIDS = Needs(every_grid=True)


class DenseHead(nn.Module, ABC):
    """Interface of heads on a backbone."""

    @abstractmethod
    def losses(self, features: Features, targets: Any) -> dict[str, Tensor]:
        """The losses of a batch by name."""

    @abstractmethod
    def predict(self, features: Features, sizes: Sequence[tuple[int, int]]) -> Any:
        """Predictions for each image; ``sizes`` are the image sizes before padding."""


class TransferObjective(Objective):
    """Main losses of a head on the backbone's grids, tasks beside them on the same forward pass.

    Args:
        backbone: a `Backbone` that gives every grid.
        head: what stands on it.
        terms: the weighted tasks.
    """

    main_needs = GRIDS

    def __init__(self, backbone: Backbone, head: DenseHead, terms: Sequence[Term] = ()) -> None:
        super().__init__(backbone, terms)
        self.head = head

    def forward(
        self, images: Tensor, labels: Any = None, weights: Mapping[str, float | Tensor] | None = None
    ) -> Outcome:
        """One step's losses; no logits, which nothing reads: DDP would wait for gradients through them."""
        return replace(super().forward(images, labels, weights), logits=None)

    def main(self, features: Features, labels: Any) -> dict[str, Tensor]:
        """The losses of the head."""
        return self.head.losses(features, labels)


class DenseModel(nn.Module):
    """The backbone and its head without anything that only training needs; this is what is exported."""

    def __init__(self, backbone: Backbone, head: DenseHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> Any:
        """Predictions for a batch of padded images."""
        return self.head.predict(self.backbone(PlainView()(images), GRIDS), sizes)
