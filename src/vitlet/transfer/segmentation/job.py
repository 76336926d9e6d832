"""The training of a segmenter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitlet.errors import VitletError
from vitlet.training.distributed import World
from vitlet.training.job import Batches
from vitlet.transfer.common.backbone import Opened
from vitlet.transfer.common.job import TransferJob
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.common.splits import with_validation
from vitlet.transfer.segmentation.masks import MaskedSplit, open_masks
from vitlet.transfer.segmentation.predict import Segmenter
from vitlet.transfer.segmentation.settings import SegmentConfig


class SegmentationJob(TransferJob):
    """A class for every pixel."""

    PREDICTOR, SCORES = Segmenter, Segmenter.SCORES

    config: SegmentConfig
    splits: dict[str, MaskedSplit]

    def batches(self, world: World) -> tuple[Batches, Any]:
        """Refuses batches whose parts are too small for batch norm."""
        if self.config.batch_size // (world.size * self.config.grad_accum_steps) < 2:
            raise VitletError(
                "the decoder normalises over a batch: each part of a step needs 2 images or more. Raise -b."
            )
        return super().batches(world)

    def open_data(self) -> dict[str, MaskedSplit]:
        """Folders of images and masks."""
        splits = open_masks(Path(self.config.data), self.config.ignore_index)
        if "train" not in splits:
            raise VitletError(f"{self.config.data} has no training images; found {', '.join(splits)}.")
        return with_validation(splits, self.config)

    def canvas(self) -> tuple[int, int]:
        """The size of training crops."""
        return self.config.crop_size

    def describe(self, opened: Opened, levels: Levels, **sizes: Any) -> dict[str, Any]:
        """Description with the classes; refuses crop sizes that the strides do not divide."""
        height, width = self.config.crop_size
        if height % levels.divisor or width % levels.divisor:
            raise VitletError(
                f"img_size is {height}x{width}; the coarsest map of this backbone has a stride of {levels.divisor},"
                " which needs to divide both sides."
            )
        train = self.splits["train"]
        return {**super().describe(opened, levels), "classes": list(train.classes), "shift": train.shift}
