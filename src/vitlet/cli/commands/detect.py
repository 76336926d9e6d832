"""The command ``vitlet detect train|evaluate|predict``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitlet.cli.transfer_commands import TransferCommand
from vitlet.errors import VitletError
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.recipes import DETECTION_RECIPES


def _score(text: str) -> float:
    """The number of ``--score``."""
    if not 0 <= (value := float(text)) <= 1:
        raise VitletError(f"--score must be between 0 and 1, got {value:g}.")
    return value


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """How many objects there are, then a line for each."""
    count, drawn = len(answer["objects"]), answer["drawn"]
    part = f" ({drawn} most confident of {count} drawn)" if drawn < count else ""
    yield f"{answer['image']}: {count} objects, picture {answer['picture']}{part}"
    for thing in answer["objects"]:
        left, top, right, bottom = (round(side) for side in thing["box"])
        yield f"  {thing['class']} {thing['score']:.2f} from {left},{top} to {right},{bottom}"


_COMMAND = TransferCommand(
    name="detect",
    about="Detect objects, their boxes and masks, with Mask R-CNN or Cascade Mask R-CNN on a trained backbone.",
    predicts="Detect objects in images: a list, and pictures with boxes and masks.",
    data="folder in COCO's layout",
    settings=DetectConfig,
    recipes=DETECTION_RECIPES,
    job="vitlet.transfer.detection.job:DetectionJob",
    lines=_lines,
    flags={
        "score": {
            "type": _score,
            "default": 0.5,
            "metavar": "X",
            "help": "lowest score of an object to show (default: 0.5)",
        }
    },
)
run, parser = _COMMAND.run, _COMMAND.parser
