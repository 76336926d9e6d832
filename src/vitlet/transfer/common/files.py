"""Sizes of image files without reading their pixels."""

from __future__ import annotations

import warnings
from pathlib import Path

from vitlet.data.decode import MAX_PIXELS, open_image
from vitlet.errors import VitletError, first_line

_ORIENTATION = 0x0112  # the EXIF tag
_LYING = range(5, 9)  # its values that swap height and width


def upright_size(path: Path) -> tuple[int, int]:
    """Height and width of an image as `vitlet.data.decode` gives it: turned by its EXIF tag."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_image(path) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width}x{image.height} pixels are too many")
                turned = image.getexif().get(_ORIENTATION, 1) in _LYING
                return (image.width, image.height) if turned else (image.height, image.width)
    except Exception as problem:  # damaged bytes make Pillow's readers fail in any way
        raise VitletError(f"cannot read the image {path}: {first_line(problem)}. Repair or remove it.") from problem
