"""The batched operations against Pillow's, one image at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vitlet.data import randaugment
from vitlet.data.randaugment import MOVES, OPERATIONS, POINTWISE, RandAugment, _apply

LEVEL = 0.7


def pictures(count: int = 3) -> Tensor:
    """Smooth coloured pictures with some noise, whole-valued."""
    rows, columns = torch.meshgrid(torch.linspace(0, 1, 20), torch.linspace(0, 1, 24), indexing="ij")
    base = torch.stack([rows, columns, 1 - rows * columns])
    shift = torch.arange(count)[:, None, None, None] * 0.1
    return ((base + shift + 0.1 * torch.rand(count, 3, 20, 24)) * 180 + 20).clamp(0, 255).round()


def pillow(name: str, sign: float) -> Callable[[Image.Image], Image.Image]:
    factor = 1 + sign * LEVEL * 0.9
    return {
        "auto_contrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "invert": ImageOps.invert,
        "posterize": lambda image: ImageOps.posterize(image, 4 - int(LEVEL * 4)),
        "solarize": lambda image: ImageOps.solarize(image, 256 - int(LEVEL * 256)),
        "solarize_add": lambda image: image.point(
            [min(255, v + int(LEVEL * 110)) if v < 128 else v for v in range(256)] * 3
        ),
        "color": lambda image: ImageEnhance.Color(image).enhance(factor),
        "contrast": lambda image: ImageEnhance.Contrast(image).enhance(factor),
        "brightness": lambda image: ImageEnhance.Brightness(image).enhance(factor),
        "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(factor),
    }[name]


def apply(images: Tensor, name: str, sign: float, level: float = LEVEL) -> Tensor:
    count = len(images)
    chosen = torch.full((count,), OPERATIONS.index(name))
    return _apply(images, chosen, torch.full((count,), sign), torch.full((count,), level))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", POINTWISE)
def test_equals_pillow(name: str, sign: float) -> None:
    images = pictures()
    out = apply(images, name, sign)
    for image, found in zip(images, out, strict=True):
        expected = pillow(name, sign)(Image.fromarray(image.permute(1, 2, 0).byte().numpy()))
        difference = found.permute(1, 2, 0).numpy() - np.asarray(expected).astype(float)
        assert np.abs(difference).max() <= 2  # Pillow rounds at other places
        assert np.abs(difference).mean() < 0.6


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", MOVES)
def test_moves_equal_pillow(name: str, sign: float) -> None:
    """Against Pillow's own transform; only well inside, since the borders blend with the fill differently."""
    images = pictures(1)
    height, width = images.shape[2:]
    amount = sign * LEVEL
    out = apply(images, name, sign)[0].permute(1, 2, 0).numpy()
    picture = Image.fromarray(images[0].permute(1, 2, 0).byte().numpy())
    fill = (128, 128, 128)
    middle_x, middle_y = width / 2, height / 2
    if name == "rotate":
        expected = picture.rotate(amount * 30, resample=Image.Resampling.BILINEAR, fillcolor=fill)
    else:
        shear_x, shear_y = (amount * 0.3 if name == f"shear_{axis}" else 0.0 for axis in "xy")
        move_x, move_y = (amount * 0.45 if name == f"translate_{axis}" else 0.0 for axis in "xy")
        matrix = (1, shear_x, move_x * width - shear_x * middle_y, shear_y, 1, move_y * height - shear_y * middle_x)
        expected = picture.transform(
            picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR, fillcolor=fill
        )
    difference = np.abs(out - np.asarray(expected).astype(float)).max(-1)
    assert np.median(difference) <= 2
    assert (difference > 12).mean() < 0.15


def test_strongest_posterize_keeps_a_bit() -> None:
    out = apply(pictures(), "posterize", 1.0, level=1.0)
    assert set(out.unique().tolist()) == {0.0, 128.0}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_order_in_memory_does_not_matter(name: str) -> None:
    images = pictures()
    turned = images.contiguous(memory_format=torch.channels_last)  # as decoded images come
    assert torch.equal(apply(turned, name, 1.0), apply(images, name, 1.0))


def test_each_image_gets_its_own_operation() -> None:
    images = pictures(4)
    chosen = torch.tensor([OPERATIONS.index(name) for name in ("invert", "rotate", "equalize", "solarize")])
    sign, level = torch.ones(4), torch.full((4,), LEVEL)
    together = _apply(images, chosen, sign, level)
    for index in range(4):
        alone = _apply(images[index : index + 1], chosen[index : index + 1], sign[:1], level[:1])
        assert torch.allclose(together[index : index + 1], alone, atol=1)
    untouched = _apply(images, torch.full((4,), -1), sign, level)
    assert torch.equal(untouched, images)


def test_operations_are_drawn_alike_and_half_of_the_time() -> None:
    augment = RandAugment(layers=1)
    seen: list[Tensor] = []
    original = randaugment._apply
    try:
        randaugment._apply = lambda images, chosen, sign, level: (seen.append(chosen), seen.append(level), images)[-1]  # type: ignore[assignment, func-returns-value, return-value]
        augment(torch.zeros(6000, 1, 1, 1), torch.rand(6000, augment.keys))
    finally:
        randaugment._apply = original
    chosen, level = seen
    assert 0.47 < (chosen < 0).float().mean() < 0.53
    counts = torch.bincount(chosen[chosen >= 0], minlength=15)
    assert counts.min() > 140
    assert counts.max() < 270
    assert 0.88 < level.mean() < 0.91
    assert 0.03 < level.std() < 0.06


def test_grey_images_are_augmented_too() -> None:
    images = pictures()[:, :1]
    for name in OPERATIONS:
        out = apply(images, name, 1.0)
        assert out.shape == images.shape
        assert out.min() >= 0
        assert out.max() <= 255
