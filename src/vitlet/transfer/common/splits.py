"""The splits of a dataset for dense predictions, and images held out where none are for validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, TypeVar

from vitlet.data.splits import hold_out_items
from vitlet.transfer.common.settings import TransferConfig


class Split(Protocol):
    """Images of one split, with what is known of them."""

    @property
    def images(self) -> Sequence[Any]:
        """One record per image."""
        ...

    def note(self) -> str:
        """Description of the splits."""
        ...

    def parted(self, kept: Iterable[Any], held: Iterable[Any]) -> tuple[Self, Self]:
        """The split in two: images to train on, and images held out."""
        ...


AnySplit = TypeVar("AnySplit", bound=Split)


def with_validation(splits: dict[str, AnySplit], config: TransferConfig) -> dict[str, AnySplit]:
    """The splits; where none is for validation, a random share of the training images is held out."""
    if "train" not in splits or "val" in splits or config.val_fraction == 0:
        return splits
    kept, held = hold_out_items(splits["train"].images, config.val_fraction, config.seed)
    train, val = splits["train"].parted(kept, held)
    return {**splits, "train": train, "val": val}
