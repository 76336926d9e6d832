"""Drawing on images: heat maps, masks, boxes and legends over them, thumbnails of them."""

from __future__ import annotations

import base64
import colorsys
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitlet.pictures import printable

HEAT = "inferno"
"""The colour map of heat maps."""

OPACITY = 0.45
"""Of masks over the image."""

LETTERS = 40
"""Of a class's name on a picture."""

READABLE = 256
"""Longer side in pixels below which images beside a legend are enlarged, so that there is room for its words."""

GAP = 4
"""Pixels between images side by side."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Shade = tuple[int, int, int]


def as_pixels(image: Any) -> Pixels:
    """uint8 ``(channels, height, width)`` as ``(height, width, 3)``: the first three channels, or the only one."""
    shown = np.asarray(image)
    shown = shown[:3] if len(shown) >= 3 else np.repeat(shown[:1], 3, axis=0)
    return np.ascontiguousarray(shown.transpose(1, 2, 0))


def thumbnail(picture: Image.Image, side: int, *, sharp: float = 4) -> Image.Image:
    """A picture whose longer side is ``side``; one that grows by ``sharp`` or more keeps its pixels' edges."""
    scale = side / max(picture.size)
    method = Image.Resampling.NEAREST if scale >= sharp else Image.Resampling.LANCZOS
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, method, reducing_gap=3.0)


def overlay(picture: Image.Image, values: Any) -> Image.Image:
    """A heat map over a picture, dark to bright from the smallest to the largest value."""
    array = np.asarray(values, np.float64)
    spread = array.max() - array.min()
    array = (array - array.min()) / spread if spread > 0 else np.zeros_like(array)
    heat = Image.fromarray((matplotlib.colormaps[HEAT](array)[..., :3] * 255).astype(np.uint8))
    strength = Image.fromarray((255 * (0.3 + 0.5 * array)).astype(np.uint8))
    heat, strength = (each.resize(picture.size, Image.Resampling.BICUBIC) for each in (heat, strength))
    return Image.composite(heat, picture, strength)


def show_map(axis: Any, pixels: Any, values: Any, title: str) -> None:
    """An image on an axis of matplotlib, and a map over it if there is one."""
    height, width = pixels.shape[:2]
    axis.imshow(pixels, extent=(0, width, height, 0))
    if values is not None:
        heat = np.asarray(values)
        axis.imshow(heat, cmap=HEAT, alpha=0.65, extent=(0, width, height, 0), interpolation="nearest")
    axis.set(xlim=(0, width), ylim=(height, 0))
    axis.set_title(title.replace("$", r"\$"), fontsize=8)  # no mathematics


def colour(index: int) -> Shade:
    """A colour for a class, far from that of its neighbours: hues by the golden ratio, in three strengths."""
    hue, strength = index * 0.61803 % 1.0, (1.0, 0.75, 0.55)[index // 8 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, strength)
    return round(255 * red), round(255 * green), round(255 * blue)


def with_mask(pixels: Pixels, mask: Any, shade: Shade) -> Pixels:
    """Pixels of a mask ``(height, width)`` of booleans tinted."""
    tinted = pixels.astype(np.float32)
    chosen = np.asarray(mask)
    tinted[chosen] = (1 - OPACITY) * tinted[chosen] + OPACITY * np.array(shade, dtype=np.float32)
    return tinted.round().astype(np.uint8)


def with_boxes(
    pixels: Pixels, boxes: Sequence[Sequence[float]], words: Sequence[str], shades: Sequence[Shade]
) -> Image.Image:
    """Boxes with a word each, inside the image."""
    picture = Image.fromarray(pixels)
    draw = ImageDraw.Draw(picture)
    size = max(10, min(picture.size) // 30)
    font = ImageFont.load_default(size)
    for (left, top, right, bottom), shade in zip(boxes, shades, strict=True):
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=shade, width=max(1, size // 6))
    for box, word, shade in zip(boxes, words, shades, strict=True):  # words over all boxes
        word = printable(word, LETTERS)
        width = draw.textlength(word, font=font)
        x = min(max(0.0, box[0]), max(0.0, picture.width - width - 4))
        y = box[1] - size - 4 if box[1] >= size + 4 else max(0.0, box[1])
        draw.rectangle((x, y, x + width + 3, y + size + 3), fill=shade)
        dark = 0.3 * shade[0] + 0.59 * shade[1] + 0.11 * shade[2] <= 140
        draw.text((x + 2, y), word, fill="white" if dark else "black", font=font)
    return picture


def with_note(picture: Image.Image, text: str) -> Image.Image:
    """The picture, and a line of text below it."""
    size = max(11, min(picture.size) // 30)
    font = ImageFont.load_default(size)
    width = max(picture.width, round(font.getlength(text)) + 8)
    noted = Image.new("RGB", (width, picture.height + size + 8), "white")
    noted.paste(picture, (0, 0))
    ImageDraw.Draw(noted).text((4, picture.height + 3), text, fill="black", font=font)
    return noted


def with_legend(images: Sequence[Pixels], names: Sequence[str], shades: Sequence[Shade]) -> Image.Image:
    """Images of one size side by side, small ones enlarged, and below them the names of the colours.

    The legend has at most a third of the images' height; names beyond that are counted.
    """
    factor = max(1, -(-READABLE // max(images[0].shape[:2])))
    height, width = (factor * side for side in images[0].shape[:2])
    size = max(12, min(height, width) // 30)
    font = ImageFont.load_default(size)
    words = [printable(name, LETTERS) for name in names]
    wide, line = round(max(map(font.getlength, words))) + size + 16, size + 6
    whole = max(len(images) * (width + GAP) - GAP, wide)
    columns = whole // wide
    room = columns * max(1, height // 3 // line)
    named = len(words) if len(words) <= room else room - 1
    words[named:] = [f"and {len(words) - named} more"] if named < len(words) else []
    picture = Image.new("RGB", (whole, height + -(-len(words) // columns) * line + 6), "white")
    for place, image in enumerate(images):
        enlarged = Image.fromarray(image).resize((width, height), Image.Resampling.NEAREST)
        picture.paste(enlarged, (place * (width + GAP), 0))
    draw = ImageDraw.Draw(picture)
    for place, word in enumerate(words):
        x, y = place % columns * wide + 3, height + place // columns * line + 5
        if place < named:
            draw.rectangle((x, y, x + size, y + size), fill=shades[place])
        draw.text((x + size + 4, y), word, fill="black", font=font)
    return picture


def sheet_font(size: int) -> Any:
    """DejaVu Sans, which has more scripts than Pillow's own font and comes with matplotlib."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)


def crossed_out(side: int) -> Image.Image:
    """Placeholder for an image that cannot be read."""
    square = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(square)
    draw.rectangle((0, 0, side - 1, side - 1), outline="red")
    draw.line((0, 0, side, side), "red")
    draw.line((0, side, side, 0), "red")
    return square


def data_uri(picture: Image.Image, form: str = "WEBP", *, lossless: bool = False) -> str:
    """A picture as an address that holds it, for pages."""
    content = io.BytesIO()
    picture.save(content, form, **({"quality": 82, "lossless": lossless} if form == "WEBP" else {}))
    return f"data:image/{form.lower()};base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
