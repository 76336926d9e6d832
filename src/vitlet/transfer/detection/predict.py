"""A trained detector, used: measured on any data, and objects of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlet.data.decode import read_image
from vitlet.errors import VitletError
from vitlet.pictures import beside, free_name, make_folder
from vitlet.pictures.pixels import as_pixels, colour, with_boxes, with_mask
from vitlet.training.classifier import find_device
from vitlet.transfer.common.exported import read_exported
from vitlet.transfer.common.objective import Network
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.detection.coco import CocoSplit, open_coco
from vitlet.transfer.detection.job import detect, evaluate_detector, make_head, make_resizing, with_validation
from vitlet.transfer.detection.masks import encode
from vitlet.transfer.detection.metrics import DetectionScores
from vitlet.transfer.detection.samples import Resizing
from vitlet.transfer.detection.settings import DetectConfig


class Detector:
    """The best weights of a run with everything it takes to use them."""

    def __init__(
        self,
        network: Network,
        resizing: Resizing,
        categories: Sequence[tuple[int, str]],
        config: DetectConfig,
        *,
        masks: bool,
    ) -> None:
        self.network, self.resizing, self.categories = network.eval(), resizing, [tuple(each) for each in categories]
        self.config, self.masks = config, masks

    @property
    def classes(self) -> list[str]:
        """Their names."""
        return [str(name) for _, name in self.categories]

    @staticmethod
    def load(run: Path, *, device: str = "auto") -> Detector:
        """Read a run folder."""
        exported = read_exported(run, DetectConfig)
        config, described = exported.config, exported.described
        levels = Levels(exported.opened)
        head = make_head(config, levels, len(described["categories"]), masks=described["masks"])
        network = Network(exported.opened.backbone, head)
        exported.fill(network)
        canvas = tuple(described["canvas"]) if described["canvas"] else None
        resizing = make_resizing(config, described["divisor"], canvas, described["mean"], described["std"])
        network.to(find_device(device))
        return Detector(network, resizing, described["categories"], config, masks=described["masks"])

    def evaluate(self, data: str | None = None, *, split: str | None = None) -> tuple[DetectionScores, str]:
        """COCO's numbers on a split of the run's own data, or of other data with the same categories."""
        place = data or self.config.data
        splits = open_coco(Path(place))
        if data is None and "train" in splits:
            splits = with_validation(splits, self.config)
        name = split or next(each for each in ("test", "val", "train") if each in splits)
        if name not in splits:
            raise VitletError(f"{place} has no {name} images; there are {', '.join(splits)}.")
        chosen: CocoSplit = splits[name]
        if list(chosen.categories) != self.categories:
            raise VitletError(f"{chosen.file} lists other categories than the run was trained with.")
        scores = evaluate_detector(self.network, self.resizing, chosen.images, chosen.categories, masks=self.masks)
        return scores, f"{place} ({name})"

    @torch.inference_mode()
    def predict(self, paths: Sequence[Path], folder: Path, *, score: float = 0.5) -> list[dict[str, Any]]:
        """Objects of image files, surest first, each file with a picture of them."""
        answers: list[dict[str, Any]] = []
        taken = beside(paths)
        make_folder(folder)
        for path in paths:
            found = detect(self.network, self.resizing, path)
            sure = found["scores"] >= score
            found = {key: value[sure].cpu() for key, value in found.items()}
            picture = free_name(folder / f"{path.stem}.png", taken)
            self._draw(read_image(path, 3), found).save(picture)
            answers.append({"image": str(path), "picture": str(picture), "objects": self._objects(found)})
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
        pixels = as_pixels(image)
        shades = [colour(label) for label in found["labels"].tolist()]
        for index, shade in enumerate(shades):
            if "masks" in found:
                pixels = with_mask(pixels, found["masks"][index, 0] > 0.5, shade)
        words = [
            f"{self.classes[label - 1]} {score:.2f}"
            for label, score in zip(found["labels"].tolist(), found["scores"].tolist(), strict=True)
        ]
        return with_boxes(pixels, found["boxes"].tolist(), words, shades)
