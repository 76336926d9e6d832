"""The publication's settings for semantic segmentation (DRLoc, appendix D.2), one function per pair of rows.

A pair is the same training from two backbones: pre-trained with cross-entropy alone, and with DRLoc beside it. So each
function takes the backbone: a run of `vitlet train` of 300 epochs on ImageNet-1K (table 12) or ImageNet-100 (table 13).
None of these has been run here: it takes ADE20K and GPUs.
"""

from __future__ import annotations

from collections.abc import Callable

from vitlet.transfer.segmentation.settings import SegmentConfig

SWIN = "swin_tiny_patch4_window7_224"

STEPS = 20_210 // 16
"""Steps of an epoch of ADE20K at 16 images each."""


def _upernet(backbone: str) -> SegmentConfig:
    """160,000 steps in whole epochs (127 epochs are 160,401), 1,500 of them warm-up."""
    return SegmentConfig(
        data="ade20k",
        backbone=backbone,
        img_size=(512, 512),
        rescale_min=0.5,
        rescale_max=2.0,
        photometric=True,
        drop_path=0.2,
        batch_size=16,
        epochs=-(-160_000 // STEPS),
        warmup_epochs=1500 / STEPS,
        lr=6e-5,
        weight_decay=0.01,
        sched="linear",
        test_scales="0.5,0.75,1.0,1.25,1.5,1.75",
    )


def drloc_table12_upernet(backbone: str = SWIN) -> SegmentConfig:
    """Table 12, UPerNet on ADE20K, Swin-T pre-trained on ImageNet-1K.

    Command: ``vitlet segment train ade20k --recipe drloc_table12_upernet --backbone RUN --nproc 8``
    Paper: mIoU 43.87, mAcc 55.22 without; 44.33 and 55.74 with DRLoc. Ours: not measured.
    """
    return _upernet(backbone)


def drloc_table13_upernet(backbone: str = SWIN) -> SegmentConfig:
    """Table 13, UPerNet on ADE20K, Swin-T pre-trained on ImageNet-100.

    Command: ``vitlet segment train ade20k --recipe drloc_table13_upernet --backbone RUN --nproc 8``
    Paper: mIoU 36.93, mAcc 47.76 without; 37.83 and 48.69 with DRLoc. Ours: not measured.
    """
    return _upernet(backbone)


RECIPES: dict[str, Callable[[], SegmentConfig]] = {
    recipe.__name__: recipe for recipe in (drloc_table12_upernet, drloc_table13_upernet)
}
"""By name."""
