"""A picture of a dataset: some images of every class on one sheet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitlet.data.images import Dataset, ImageSet
from vitlet.data.scan.findings import printable
from vitlet.errors import VitletError, first_line

_GAP = 4
_NAME_WIDTH = 200
_LETTERS = 28


def picture_grid(
    dataset: Dataset, path: Path, *, classes: int = 20, per_class: int = 8, side: int = 72, channels: int = 3
) -> None:
    """Write a PNG: a row for each class with its name and training images, decoded as training sees them.

    Args:
        dataset: whose training images are shown.
        path: of the picture.
        classes: rows at most; where there are more, evenly spaced ones.
        per_class: images in a row at most, evenly spaced.
        side: pixels of an image on the sheet.
        channels: to decode with.
    """
    labels = _spaced(range(len(dataset.classes)), classes)
    step = side + _GAP
    sheet = Image.new("RGB", (_NAME_WIDTH + per_class * step + _GAP, len(labels) * step + 20 + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 12)
    draw.text((_GAP, _GAP), f"{len(labels)} of {len(dataset.classes)} classes, training images", "black", font)
    all_labels = np.asarray(dataset.train.labels)
    for row, label in enumerate(labels):
        top = 20 + row * step + _GAP
        members = np.flatnonzero(all_labels == label).tolist()
        draw.text((_GAP, top), _short(dataset.classes[label]), "black", font)
        draw.text((_GAP, top + 16), f"{len(members):,} images", "grey", font)
        for column, index in enumerate(_spaced(members, per_class)):
            sheet.paste(_tile(dataset.train, index, channels, side), (_NAME_WIDTH + column * step, top))
    _write(sheet, path)


def _spaced(items: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly spaced, the first included."""
    return [items[position * len(items) // most] for position in range(most)] if len(items) > most else list(items)


def _short(name: str) -> str:
    """A class's name that fits on one line."""
    shown = printable(name[: 2 * _LETTERS])
    return shown if len(shown) <= _LETTERS and len(name) <= _LETTERS else shown[: _LETTERS - 1] + "…"


def _tile(images: ImageSet, index: int, channels: int, side: int) -> Image.Image:
    """A square with the whole image in it; crossed out if it cannot be read."""
    square = Image.new("RGB", (side, side), "white")
    try:
        pixels = images.image(index, channels).numpy()
    except Exception:  # what is wrong with it stands in the report
        draw = ImageDraw.Draw(square)
        draw.rectangle((0, 0, side - 1, side - 1), outline="red")
        draw.line((0, 0, side, side), "red")
        draw.line((0, side, side, 0), "red")
        return square
    shown = pixels[:3] if len(pixels) >= 3 else np.repeat(pixels[:1], 3, axis=0)
    picture = Image.fromarray(np.ascontiguousarray(shown.transpose(1, 2, 0)))
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    square.paste(picture.resize(size, method, reducing_gap=3.0), ((side - size[0]) // 2, (side - size[1]) // 2))
    return square


def _write(sheet: Image.Image, path: Path) -> None:
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    try:
        path.write_bytes(content.getvalue())
    except OSError as problem:
        raise VitletError(f"cannot write the picture {path}: {first_line(problem)}. Choose another place.") from problem
