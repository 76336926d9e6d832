"""A picture of a dataset: some images of every class on one sheet."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vitlet.data.images import Dataset, ImageSet
from vitlet.errors import VitletError, first_line
from vitlet.pictures import printable, spaced
from vitlet.pictures.pixels import as_pixels, crossed_out, sheet_font, thumbnail

_GAP = 4
_NAME_WIDTH = 200
_LETTERS = 28


def picture_grid(
    dataset: Dataset,
    path: Path,
    *,
    classes: int = 20,
    per_class: int = 8,
    side: int = 72,
    channels: int = 3,
    what: str = "training images",
) -> None:
    """Write a PNG: a row for each class with its name and training images, decoded as training sees them.

    Args:
        dataset: whose training images are shown.
        path: path of the picture.
        classes: rows at most; where there are more, evenly spaced ones.
        per_class: images in a row at most, evenly spaced.
        side: pixels of an image on the sheet.
        channels: to decode with.
        what: the images are, for the title.
    """
    labels = spaced(len(dataset.classes), classes)
    step = side + _GAP
    sheet = Image.new("RGB", (_NAME_WIDTH + per_class * step + _GAP, len(labels) * step + 20 + _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), sheet_font(12)
    draw.text((_GAP, _GAP), f"{len(labels)} of {len(dataset.classes)} classes, {what}", "black", font)
    all_labels = np.asarray(dataset.train.labels)
    for row, label in enumerate(labels):
        top = 20 + row * step + _GAP
        members = np.flatnonzero(all_labels == label).tolist()
        draw.text((_GAP, top), printable(dataset.classes[label], _LETTERS), "black", font)
        draw.text((_GAP, top + 16), f"{len(members):,} images", "grey", font)
        for column, place in enumerate(spaced(len(members), per_class)):
            tile = _tile(dataset.train, members[place], channels, side)
            left = _NAME_WIDTH + column * step
            sheet.paste(tile, (left + (side - tile.width) // 2, top + (side - tile.height) // 2))
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    try:
        path.write_bytes(content.getvalue())
    except OSError as problem:
        raise VitletError(f"cannot write the picture {path}: {first_line(problem)}. Choose another path.") from problem


def _tile(images: ImageSet, index: int, channels: int, side: int) -> Image.Image:
    """The whole image within a square; crossed out if it cannot be read."""
    try:
        return thumbnail(Image.fromarray(as_pixels(images.image(index, channels))), side, sharp=1)
    except Exception:  # what is wrong with it stands in the report
        return crossed_out(side)
