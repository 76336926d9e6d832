"""Predictions for an uploaded image: classes of every model, with class and attention maps."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from vitlet.analysis.explain import Explainer, Explanation
from vitlet.cli.serving.limits import Limits
from vitlet.data.decode import FORMATS, decode_image, open_image
from vitlet.errors import VitletError, first_line
from vitlet.inference.exported import is_export
from vitlet.inference.predict import Predictor, most_likely
from vitlet.models.factory import patch_size
from vitlet.pictures.pixels import data_uri
from vitlet.tasks.task import Places
from vitlet.training.search_folder import best_member, is_search


class RefusedError(VitletError):
    """A request that is not answered; ``status`` is HTTP's name for the reason."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ServedModel:
    """A run or an export that answers for one image at a time.

    Args:
        name: how it is called on the page.
        folder: folder of the run or export.
    """

    def __init__(self, name: str, folder: Path, device: str) -> None:
        self.name = name
        self.predictor = Predictor.load(folder, device=device)
        self.explainer, self.no_maps = self._explainer(folder)

    def _explainer(self, folder: Path) -> tuple[Explainer | None, str]:
        predictor = self.predictor
        if is_search(folder):  # maps are those of its best single run
            folder = best_member(folder)
            predictor = Predictor.load(folder, device=str(predictor.device))
        if not is_export(folder):
            return Explainer.of(predictor, folder), ""
        if not hasattr(predictor.model, "forward_intermediates"):
            return None, "maps: not available for this export; serve the run, or its timm export."
        why = "an export has no task heads; serve the run to see them."
        channels = predictor.config.in_chans
        made = Explainer(
            predictor.model,
            predictor.preprocess,
            predictor.classes,
            in_chans=channels,
            no_locator=why,
            temperature=predictor.temperature,
        )
        return made, ""

    def about(self) -> dict[str, Any]:
        """Facts about the model that the page shows before any image."""
        predictor, patch = self.predictor, patch_size(self.predictor.model)
        return {
            "run": self.name,
            "model": predictor.config.model,
            "classes": list(predictor.classes),
            "image_size": list(predictor.preprocess.size),
            "patch_size": patch and list(patch),
            "temperature": predictor.temperature,
            "notes": list(predictor.notes),
        }

    def answer(self, image: Tensor, *, topk: int, maps: bool) -> dict[str, Any]:
        """Top classes of a decoded image, and optionally its maps."""
        started = time.monotonic()
        probabilities, _ = self.predictor(self.predictor.preprocess(image)[None])
        found: dict[str, Any] = {
            "run": self.name,
            "classes": most_likely(probabilities[0], self.predictor.classes, topk),
            "milliseconds": round(1000 * (time.monotonic() - started), 2),
        }
        if maps and self.explainer is not None:
            found |= _maps(self.explainer(image))
        elif maps:
            found |= {"seen": None, "maps": {}, "left_out": [self.no_maps]}
        return found


class Service:
    """Models side by side.

    Args:
        folders: folders of runs and exports; their last names are shown, with a number where two are equal.
        limits: limits of uploads.
    """

    def __init__(self, folders: Sequence[Path], limits: Limits, *, device: str = "auto") -> None:
        self.limits = limits
        self.models = [ServedModel(name, folder, device) for name, folder in _named(folders)]

    def about(self) -> dict[str, Any]:
        """Description of the served models, and the limits."""
        limits = {"upload_bytes": self.limits.upload_bytes, "pixels": self.limits.pixels, "formats": list(FORMATS)}
        return {"runs": [model.about() for model in self.models], "limits": limits}

    def decode(self, content: bytes) -> tuple[dict[str, int], list[Tensor]]:
        """An image's size, and the image as each of the models takes it."""
        width, height = self._size(content)
        images: dict[int, Tensor] = {}
        wanted = [model.predictor.config.in_chans for model in self.models]
        for channels in set(wanted):
            try:
                images[channels] = decode_image(content, channels, name="that was sent")
            except VitletError as problem:
                raise RefusedError(422, str(problem)) from problem
        return {"width": width, "height": height}, [images[channels] for channels in wanted]

    def _size(self, content: bytes) -> tuple[int, int]:
        """Width and height from the header, before anything is decoded."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow warns of large images, which are refused here
                with open_image(io.BytesIO(content)) as image:
                    width, height = image.size
        except Image.DecompressionBombError as problem:
            raise RefusedError(413, f"the image is too large: {first_line(problem)}.") from problem
        except Exception as problem:  # damaged bytes make Pillow's readers fail in any way
            known = ", ".join(FORMATS)
            raise RefusedError(415, f"the upload is not an image in a supported format ({known}).") from problem
        if width * height > self.limits.pixels:
            most = f"at most {self.limits.pixels:,} are taken."
            raise RefusedError(413, f"the image has {width} x {height} pixels; {most}")
        return width, height


def _named(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    whole = [folder.resolve() for folder in folders]
    names = [f"{path.parents[1].name} {path.name}" if path.parent.name == "export" else path.name for path in whole]
    for place, (name, folder) in enumerate(zip(names, folders, strict=True)):
        yield (f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name), folder


def _maps(found: Explanation) -> dict[str, Any]:
    """Maps as plain numbers over the image that the model saw."""
    maps: dict[str, Any] = {}
    if found.evidence is not None:
        maps["class_map"] = _rows(found.evidence)
    if found.rollout is not None:
        maps["attention"] = _rows(found.rollout)
    elif found.received:  # attention within windows cannot be traced through the layers: the last one alone
        maps["attention"] = _rows(found.received[-1].mean(0))
    if found.places is not None:
        maps["places"] = _places(found.places)
    seen = Image.fromarray((found.pixels * 255).round().astype("uint8"))
    return {"seen": data_uri(seen, "PNG"), "maps": maps, "left_out": list(found.left_out)}


def _rows(values: Tensor) -> list[list[float]]:
    return [[round(float(value), 6) for value in row] for row in values]


def _places(places: Places) -> dict[str, Any]:
    return {
        "rows": places.sides[0],
        "columns": places.sides[1],
        "true": _rows(places.true[0]),
        "predicted": _rows(places.predicted[0]),
        "error": _rows(places.error[0].view(places.sides)),
        "chance": round(places.chance, 4),
        "origin": places.origin,
    }
