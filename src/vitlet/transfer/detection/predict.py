"""A detector: how images come to it, what it finds in them, and how that is measured and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlet.data.decode import read_image
from vitlet.errors import VitletError
from vitlet.pictures import beside, free_name, make_folder
from vitlet.pictures.pixels import as_pixels, colour, with_boxes, with_mask, with_note
from vitlet.training.distributed import World
from vitlet.training.evaluate import nothing
from vitlet.transfer.common.loading import shared_out
from vitlet.transfer.common.predictor import DensePredictor
from vitlet.transfer.detection.coco import CocoSplit, open_coco
from vitlet.transfer.detection.detector import DetectionHead
from vitlet.transfer.detection.masks import encode
from vitlet.transfer.detection.metrics import DetectionScores, average_precision, detections
from vitlet.transfer.detection.samples import DetectionSamples, Resizing, make_sides
from vitlet.transfer.detection.settings import DetectConfig

MOST_DRAWN = 30
"""Objects that are drawn on a picture: with more, the boxes hide each other."""


class Detector(DensePredictor):
    """Finds objects, their boxes and maybe masks."""

    SETTINGS, SCORES, BY_CLASS = DetectConfig, DetectionScores, "box_AP_per_class"

    config: DetectConfig

    def __init__(self, config: DetectConfig, *given: Any) -> None:
        super().__init__(config, *given)
        sides = make_sides(config.min_side, config.max_side)
        canvas = self.about["canvas"] and tuple(self.about["canvas"])
        self.resizing = Resizing(sides, config.long_side, self.levels.divisor, canvas, self.normalize)

    @property
    def categories(self) -> list[tuple[int, str]]:
        """COCO category numbers and their names."""
        return [(number, str(name)) for number, name in self.about["categories"]]

    @property
    def classes(self) -> list[str]:
        """Names of the categories."""
        return [name for _, name in self.categories]

    def make_head(self) -> DetectionHead:
        """Build the head from the settings, without mask heads where there are no masks to learn from."""
        return DetectionHead(
            self.levels,
            len(self.classes),
            kind=self.config.head,
            masks=self.config.cascade_masks if self.about["masks"] else None,
            channels=self.config.head_width,
            width=self.config.box_width,
        )

    def samples(self, split: CocoSplit) -> DetectionSamples:
        """Images in the sizes of multi-scale training, with their objects."""
        masks, hflip = self.about["masks"], self.config.hflip or 0.0
        return DetectionSamples(split.images, self.config.seed, self.resizing, masks=masks, hflip=hflip)

    def open_data(self, data: str) -> dict[str, CocoSplit]:
        """COCO's layout, with the categories of the run."""
        splits = open_coco(Path(data))
        first = next(iter(splits.values()))
        if list(first.categories) != self.categories:
            raise VitletError(f"{first.file} lists other categories than the run was trained with.")
        return splits

    def detect(self, path: Path) -> Mapping[str, Tensor]:
        """Detections in one image file, in its own pixels."""
        pixels = read_image(path, 3)
        image = self.resizing.image(pixels, self.resizing.sides[-1])
        size, original = (image.shape[1], image.shape[2]), (pixels.shape[1], pixels.shape[2])
        batch = self.resizing.batch([image]).to(next(self.model.parameters()).device)
        head: Any = self.model.head
        found: Mapping[str, Tensor] = head.at_size(self.model(batch, [size])[0], size, original)
        return found

    @torch.inference_mode()
    def measure(
        self, split: CocoSplit, world: World = World(), between: Callable[[], None] = nothing
    ) -> DetectionScores:
        """COCO's numbers."""
        images, numbers = split.images, [number for number, _ in self.categories]
        mine = [
            (index, detections(images[index], self.detect(images[index].path), numbers))
            for index in shared_out(len(images), world, between)
        ]
        everyone = sorted((pair for process in world.gather(mine) for pair in process), key=lambda pair: pair[0])
        results = [each for _, found in everyone for each in found]
        return average_precision(split, results, masks=self.about["masks"])

    @torch.inference_mode()
    def predict(self, paths: Sequence[Path], folder: Path, *, score: float = 0.5) -> list[dict[str, Any]]:
        """Objects in image files, by descending score, with a picture for each file."""
        answers: list[dict[str, Any]] = []
        taken = beside(paths)
        make_folder(folder)
        for path in paths:
            found = self.detect(path)
            sure = found["scores"] >= score
            found = {key: value[sure].cpu() for key, value in found.items()}
            picture = free_name(folder / f"{path.stem}.png", taken)
            objects = self._objects(found)
            self._draw(read_image(path, 3), found).save(picture)
            drawn = min(len(objects), MOST_DRAWN)
            answers.append({"image": str(path), "picture": str(picture), "drawn": drawn, "objects": objects})
        return answers

    def _objects(self, found: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        objects = []
        for index, (box, label, score) in enumerate(
            zip(found["boxes"].tolist(), found["labels"].tolist(), found["scores"].tolist(), strict=True)
        ):
            one: dict[str, Any] = {"class": self.classes[label - 1], "score": score, "box": box}
            if "masks" in found:
                mask = encode(found["masks"][index, 0] > 0.5)
                one["mask"] = {"size": mask["size"], "counts": mask["counts"].decode()}
            objects.append(one)
        return objects

    def _draw(self, image: Tensor, found: Mapping[str, Tensor]) -> Any:
        """Picture of the objects with the highest scores, and the number of the others."""
        left_out = len(found["scores"]) - MOST_DRAWN
        surest = found["scores"].argsort(descending=True, stable=True)[:MOST_DRAWN]
        pixels, found = as_pixels(image), {key: value[surest] for key, value in found.items()}
        shades = [colour(label) for label in found["labels"].tolist()]
        for index, shade in enumerate(shades):
            if "masks" in found:
                pixels = with_mask(pixels, found["masks"][index, 0] > 0.5, shade)
        words = [
            f"{self.classes[label - 1]} {score:.2f}"
            for label, score in zip(found["labels"].tolist(), found["scores"].tolist(), strict=True)
        ]
        picture = with_boxes(pixels, found["boxes"].tolist(), words, shades)
        return (
            picture
            if left_out <= 0
            else with_note(picture, f"{left_out} more objects, with lower scores, are not drawn")
        )
