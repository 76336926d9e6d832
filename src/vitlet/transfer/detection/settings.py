"""The settings of ``vitlet detect train``; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlet.config.setting import AUG, COUNT, DATA, MODEL
from vitlet.errors import VitletError
from vitlet.transfer.common.settings import TransferConfig

STEP = 32
"""Shorter sides of multi-scale training are this far apart."""


@dataclass(frozen=True)
class DetectConfig(TransferConfig):
    """A run that trains a detector."""

    JOB: ClassVar[str] = "detect train"

    data: str = DATA("coco", "folder with annotations/instances_*.json and the images, or COCO files beside images")
    head: Literal["mask-rcnn", "cascade"] = MODEL("mask-rcnn", "Mask R-CNN, or three cascaded stages of it")
    cascade_masks: Literal["last", "all"] = MODEL("last", "of cascade: the stages that have a head for masks")
    min_side: int = AUG(480, "shorter side of training images, drawn in steps of 32 between this ...", COUNT)
    max_side: int = AUG(800, "... and this, which evaluation uses", COUNT)
    long_side: int = AUG(1333, "longer side at most", COUNT)
    head_width: int = MODEL(256, "channels of the feature pyramid and of the mask head", COUNT)
    box_width: int = MODEL(1024, "units of the box head", COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_side <= self.max_side <= self.long_side:
            raise VitletError(
                f"min_side, max_side and long_side are {self.min_side}, {self.max_side} and {self.long_side}; each"
                " needs to be at least the one before."
            )
        if self.cascade_masks != "last" and self.head != "cascade":
            raise VitletError("cascade_masks is given, but head is not cascade. Add --head cascade.")
