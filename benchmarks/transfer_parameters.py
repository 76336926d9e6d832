"""Parameters of the detectors and of the segmenter on Swin-T, beside the published ones.

    python benchmarks/transfer_parameters.py [--output benchmarks/results/transfer_parameters.md]

The published numbers are those of the Swin publication, whose heads are the ones of mmdetection and mmsegmentation: 80
classes of COCO, 150 of ADE20K, in millions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch import nn

from timing import Report
from vitlet.transfer.common.backbone import build
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.detection.detector import DetectionHead
from vitlet.transfer.segmentation.upernet import SegmentationHead

WHY = (
    "Mask R-CNN is the same network: torchvision's parts are those of mmdetection.",
    "Cascade: boxes do not depend on the class here (4 numbers instead of 4 x 80 in each of three stages, 1.0 M fewer);"
    " with masks on the last stage alone two mask heads of 2.6 M are left out.",
    "UPerNet is the same network, with an auxiliary head of one convolution of 256 channels (0.9 M).",
    "The backbone has no classifier. The norm after its last stage is counted; dense heads have one for each level.",
)


def millions(module: nn.Module) -> float:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters()) / 1e6


def main() -> None:
    """Count them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    report = Report("Parameters of detectors and segmenters", __doc__, parser.parse_args().output)
    opened = build("swin_tiny_patch4_window7_224", {}, (224, 224))
    backbone, levels = millions(opened.backbone), Levels(opened)
    heads = {
        ("Mask R-CNN", 48): DetectionHead(levels, 80),
        ("Cascade Mask R-CNN, masks on all stages", 86): DetectionHead(levels, 80, kind="cascade", masks="all"),
        ("Cascade Mask R-CNN, masks on the last stage", None): DetectionHead(levels, 80, kind="cascade"),
        ("UPerNet", 60): SegmentationHead(levels, 150),
    }
    report.add(["", "| network | backbone | head | together | published |", "|---|---|---|---|---|"])
    for (name, published), head in heads.items():
        own = millions(head)
        report.add([f"| {name} | {backbone:.1f} | {own:.1f} | {backbone + own:.1f} | {published or ''} |"])
    report.add(["", *(f"- {line}" for line in WHY)])
    report.close()


if __name__ == "__main__":
    main()
