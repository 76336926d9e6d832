"""The command ``vitlet segment train|evaluate|predict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitlet.cli.transfer_commands import TransferCommand
from vitlet.transfer.recipes import SEGMENTATION_RECIPES
from vitlet.transfer.segmentation.settings import SegmentConfig


def _lines(answer: Mapping[str, Any]) -> list[str]:
    """The shares of the largest classes."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in list(answer["shares"].items())[:5] if share > 0)
    return [f"{answer['image']}: {shares}; picture {answer['picture']}, mask {answer['mask']}"]


_COMMAND = TransferCommand(
    name="segment",
    about="Semantic segmentation, a class for every pixel, with UPerNet on a trained backbone.",
    predicts="Segment images: pictures, and masks of class indices.",
    data="folder of images and masks",
    settings=SegmentConfig,
    recipes=SEGMENTATION_RECIPES,
    job="vitlet.transfer.segmentation.job:SegmentationJob",
    lines=_lines,
)
run, parser = _COMMAND.run, _COMMAND.parser
