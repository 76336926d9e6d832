"""Settings of ``vitlet segment train``; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlet.config.setting import AUG, COUNT, DATA, MODEL, NONNEGATIVE, OPTIM
from vitlet.errors import VitletError
from vitlet.transfer.common.settings import TransferConfig, numbers
from vitlet.values import ImageSize


@dataclass(frozen=True)
class SegmentConfig(TransferConfig):
    """Settings of a run that trains a segmentation model."""

    JOB: ClassVar[str] = "segment train"

    data: str = DATA("ade20k", "folder with images and masks, split into train and val or not; or ADE20K's layout")
    img_size: ImageSize | None = MODEL((512, 512), "size of training crops, a side or HEIGHTxWIDTH")
    short_side: int | None = AUG(None, "shorter side of images before rescaling (default: that of img_size)", COUNT)
    rescale_min: float = AUG(0.5, "smallest factor of random rescaling of training images")
    rescale_max: float = AUG(2.0, "largest factor of random rescaling of training images")
    photometric: bool = AUG(True, "jitter brightness, contrast, saturation and hue of training images")
    test_scales: str = AUG("1", "scales over which evaluation averages predictions, such as 0.5,0.75,1,1.25")
    ignore_index: int = DATA(255, "value of mask pixels to ignore", NONNEGATIVE)
    decoder_channels: int = MODEL(512, "channels of UPerNet", COUNT)
    auxiliary: float = OPTIM(0.4, "weight of the auxiliary head's loss; 0 for none", NONNEGATIVE)
    epochs: int = TransferConfig.redefault("epochs", 100)
    lr: float = TransferConfig.redefault("lr", 6e-5)
    weight_decay: float = TransferConfig.redefault("weight_decay", 0.01)
    sched: Literal["step", "linear", "cosine"] = TransferConfig.redefault("sched", "linear")

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers("test_scales", self.test_scales)
        if not 0 < self.rescale_min <= self.rescale_max:
            raise VitletError(
                "rescale_min must be greater than 0 and at most rescale_max, got"
                f" {self.rescale_min:g} and {self.rescale_max:g}."
            )

    @property
    def crop_size(self) -> tuple[int, int]:
        """Height and width of training crops."""
        assert self.img_size is not None
        return self.img_size

    @property
    def base(self) -> int:
        """Shorter side of images at scale 1."""
        return self.short_side or min(self.crop_size)
