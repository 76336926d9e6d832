"""Settings of ``vitlet detect train``; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlet.config.setting import AUG, COUNT, DATA, MODEL
from vitlet.errors import VitletError
from vitlet.transfer.common.settings import TransferConfig

STEP = 32
"""Step, in pixels, between the shorter sides of multi-scale training."""


@dataclass(frozen=True)
class DetectConfig(TransferConfig):
    """Settings of a run that trains a detector."""

    JOB: ClassVar[str] = "detect train"

    data: str = DATA("coco", "folder with annotations/instances_*.json and the images, or COCO files beside images")
    head: Literal["mask-rcnn", "cascade"] = MODEL(
        "mask-rcnn", "detection head: Mask R-CNN, or Cascade Mask R-CNN with three stages"
    )
    cascade_masks: Literal["last", "all"] = MODEL("last", "stages of head cascade that have a mask head")
    min_side: int = AUG(480, "smallest shorter side of training images; drawn in steps of 32 up to max_side", COUNT)
    max_side: int = AUG(800, "largest shorter side of training images, and the shorter side in evaluation", COUNT)
    long_side: int = AUG(1333, "maximum of the longer side", COUNT)
    head_width: int = MODEL(256, "channels of the feature pyramid and of the mask head", COUNT)
    box_width: int = MODEL(1024, "units of the box head", COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_side <= self.max_side <= self.long_side:
            raise VitletError(
                "min_side, max_side and long_side must not decrease, got"
                f" {self.min_side}, {self.max_side} and {self.long_side}."
            )
        if self.cascade_masks != "last" and self.head != "cascade":
            raise VitletError("cascade_masks requires head cascade. Add --head cascade.")
