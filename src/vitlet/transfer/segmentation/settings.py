"""The settings of ``vitlet segment train``; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlet.config.setting import AUG, COUNT, DATA, MODEL, NONNEGATIVE, OPTIM
from vitlet.errors import VitletError
from vitlet.transfer.common.settings import TransferConfig, numbers
from vitlet.values import ImageSize


@dataclass(frozen=True)
class SegmentConfig(TransferConfig):
    """A run that trains a segmenter."""

    JOB: ClassVar[str] = "segment train"

    data: str = DATA("ade20k", "folder with images and masks, split into train and val or not; or ADE20K's layout")
    img_size: ImageSize | None = MODEL((512, 512), "training crops, a side or HEIGHTxWIDTH")
    short_side: int | None = AUG(None, "shorter side of images before they are rescaled (default: of img_size)", COUNT)
    rescale_min: float = AUG(0.5, "training images are rescaled by a factor between this ...")
    rescale_max: float = AUG(2.0, "... and this")
    photometric: bool = AUG(True, "change brightness, contrast, saturation and hue of training images")
    test_scales: str = AUG("1", "average the answers at these scales in evaluation, such as 0.5,0.75,1,1.25")
    ignore_index: int = DATA(255, "value of mask pixels that do not count", NONNEGATIVE)
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
                f"rescale_min and rescale_max are {self.rescale_min:g} and {self.rescale_max:g}; needed are two factors"
                " above 0, the second at least the first."
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
