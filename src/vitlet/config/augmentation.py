"""Settings of data augmentation, in presets and one by one, and of class balancing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from vitlet.config.setting import AUG, NONNEGATIVE, POSITIVE_SHARE, SHARE, Settings
from vitlet.errors import VitletError

_PLAIN = {
    "scale": 0.08,
    "hflip": 0.5,
    "aa": "off",
    "color_jitter": 0.0,
    "grayscale_prob": 0.0,
    "reprob": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "mixup_prob": 1.0,
    "mixup_off_epoch": 0.0,
}
_SWIN = {"aa": "rand-m9-mstd0.5-inc1", "reprob": 0.25, "smoothing": 0.1, "mixup": 0.8, "cutmix": 1.0}

AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "none": _PLAIN | {"crop": "none", "hflip": 0.0, "smoothing": 0.0},
    "standard": _PLAIN
    | {"crop": "resized", "scale": 0.35, "color_jitter": 0.3, "grayscale_prob": 0.2, "smoothing": 0.1}
    | {"mixup": 1.0, "cutmix": 1.0, "mixup_prob": 0.5, "mixup_off_epoch": None},  # None: 0.9 of the epochs
    "light": _PLAIN | {"crop": "auto", "scale": 0.35, "smoothing": 0.1},
    "drloc": _PLAIN | {"crop": "auto"} | _SWIN,
    "relvit": _PLAIN | {"crop": "auto", "smoothing": 0.0},
}
"""The values of each preset. standard: crops, colour, and half of the batches mixed until the last tenth of the run;
light: crops and flips; drloc: the Swin and DeiT recipe; relvit: crop and flip only."""

PRESET = frozenset(AUGMENTATIONS["none"])
"""Names of the settings that a preset fills in."""


@dataclass(frozen=True)
class AugmentationSettings(Settings):
    """An augmentation preset, and settings that override parts of it."""

    aug: Literal["standard", "light", "none", "drloc", "relvit"] = AUG(
        "light", "augmentation preset; the other settings of this group override it"
    )
    crop: Literal["auto", "resized", "padded", "none"] | None = AUG(
        None,
        "random crop; resized: random area; padded: small shift; auto: padded up to 64 px (default: by preset)",
    )
    scale: float | None = AUG(
        None, "smallest area of a resized crop, as a fraction of the image (default: by preset)", POSITIVE_SHARE
    )
    hflip: float | None = AUG(
        None, "probability of a horizontal flip; use 0 for digits and text (default: by preset)", SHARE
    )
    aa: str | None = AUG(None, "RandAugment such as rand-m9-mstd0.5-inc1, or off (default: by preset)")
    color_jitter: float | None = AUG(
        None, "strength of brightness, contrast and saturation jitter (default: by preset)", SHARE
    )
    grayscale_prob: float | None = AUG(
        None, "probability of blending an image with its grey version (default: by preset)", SHARE
    )
    reprob: float | None = AUG(None, "probability of random erasing (default: by preset)", SHARE)
    smoothing: float | None = AUG(None, "label smoothing (default: by preset)", SHARE)
    mixup: float | None = AUG(None, "mixup alpha, 0 for none (default: by preset)", NONNEGATIVE)
    cutmix: float | None = AUG(None, "cutmix alpha, 0 for none (default: by preset)", NONNEGATIVE)
    mixup_prob: float | None = AUG(None, "probability of mixup or cutmix for a batch (default: by preset)", SHARE)
    mixup_off_epoch: float | None = AUG(
        None, "epoch after which mixup and cutmix end, 0 for never (default: by preset)", NONNEGATIVE
    )
    tta: Literal["none", "flip"] = AUG(
        "none", "test-time augmentation; flip: average the predictions for each image and its mirror image"
    )
    balance: Literal["none", "sampler", "weights"] = AUG(
        "none", "class balancing; sampler: draw each class equally often; weights: weight the loss"
    )
    class_weights: str | None = AUG(
        None, "class weights for balance weights, such as 1,2.5,1 (default: inversely proportional to class frequency)"
    )
    crop_pct: float | None = AUG(
        None,
        "centre crop in evaluation, as a fraction of the side (default: 0.875 with resized crops, else 1)",
        POSITIVE_SHARE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights is not None and self.balance != "weights":
            raise VitletError("class_weights requires balance weights. Add --balance weights.")

    def preset(self) -> dict[str, Any]:
        """The preset's values for the settings that are not given."""
        return {name: value for name, value in AUGMENTATIONS[self.aug].items() if getattr(self, name) is None}
