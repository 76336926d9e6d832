"""``vitlet detect train|evaluate|predict``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vitlet.cli.transfer_commands import TransferCommand
from vitlet.errors import VitletError
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.recipes import DETECTION_RECIPES

if TYPE_CHECKING:
    from vitlet.transfer.detection.job import DetectionJob


def _share(text: str) -> float:
    """The number of ``--score``."""
    if not 0 <= (value := float(text)) <= 1:
        raise VitletError(f"--score is {value:g}; it needs to be from 0 to 1.")
    return value


class DetectCommand(TransferCommand):
    """Objects in images."""

    NAME = "detect"
    ABOUT = "Find objects, their boxes and masks, with Mask R-CNN or Cascade Mask R-CNN on a trained backbone."
    PREDICTS = "Objects in images, as a list and as pictures with boxes and masks."
    DATA = "folder in COCO's layout"
    SETTINGS, RECIPES = DetectConfig, DETECTION_RECIPES
    FLAGS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "score": {"type": _share, "default": 0.5, "help": "leave out what is less sure [0.5]"}
    }

    def job(self) -> type[DetectionJob]:
        """The training of a detector."""
        from vitlet.transfer.detection.job import DetectionJob

        return DetectionJob

    def lines(self, answer: Mapping[str, Any]) -> Iterator[str]:
        """How many objects there are, then a line for each."""
        yield f"{answer['image']}: {len(answer['objects'])} objects, picture {answer['picture']}"
        for thing in answer["objects"]:
            left, top, right, bottom = (round(side) for side in thing["box"])
            yield f"  {thing['class']} {thing['score']:.2f} from {left},{top} to {right},{bottom}"


run = DetectCommand().run
