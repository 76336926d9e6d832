"""A trained segmenter, used: measured on any data, and classes of every pixel of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitlet.data.decode import read_image
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError
from vitlet.pictures import beside, free_name, make_folder
from vitlet.pictures.pixels import as_pixels, colour, with_legend, with_mask
from vitlet.training.classifier import find_device
from vitlet.transfer.common.exported import read_exported
from vitlet.transfer.common.objective import Network
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.segmentation.job import Segmenting, evaluate_segmenter, make_head, make_segmenting, with_validation
from vitlet.transfer.segmentation.masks import open_masks
from vitlet.transfer.segmentation.metrics import SegmentationScores
from vitlet.transfer.segmentation.settings import SegmentConfig


class Segmenter:
    """The best weights of a run with everything it takes to use them."""

    def __init__(
        self, network: Network, segmenting: Segmenting, classes: Sequence[str], config: SegmentConfig, shift: int
    ) -> None:
        self.network, self.segmenting, self.classes, self.config = network.eval(), segmenting, list(classes), config
        self.shift = shift

    @staticmethod
    def load(run: Path, *, device: str = "auto") -> Segmenter:
        """Read a run folder."""
        exported = read_exported(run, SegmentConfig)
        config, described = exported.config, exported.described
        levels = Levels(exported.opened)
        network = Network(exported.opened.backbone, make_head(config, levels, len(described["classes"])))
        exported.fill(network)
        normalize = Preprocess(config.crop_size, crop_pct=1.0, mean=described["mean"], std=described["std"])
        segmenting = make_segmenting(config, described["divisor"], exported.opened.fixed, normalize)
        network.to(find_device(device))
        shift = described.get("shift", 1)  # runs of before do not say
        return Segmenter(network, segmenting, described["classes"], config, shift)

    def evaluate(self, data: str | None = None, *, split: str | None = None) -> tuple[SegmentationScores, str]:
        """Numbers on a split of the run's own data, or of other data with the same classes."""
        place = data or self.config.data
        found = open_masks(Path(place), self.config.ignore_index, names=self.classes, ade=self.shift == 1)
        if data is None and "train" in found.splits:
            found = with_validation(found, self.config)
        name = split or next(each for each in ("test", "val", "train") if each in found.splits)
        if name not in found.splits:
            raise VitletError(f"{place} has no {name} images; there are {', '.join(found.splits)}.")
        if list(found.classes) != self.classes:
            raise VitletError(
                f"{place} has the classes {', '.join(found.classes[:5])}...; the run was trained with"
                f" {', '.join(self.classes[:5])}..."
            )
        return evaluate_segmenter(self.network, self.segmenting, found, found.splits[name]), f"{place} ({name})"

    @torch.inference_mode()
    def predict(self, paths: Sequence[Path], folder: Path) -> list[dict[str, Any]]:
        """For each file a picture, a mask of class numbers beside it, and the share of each class."""
        answers: list[dict[str, Any]] = []
        taken = beside(paths)
        make_folder(folder)
        for path in paths:
            pixels = read_image(path, 3)
            answer = self.segmenting(self.network, pixels).argmax(0).cpu()
            picture = free_name(folder / f"{path.stem}.png", taken)
            mask = free_name(folder / f"{picture.stem}-mask.png", taken)
            self._draw(pixels, answer).save(picture)
            _save_mask(answer, len(self.classes), mask)
            present = torch.bincount(answer.flatten(), minlength=len(self.classes)) / answer.numel()
            shares = {self.classes[index]: float(present[index]) for index in present.argsort(descending=True).tolist()}
            answers.append({"image": str(path), "picture": str(picture), "mask": str(mask), "shares": shares})
        return answers

    def _draw(self, pixels: Tensor, answer: Tensor) -> Image.Image:
        """The classes tinted over the image, their names below it."""
        tinted, present = as_pixels(pixels), sorted(set(answer.flatten().tolist()))
        for index in present:
            tinted = with_mask(tinted, answer == index, colour(index))
        return with_legend(tinted, [self.classes[index] for index in present], [colour(index) for index in present])


def _save_mask(answer: Tensor, classes: int, path: Path) -> None:
    """Class numbers as a palette image, in the colours of the picture."""
    mask = Image.fromarray(answer.numpy().astype(np.uint8)).convert("L")
    mask.putpalette([part for index in range(classes) for part in colour(index)])
    mask.save(path)
