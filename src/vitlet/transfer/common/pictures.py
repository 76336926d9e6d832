"""Predictions as pictures: boxes, masks and classes drawn over the image."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitlet.errors import VitletError

OPACITY = 0.45
"""Of masks over the image."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def colour(index: int) -> tuple[int, int, int]:
    """A colour for a class, far from that of its neighbours: hues by the golden ratio, in three strengths."""
    hue, strength = index * 0.61803 % 1.0, (1.0, 0.75, 0.55)[index // 8 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, strength)
    return round(255 * red), round(255 * green), round(255 * blue)


def as_pixels(image: Tensor) -> Pixels:
    """uint8 ``(3, height, width)`` as an array that can be drawn on."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def with_mask(pixels: Pixels, mask: Tensor, shade: tuple[int, int, int]) -> Pixels:
    """Pixels of a mask ``(height, width)`` tinted."""
    tinted = pixels.astype(np.float32)
    chosen = mask.bool().cpu().numpy()
    tinted[chosen] = (1 - OPACITY) * tinted[chosen] + OPACITY * np.array(shade, dtype=np.float32)
    return tinted.round().astype(np.uint8)


def with_boxes(
    pixels: Pixels, boxes: Sequence[Sequence[float]], words: Sequence[str], shades: Sequence[Any]
) -> Image.Image:
    """Boxes with a word each, inside the image."""
    picture = Image.fromarray(pixels)
    draw = ImageDraw.Draw(picture)
    size = max(10, min(picture.size) // 30)
    font = ImageFont.load_default(size)
    for box, shade in zip(boxes, shades, strict=True):
        left, top, right, bottom = box
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=shade, width=max(1, size // 6))
    for box, word, shade in zip(boxes, words, shades, strict=True):  # words over all boxes
        word = printable(word)
        width = draw.textlength(word, font=font)
        x = min(max(0.0, box[0]), max(0.0, picture.width - width - 4))
        y = box[1] - size - 4 if box[1] >= size + 4 else max(0.0, box[1])
        draw.rectangle((x, y, x + width + 3, y + size + 3), fill=shade)
        draw.text((x + 2, y), word, fill=readable_on(shade), font=font)
    return picture


def readable_on(shade: tuple[int, int, int]) -> str:
    """Black or white, whichever is easier to read."""
    return "black" if 0.3 * shade[0] + 0.59 * shade[1] + 0.11 * shade[2] > 140 else "white"


def printable(word: str) -> str:
    """One line of a class's name, whatever it holds."""
    return "".join(sign if sign.isprintable() else " " for sign in word)[:40]


def make_folder(folder: Path) -> None:
    """The folder of the pictures, there from now on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        why = "it is a file" if folder.is_file() else problem.strerror
        raise VitletError(f"{folder} cannot be a folder of pictures: {why}. Choose another --output.") from problem


def beside(images: Sequence[Path]) -> set[Path]:
    """What no picture may be written onto: everything in the folders of the images, which is its owner's."""
    return {file.resolve() for folder in {image.parent for image in images} for file in folder.iterdir()}


def free_name(folder: Path, image: Path, taken: set[Path]) -> Path:
    """A file for an image's picture; images of one name, and names that are taken, get a number."""
    number, path = 1, folder / f"{image.stem}.png"
    while path.resolve() in taken:
        number += 1
        path = folder / f"{image.stem}-{number}.png"
    taken.add(path.resolve())
    return path
