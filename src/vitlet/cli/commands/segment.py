"""``vitlet segment train|evaluate|predict``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vitlet.cli.transfer_commands import TransferCommand
from vitlet.transfer.recipes import SEGMENTATION_RECIPES
from vitlet.transfer.segmentation.settings import SegmentConfig

if TYPE_CHECKING:
    from vitlet.transfer.segmentation.job import SegmentationJob


class SegmentCommand(TransferCommand):
    """The class of every pixel."""

    NAME = "segment"
    ABOUT = "Find the class of every pixel with UPerNet on a trained backbone."
    PREDICTS = "Classes of every pixel, as pictures and as masks of class numbers."
    DATA = "folder of images and masks"
    SETTINGS, RECIPES = SegmentConfig, SEGMENTATION_RECIPES

    def job(self) -> type[SegmentationJob]:
        """The training of a segmenter."""
        from vitlet.transfer.segmentation.job import SegmentationJob

        return SegmentationJob

    def lines(self, answer: Mapping[str, Any]) -> Iterator[str]:
        """The shares of the largest classes."""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in list(answer["shares"].items())[:5] if share > 0)
        yield f"{answer['image']}: {shares}; picture {answer['picture']}, mask {answer['mask']}"


run = SegmentCommand().run
