"""The settings of ``vitlet segment train``; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitlet.config import setting
from vitlet.errors import VitletError
from vitlet.transfer.common.settings import UNUSED, TransferConfig, numbers
from vitlet.values import ImageSize


@dataclass(frozen=True)
class SegmentConfig(TransferConfig):
    """A run that trains a segmenter."""

    JOB: ClassVar[str] = "segment train"
    UNUSED: ClassVar[frozenset[str]] = UNUSED - {"img_size"}

    data: str = setting("ade20k", "folder with images and masks, split into train and val or not; or ADE20K's layout")
    img_size: ImageSize | None = setting((512, 512), "training crops, a side or HEIGHTxWIDTH")
    short_side: int | None = setting(None, "shorter side of images before they are rescaled (default: of img_size)")
    rescale_min: float = setting(0.5, "training images are rescaled by a factor between this ...")
    rescale_max: float = setting(2.0, "... and this")
    photometric: bool = setting(True, "change brightness, contrast, saturation and hue of training images")
    test_scales: str = setting("1", "average the answers at these scales in evaluation, such as 0.5,0.75,1,1.25")
    ignore_index: int = setting(255, "value of mask pixels that do not count")
    decoder_channels: int = setting(512, "channels of UPerNet")
    auxiliary: float = setting(0.4, "weight of the auxiliary head's loss; 0 for none")
    epochs: int = setting(100, "passes over the training images")
    lr: float = setting(6e-5, "peak learning rate of AdamW")
    weight_decay: float = setting(0.01, "weight decay; none on biases, norms and other 1-D parameters")
    sched: Literal["step", "linear", "cosine"] = setting("linear", "of the learning rate after its warm-up")

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers("test_scales", self.test_scales)
        if not 0 < self.rescale_min <= self.rescale_max:
            raise VitletError(
                f"rescale_min and rescale_max are {self.rescale_min:g} and {self.rescale_max:g}; needed are two factors"
                " above 0, the second at least the first."
            )
        for name, least in (("decoder_channels", 1), ("auxiliary", 0), ("ignore_index", 0), ("short_side", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise VitletError(f"{name} is {value:g}; it needs to be {least} or more.")

    @property
    def crop_size(self) -> tuple[int, int]:
        """Height and width of training crops."""
        assert self.img_size is not None
        return self.img_size

    @property
    def base(self) -> int:
        """Shorter side of images at scale 1."""
        return self.short_side or min(self.crop_size)
