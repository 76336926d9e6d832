"""Decoding of image files to pixels, the same for training, evaluation, prediction and export.

Upright by its EXIF tag, 16-bit scaled (not clipped), palettes and CMYK converted, transparency laid on a stated colour,
the first frame of an animation. Files that are no images, truncated, or too large are refused by name.
"""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError, features
from torch import Tensor

from vitlet.errors import VitletError, first_line

BACKGROUND = (255, 255, 255)
"""What shows through transparent pixels."""

HEIC_SUFFIXES = (".heic", ".heif")
"""Photographs of telephones, which another package reads."""


def _readers() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Formats that are read here, and endings of their files: AVIF and HEIC depend on what is installed."""
    formats = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]
    suffixes = [".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jpe", ".jfif", ".ppm", ".pgm"]
    if "avif" in features.get_supported_modules():
        formats, suffixes = [*formats, "AVIF"], [*suffixes, ".avif"]
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
        formats, suffixes = [*formats, "HEIF"], [*suffixes, *HEIC_SUFFIXES]
    return tuple(formats), tuple(suffixes)


FORMATS, IMAGE_SUFFIXES = _readers()
"""The readers of Pillow that any file meets, whatever it is called (of the others some start programs); endings of
the files that are taken for images."""

MAX_PIXELS = 100_000_000
"""Larger images are refused as decompression bombs."""

CANNOT_READ, REPAIR = "cannot read the image ", " Repair or remove it."
"""How the error about one image begins and ends, for those who join several."""

GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"}
"""Pillow's modes of images without colour."""

Bytes = NDArray[np.uint8]

_ORIENTATION = 0x0112  # the EXIF tag
_BITS_PER_SAMPLE = 258  # the TIFF tag


@dataclass(frozen=True)
class Header:
    """How an image is stored: orientation, bit depth, mode."""

    format: str
    mode: str
    bits: int
    rotated: bool
    animated: bool


def is_hidden(path: PurePath) -> bool:
    """Whether something in a relative path begins with a dot, or is what macOS adds to a zip."""
    return any(part.startswith((".", "__MACOSX")) for part in path.parts)


def is_image(path: str | PurePath) -> bool:
    """Whether a relative path is that of an image, by its ending; hidden files are not."""
    path = PurePath(path)
    return path.suffix.lower() in IMAGE_SUFFIXES and not is_hidden(path)


def describe_others(others: Iterable[PurePath]) -> str:
    """One line about files beside the images that are not read: how many of which kind, and why; empty for none."""
    others = sorted(others)
    if not others:
        return ""
    kinds = Counter(path.suffix.lower() or "no ending" for path in others).most_common()
    shown = ", ".join(f"{kind}: {count}" for kind, count in kinds[:5]) + (", ..." if kinds[5:] else "")
    heic = next((path for path in others if path.suffix.lower() in HEIC_SUFFIXES), None)
    note = f"files skipped because their format is not supported: {len(others)} ({shown}), such as {heic or others[0]}"
    return note + (", which needs pillow-heif: pip install 'vitlet[heic]'" if heic else "")


def read_image(path: Path, channels: int) -> Tensor:
    """Decode a file as uint8 ``(channels, height, width)``."""
    if not path.is_file():
        raise VitletError(f"no such image file: {path}.")
    return decode_image(path.read_bytes(), channels, name=str(path))


def open_image(file: Path | io.BytesIO) -> Image.Image:
    """Pillow's image, its pixels not read yet; the one place where a file meets Pillow."""
    return Image.open(file, formats=FORMATS)


def decode_image(content: bytes, channels: int, *, name: str) -> Tensor:
    """Decode an image's bytes as uint8 ``(channels, height, width)``; ``name`` is used in error messages."""
    return decode_with_header(content, channels, name=name)[0]


def decode_with_header(content: bytes, channels: int, *, name: str) -> tuple[Tensor, Header]:
    """Decoded image, and how it was stored."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata; what matters raises
            with open_image(io.BytesIO(content)) as opened:
                if opened.width * opened.height > MAX_PIXELS:
                    raise Image.DecompressionBombError(f"{opened.width}x{opened.height} pixels")
                header = Header(
                    format=opened.format or "",
                    mode=opened.mode,
                    bits=_bits(opened, content),
                    rotated=opened.getexif().get(_ORIENTATION, 1) in range(2, 9),
                    animated=bool(getattr(opened, "is_animated", False)),
                )
                pixels = _pixels(ImageOps.exif_transpose(opened), channels)
    except Exception as problem:  # damaged bytes make Pillow's readers fail in any way
        raise VitletError(f"{CANNOT_READ}{name}: {_reason(problem, content)}.{REPAIR}") from problem
    return torch.from_numpy(pixels), header


def _bits(image: Image.Image, content: bytes) -> int:
    """Bits per channel in the file: Pillow opens 16-bit RGB as mode RGB, so the mode alone does not tell."""
    if image.format == "PNG":
        return content[24]  # of the IHDR chunk, which comes first
    if image.format == "TIFF":
        stored = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))
        return int(max(stored) if isinstance(stored, tuple) else stored)
    if image.mode.startswith("I;16"):
        return 16
    return {"1": 1, "I": 16, "F": 32}.get(image.mode, 8)


def _reason(problem: Exception, content: bytes) -> str:
    """Why it cannot be read, for an error message."""
    if not content:
        return "the file is empty"
    if isinstance(problem, UnidentifiedImageError):
        if content[4:8] == b"ftyp" and content[8:11] in (b"hei", b"hev", b"mif", b"msf"):
            return "it is a HEIC image, which needs pillow-heif: pip install 'vitlet[heic]'"
        return f"it is not in a supported image format, {', '.join(FORMATS)} (it begins with {content[:12]!r})"
    return first_line(problem)


def _pixels(image: Image.Image, channels: int) -> Bytes:
    """``(channels, height, width)`` uint8 of a Pillow image of any mode."""
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(_to_bytes(np.asarray(image)))
    if channels not in (1, 3):
        return _many_channels(image, channels)
    if image.has_transparency_data:
        solid = Image.new("RGBA", image.size, (*BACKGROUND, 255))
        image = Image.alpha_composite(solid, image.convert("RGBA"))
    array = np.array(image.convert("L" if channels == 1 else "RGB"))
    return np.ascontiguousarray(array[None] if channels == 1 else array.transpose(2, 0, 1))


def _to_bytes(values: NDArray[np.generic]) -> Bytes:
    """Sixteen-bit (and wider) grey scaled to eight: 65535 becomes 255; floats are 0 to 1, to 255 or to 65535."""
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{int((~np.isfinite(numbers)).sum())} of its pixels are not finite numbers")
    if values.dtype.kind == "f":
        top = next((top for top in (1.0, 255.0) if numbers.max(initial=0.0) <= top), 65535.0)
    else:
        top = 65535.0 if numbers.max(initial=0.0) <= 65535 else 4294967295.0
    return np.clip(np.rint(numbers / top * 255), 0, 255).astype(np.uint8)


def _many_channels(image: Image.Image, channels: int) -> Bytes:
    """The image's own bands, where there are as many as asked for (2: grey and alpha, 4: RGBA or CMYK)."""
    bands = np.atleast_3d(np.array(image)).transpose(2, 0, 1)
    if len(bands) != channels:
        raise ValueError(f"it has {len(bands)} channels ({image.mode}), {channels} are required")
    return np.ascontiguousarray(bands)
