"""The splits of a dataset for dense predictions, and images held out where none are for validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, TypeVar

import torch

from vitlet.data.randomness import mix_seed
from vitlet.errors import VitletError
from vitlet.transfer.common.settings import TransferConfig


class Split(Protocol):
    """Images of one split, with what is known of them."""

    @property
    def images(self) -> Sequence[Any]:
        """One record per image."""
        ...

    def note(self) -> str:
        """What there is, in words."""
        ...

    def parted(self, kept: Iterable[Any], held: Iterable[Any]) -> tuple[Self, Self]:
        """The split in two: images to train on, and images held out."""
        ...


AnySplit = TypeVar("AnySplit", bound=Split)


def with_validation(splits: dict[str, AnySplit], config: TransferConfig) -> dict[str, AnySplit]:
    """The splits; where none is for validation, a random share of the training images is held out."""
    if "train" not in splits or "val" in splits or config.val_fraction == 0:
        return splits
    images = splits["train"].images
    count = round(len(images) * config.val_fraction)
    if not 0 < count < len(images):
        raise VitletError(
            f"{len(images)} training images leave nothing to hold out {config.val_fraction:g} of. Add validation"
            " images, or use --val-fraction 0."
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(mix_seed(config.seed))).tolist()
    kept, held = (sorted(places) for places in (order[count:], order[:count]))
    train, val = splits["train"].parted(*([images[place] for place in places] for places in (kept, held)))
    return {**splits, "train": train, "val": val}
