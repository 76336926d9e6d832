"""Prediction for many images: ensembles of models, test-time augmentation, and unreadable files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, repeat
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitlet.data.decode import decode_image
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError
from vitlet.inference.predict import Predictor, check_topk, most_likely

TestTimeAugment = Literal["none", "flip", "crops", "all"]
ZOOM = 8 / 7
"""Corners are cut from the image at this size: 256 for 224."""


@dataclass(frozen=True)
class Answer:
    """Prediction for one image: classes and an embedding, or the reason why it could not be read."""

    image: str
    classes: list[dict[str, Any]]
    embedding: Tensor | None
    problem: str = ""


class Ensemble:
    """Ensemble of models with the same classes; probabilities are averaged.

    Args:
        predictors: one or more.
        augment: which views of an image each is asked about; probabilities are the mean over them (default: as the
            first was validated).
    """

    def __init__(self, predictors: Sequence[Predictor], augment: TestTimeAugment | None = None) -> None:
        self.predictors = tuple(predictors)
        self.augment: TestTimeAugment = augment or self.predictors[0].config.tta
        self.classes = self.predictors[0].classes
        self._orders = [_order(self.predictors[0], other) for other in self.predictors]

    @staticmethod
    def load(folders: Sequence[Path], *, augment: TestTimeAugment | None = None, device: str = "auto") -> Ensemble:
        """Read run and export folders."""
        return Ensemble([Predictor.load(folder, device=device) for folder in folders], augment)

    @property
    def notes(self) -> list[str]:
        """Remarks to print before the predictions."""
        found = [note for each in self.predictors for note in each.notes]
        unmirrored = [each for each in self.predictors if each.config.hflip == 0.0]
        if self.augment in ("flip", "all") and unmirrored:
            found.append(
                f"{unmirrored[0].source} was trained without mirrored images (hflip 0); --tta {self.augment} shows it"
                " some, which may hurt."
            )
        return found

    def decode(self, content: bytes, name: str) -> dict[int, Tensor]:
        """An image's bytes as pixels, by the numbers of channels that the models want."""
        wanted = {each.config.in_chans for each in self.predictors}
        return {channels: decode_image(content, channels, name=name) for channels in wanted}

    def __call__(self, images: Sequence[Mapping[int, Tensor]]) -> tuple[Tensor, Tensor | None]:
        """Probabilities ``(n, classes)`` of decoded images; embeddings ``(n, features)`` if there is one model."""
        found = []
        for predictor, order in zip(self.predictors, self._orders, strict=True):
            channels, preprocess = predictor.config.in_chans, predictor.preprocess
            batch = torch.stack([views(image[channels], preprocess, self.augment) for image in images])  # n, views, ...
            probabilities, embedding = (
                each.unflatten(0, batch.shape[:2]).mean(1) for each in predictor(batch.flatten(0, 1))
            )
            found.append(probabilities[:, order])
        return torch.stack(found).mean(0), embedding if len(found) == 1 else None


def _order(first: Predictor, other: Predictor) -> list[int]:
    """Index of the first model's classes among another model's; refuses a model with other classes."""
    if set(first.classes) != set(other.classes):
        alone = [f"{name!r} is only in the first" for name in first.classes if name not in other.classes]
        alone += [f"{name!r} is only in the second" for name in other.classes if name not in first.classes]
        raise VitletError(
            f"{first.source} and {other.source} have different classes ({len(first.classes)} and {len(other.classes)};"
            f" {alone[0]}): their probabilities cannot be averaged. Use them one at a time."
        )
    indices = {name: index for index, name in enumerate(other.classes)}
    return [indices[name] for name in first.classes]


def views(image: Tensor, preprocess: Preprocess, augment: TestTimeAugment = "none") -> Tensor:
    """Test-time views of an image, the plain one first: ``(views, channels, height, width)``."""
    seen = [preprocess.pixels(image)]
    if augment in ("crops", "all"):
        height, width = preprocess.size
        size = (round(height * ZOOM), round(width * ZOOM))
        larger = Preprocess(size, crop_pct=preprocess.crop_pct, mean=preprocess.mean, std=preprocess.std).pixels(image)
        corners = product((0, size[0] - height), (0, size[1] - width))
        seen += [larger[:, top : top + height, left : left + width] for top, left in corners]
    stacked = torch.stack(seen)
    if augment in ("flip", "all"):
        stacked = torch.cat([stacked, stacked.flip(-1)])
    return preprocess.normalize(stacked)


def classify(
    ensemble: Ensemble,
    paths: Sequence[Path],
    *,
    topk: int = 3,
    batch_size: int = 64,
    progress: Callable[[int], object] = lambda done: None,
) -> Iterator[Answer]:
    """Predictions for the files, in order, batch by batch."""
    check_topk(topk)
    if batch_size < 1:
        raise VitletError(f"batch size must be at least 1, got {batch_size}.")
    for first in range(0, len(paths), batch_size):
        part = paths[first : first + batch_size]
        read = [_read(ensemble, path) for path in part]
        images = [each for each in read if not isinstance(each, VitletError)]
        probabilities, embeddings = ensemble(images) if images else (torch.empty(0), None)
        found = zip(probabilities, repeat(None) if embeddings is None else embeddings, strict=False)
        for path, each in zip(part, read, strict=True):
            if isinstance(each, VitletError):
                yield Answer(str(path), [], None, str(each))
            else:
                probability, embedding = next(found)
                yield Answer(str(path), most_likely(probability, ensemble.classes, topk), embedding)
        progress(first + len(part))


def _read(ensemble: Ensemble, path: Path) -> dict[int, Tensor] | VitletError:
    try:
        return ensemble.decode(path.read_bytes(), str(path))
    except OSError as problem:
        return VitletError(f"cannot read the image {path}: {problem.strerror}.")
    except VitletError as problem:
        return problem
