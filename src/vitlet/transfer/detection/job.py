"""The training of a detector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitlet.errors import VitletError, require_extra
from vitlet.transfer.common.backbone import Opened
from vitlet.transfer.common.job import TransferJob
from vitlet.transfer.common.pyramid import Levels, padded_size
from vitlet.transfer.common.splits import with_validation
from vitlet.transfer.detection.coco import CocoSplit, open_coco
from vitlet.transfer.detection.predict import Detector
from vitlet.transfer.detection.settings import DetectConfig


class DetectionJob(TransferJob):
    """Boxes and masks of objects; boxes alone where an object of the training images has no mask."""

    PREDICTOR, SCORES = Detector, Detector.SCORES

    config: DetectConfig
    splits: dict[str, CocoSplit]

    def open_data(self) -> dict[str, CocoSplit]:
        """COCO's layout, with objects to learn from."""
        require_extra("faster_coco_eval", "detection", "detection")
        splits = open_coco(Path(self.config.data))
        if "train" not in splits:
            found = ", ".join(str(split.file) for split in splits.values())
            raise VitletError(f"{self.config.data} has no training annotations; found {found}.")
        splits = with_validation(splits, self.config)
        if not any(image.trained for image in splits["train"].images):
            raise VitletError(f"{splits['train'].file} contains no objects to learn from.")
        return splits

    def canvas(self) -> tuple[int, int]:
        """The size that holds every image."""
        return padded_size(self.config.long_side, self.config.long_side, 32)

    def describe(self, opened: Opened, levels: Levels, **sizes: Any) -> dict[str, Any]:
        """Description with the fixed batch size, if any, the categories, and whether there are masks."""
        train, canvas = self.splits["train"], self.canvas() if self.config.tasks else opened.fixed
        described = super().describe(opened, levels, canvas=canvas)
        return {**described, "categories": list(train.categories), "masks": train.masks}

    def notes_on(self, opened: Opened) -> tuple[str, ...]:
        """Notes on masks and image sizes."""
        notes, (height, width), train = [*super().notes_on(opened)], self.canvas(), self.splits["train"]
        if not train.masks:
            notes.append(f"boxes only: {train.counts['objects without a mask']} objects have no mask")
        if self.config.tasks or opened.fixed:
            why = "tasks need one grid" if self.config.tasks else f"{opened.architecture} takes one image size"
            notes.append(f"images are padded to {height}x{width} pixels: {why}")
        return tuple(notes)
