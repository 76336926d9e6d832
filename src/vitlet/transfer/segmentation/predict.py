"""A segmenter: how images come to it, the classes of their pixels, and how these are measured and drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from vitlet.data.decode import read_image
from vitlet.errors import VitletError
from vitlet.pictures import beside, free_name, make_folder
from vitlet.pictures.pixels import as_pixels, colour, with_legend, with_mask
from vitlet.training.distributed import World
from vitlet.training.evaluate import nothing
from vitlet.transfer.common.loading import shared_out
from vitlet.transfer.common.predictor import DensePredictor
from vitlet.transfer.common.pyramid import pad_to, padded_size, scaled_size
from vitlet.transfer.common.settings import numbers
from vitlet.transfer.segmentation.masks import MaskedSplit, open_masks
from vitlet.transfer.segmentation.metrics import SegmentationScores, pixel_confusion, segmentation_scores
from vitlet.transfer.segmentation.samples import SegmentationSamples
from vitlet.transfer.segmentation.settings import SegmentConfig
from vitlet.transfer.segmentation.upernet import SegmentationHead


class Segmenter(DensePredictor):
    """Finds the class of every pixel.

    Attributes:
        scales: whose answers are averaged.
    """

    SETTINGS, SCORES, BY_CLASS = SegmentConfig, SegmentationScores, "IoU_per_class"

    config: SegmentConfig

    def __init__(self, config: SegmentConfig, *given: Any) -> None:
        super().__init__(config, *given)
        self.scales = numbers("test_scales", config.test_scales)

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return list(self.about["classes"])

    def make_head(self) -> SegmentationHead:
        """Build the head from the settings."""
        channels, auxiliary = self.config.decoder_channels, self.config.auxiliary
        return SegmentationHead(self.levels, len(self.classes), channels=channels, auxiliary=auxiliary)

    def samples(self, split: MaskedSplit) -> SegmentationSamples:
        """Crops of rescaled images and masks."""
        return SegmentationSamples(split, self.config, self.normalize)

    def open_data(self, data: str) -> dict[str, MaskedSplit]:
        """Folders of images and masks, with the classes of the run."""
        ade = self.about.get("shift", 1) == 1  # runs of before do not say
        splits = open_masks(Path(data), self.config.ignore_index, names=self.classes, ade=ade)
        classes = next(iter(splits.values())).classes
        if list(classes) != self.classes:
            raise VitletError(
                f"{data} has the classes {', '.join(classes[:5])}...; the run was trained with"
                f" {', '.join(self.classes[:5])}..."
            )
        return splits

    def probabilities(self, pixels: Tensor) -> Tensor:
        """uint8 ``(3, h, w)`` -> probabilities ``(classes, h, w)``, the mean over the scales."""
        height, width = pixels.shape[1], pixels.shape[2]
        found = []
        for scale in self.scales:
            size = scaled_size(height, width, self.config.base * scale)
            if self.fixed is not None:  # fitted into the one size that the backbone takes
                factor = min(self.fixed[0] / height, self.fixed[1] / width)
                size = (max(1, int(height * factor)), max(1, int(width * factor)))
            image = self.normalize(V.resize(pixels, list(size), antialias=True))
            image = pad_to(image, self.fixed or padded_size(*size, self.levels.divisor))
            batch = image[None].to(next(self.model.parameters()).device)
            logits = self.model(batch, [size])[0][None].float()
            found.append(F.interpolate(logits, (height, width), mode="bilinear", align_corners=False)[0].softmax(0))
        return sum(found[1:], found[0]) / len(found)

    @torch.inference_mode()
    def measure(
        self, split: MaskedSplit, world: World = World(), between: Callable[[], None] = nothing
    ) -> SegmentationScores:
        """Exact over all pixels, each image at its own size."""
        classes = len(self.classes)
        matrix = torch.zeros(classes, classes, dtype=torch.long)
        for index in shared_out(len(split.images), world, between):
            answer = self.probabilities(read_image(split.images[index].image, 3)).argmax(0).cpu()
            matrix += pixel_confusion(answer, split.read(index), classes)
        return segmentation_scores(world.sums(matrix), len(split.images))

    @torch.inference_mode()
    def predict(self, paths: Sequence[Path], folder: Path) -> list[dict[str, Any]]:
        """Write a picture and a mask of class numbers for each file, and return the share of each class."""
        answers: list[dict[str, Any]] = []
        taken = beside(paths)
        make_folder(folder)
        for path in paths:
            pixels = read_image(path, 3)
            answer = self.probabilities(pixels).argmax(0).cpu()
            picture = free_name(folder / f"{path.stem}.png", taken)
            mask = free_name(folder / f"{picture.stem}-mask.png", taken)
            self._draw(pixels, answer).save(picture)
            _save_mask(answer, len(self.classes), mask)
            present = torch.bincount(answer.flatten(), minlength=len(self.classes)) / answer.numel()
            shares = {self.classes[index]: float(present[index]) for index in present.argsort(descending=True).tolist()}
            answers.append({"image": str(path), "picture": str(picture), "mask": str(mask), "shares": shares})
        return answers

    def _draw(self, pixels: Tensor, answer: Tensor) -> Image.Image:
        """The image, beside it the classes tinted over it, and below their names, the largest first."""
        tinted, counts = as_pixels(pixels), torch.bincount(answer.flatten(), minlength=len(self.classes))
        present = [index for index in counts.argsort(descending=True, stable=True).tolist() if counts[index]]
        for index in present:
            tinted = with_mask(tinted, answer == index, colour(index))
        names, shades = [self.classes[index] for index in present], [colour(index) for index in present]
        return with_legend([as_pixels(pixels), tinted], names, shades)


def _save_mask(answer: Tensor, classes: int, path: Path) -> None:
    """Class numbers as a palette image, in the colours of the picture."""
    mask = Image.fromarray(answer.numpy().astype(np.uint8)).convert("L")
    mask.putpalette([part for index in range(classes) for part in colour(index)])
    mask.save(path)
