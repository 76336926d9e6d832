"""Every kind of image file ends in the pixels a person would see, or in a sentence."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, features

from vitlet.data import decode
from vitlet.data.decode import decode_image, read_image
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError
from vitlet.transfer.common.files import upright_size
from vitlet.transfer.segmentation.masks import read_mask

RAMP = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(content: bytes, channels: int = 3) -> torch.Tensor:
    return decode_image(content, channels, name="it")


def test_grey_becomes_three_equal_channels() -> None:
    out = decoded(encoded(Image.fromarray(RAMP)))
    assert out.dtype == torch.uint8
    assert all(np.array_equal(channel, RAMP) for channel in out.numpy())
    assert np.array_equal(decoded(encoded(Image.fromarray(RAMP)), 1)[0], RAMP)


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    wide = (RAMP.astype(np.uint16) * 257).astype(np.uint16)
    out = decoded(encoded(Image.fromarray(wide)))
    assert np.array_equal(out[0], RAMP)
    tiff = decoded(encoded(Image.fromarray(wide), "TIFF"), 1)
    assert np.array_equal(tiff[0], RAMP)


@pytest.mark.parametrize("top", [1.0, 255.0, 65535.0])
def test_floats_are_scaled_and_holes_are_refused(top: float) -> None:
    values = np.array([[0.0, top / 2, top]], dtype=np.float32)
    assert decoded(encoded(Image.fromarray(values), "TIFF"), 1)[0, 0].tolist() == [0, 128, 255]
    for hole in (np.nan, np.inf):
        values[0, 1] = hole
        with pytest.raises(VitletError, match="cannot read the image it: 1 of its pixels are not finite numbers"):
            decoded(encoded(Image.fromarray(values), "TIFF"), 1)


def test_palette_and_cmyk_are_converted() -> None:
    colours = Image.fromarray(np.stack([RAMP, RAMP.T, 255 - RAMP], axis=-1))
    palette = colours.convert("P", palette=Image.Palette.ADAPTIVE, colors=64)
    assert np.array_equal(decoded(encoded(palette)).permute(1, 2, 0), np.asarray(palette.convert("RGB")))
    cmyk = encoded(colours.convert("CMYK"), "TIFF")
    found = decoded(cmyk).permute(1, 2, 0).numpy().astype(int)
    assert np.abs(found - np.asarray(colours).astype(int)).max() <= 1


def test_transparency_shows_the_stated_colour() -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert decoded(encoded(clear)).flatten().unique().tolist() == [255]
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert decoded(encoded(half))[0, 0, 0].item() in (126, 127)
    marked = Image.new("P", (4, 4), 0)
    marked.putpalette([255, 0, 0, 0, 255, 0])
    assert decoded(encoded(marked, transparency=0)).flatten().unique().tolist() == [255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_animations_give_their_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    options = {"lossless": True} if kind == "WEBP" else {}
    out = decoded(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert out[:, 4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = np.zeros((16, 24, 3), np.uint8)
    upright[:8, :8] = 255  # the top-left corner is white
    stored_by = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"}
    stored_by |= {6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270"}
    stored = Image.fromarray(upright)
    if orientation > 1:
        stored = stored.transpose(Image.Transpose[stored_by[orientation]])
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = decoded(encoded(stored, "PNG", exif=exif))
    assert out.shape == (3, 16, 24)
    assert np.array_equal(out.permute(1, 2, 0), upright)


def test_other_numbers_of_channels() -> None:
    four = Image.merge("RGBA", [Image.fromarray(RAMP + offset) for offset in range(4)])
    out = decoded(encoded(four), 4)
    assert out.shape == (4, 8, 8)
    assert np.array_equal(out[3], RAMP + 3)
    with pytest.raises(VitletError, match=r"has 3 channels \(RGB\), 5 are required"):
        decoded(encoded(Image.new("RGB", (4, 4))), 5)


@pytest.mark.parametrize("content", [b"", b"some text", b"\x89PNG\r\n\x1a\nbroken", b"GIF89a"])
def test_what_is_no_image_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "bad.png"
    file.write_bytes(content)
    with pytest.raises(VitletError, match=r"cannot read the image .*bad\.png.*Repair or remove it"):
        read_image(file, 3)


@pytest.mark.parametrize("reader", [lambda path: read_image(path, 3), upright_size, read_mask])
def test_postscript_starts_no_program(
    reader: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, *_, **__: started.append(command))
    file = tmp_path / "harmless.png"
    file.write_bytes(encoded(Image.new("L", (8, 8)), "EPS"))
    with pytest.raises(VitletError, match=r"cannot read the (image|mask) .*harmless\.png: (it is no|cannot identify)"):
        reader(file)
    assert not started


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot write AVIF")
def test_avif_is_read() -> None:
    assert decode.is_image("a/photo.AVIF")
    out = decoded(encoded(Image.new("RGB", (8, 8), (200, 10, 10)), "AVIF", quality=100))
    assert abs(int(out[0].float().mean()) - 200) < 8


def test_heic_is_read_where_its_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    package = SimpleNamespace(register_heif_opener=lambda: called.append(1))
    monkeypatch.setitem(sys.modules, "pillow_heif", package)  # type: ignore[arg-type]
    formats, suffixes = decode._readers()
    assert called
    assert "HEIF" in formats
    assert ".heic" in suffixes
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # type: ignore[arg-type]
    formats, suffixes = decode._readers()
    assert "HEIF" not in formats
    monkeypatch.setattr(decode, "FORMATS", formats)
    with pytest.raises(VitletError, match=r"it is a HEIC image, which needs pillow-heif: pip install 'vitlet\[heic\]'"):
        decoded(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")


def test_files_meet_pillow_in_one_place() -> None:
    source = Path(decode.__file__).parents[1]
    found = [file.name for file in source.rglob("*.py") if "Image.open(" in file.read_text(encoding="utf-8")]
    assert found == ["decode.py"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated_files_are_never_half_grey(kind: str) -> None:
    whole = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)), kind)
    with pytest.raises(VitletError, match="cannot read the image it"):
        decoded(whole[: len(whole) // 2])


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_PIXELS", 1000)
    with pytest.raises(VitletError, match="40x40 pixels"):
        decoded(encoded(Image.new("RGB", (40, 40))))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(VitletError, match="no such image file"):
        read_image(tmp_path / "absent.png", 3)


def test_no_network_takes_images_that_fill_the_memory() -> None:
    with pytest.raises(VitletError, match="at most 8192 pixels a side"):
        Preprocess((10**9, 16), crop_pct=1.0, mean=[0.5], std=[0.5])
