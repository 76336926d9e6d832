"""Small pictures of rectangles and discs with everything that is known of them, as files in the usual layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"rectangle": (220, 60, 40), "disc": (40, 90, 220)}
CATEGORIES = [{"id": 3, "name": "rectangle"}, {"id": 7, "name": "disc"}]


def draw(seed: int, height: int = 48, width: int = 64) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Pixels, and the category and mask of each of two shapes."""
    random = np.random.default_rng(seed)
    pixels = random.integers(90, 140, (height, width, 3)).astype(np.uint8)
    rows, columns = np.mgrid[:height, :width]
    things = []
    for number, category in enumerate(CATEGORIES):
        half = int(random.integers(7, 11))
        y = int(random.integers(half, height - half))
        x = int(random.integers(half, width // 2 - half)) + number * width // 2
        if category["name"] == "disc":
            mask = (rows - y) ** 2 + (columns - x) ** 2 < half**2
        else:
            mask = (abs(rows - y) < half) & (abs(columns - x) < half)
        pixels[mask] = COLOURS[str(category["name"])]
        things.append((int(category["id"]), mask))
    return pixels, things


def runs(mask: np.ndarray) -> list[int]:
    """Uncompressed run lengths, column by column, the first of zeros."""
    flat = mask.T.reshape(-1).astype(int)
    places = np.flatnonzero(np.diff(np.concatenate([[0], flat, [1 - flat[-1]]])))
    return [int(each) for each in np.diff(np.concatenate([[0], places]))]


def annotation(number: int, image: int, category: int, mask: np.ndarray, *, polygon: bool) -> dict[str, Any]:
    ys, xs = np.nonzero(mask)
    left, top, right, bottom = (int(side) for side in (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1))
    segmentation: Any = {"size": list(mask.shape), "counts": runs(mask)}
    if polygon:
        segmentation = [[left, top, right, top, right, bottom, left, bottom]]
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": [left, top, right - left, bottom - top],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": segmentation,
    }


def write_coco(root: Path, images: int = 4, splits: tuple[str, ...] = ("train", "val")) -> Path:
    """COCO's layout; rectangles as polygons, discs as run lengths."""
    (root / "annotations").mkdir(parents=True)
    for place, split in enumerate(splits):
        (root / split).mkdir()
        listed: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for index in range(images):
            pixels, things = draw(100 * place + index)
            Image.fromarray(pixels).save(root / split / f"{index}.png")
            listed.append({"id": index + 1, "file_name": f"{index}.png", "height": 48, "width": 64})
            for category, mask in things:
                number = len(annotations) + 1
                annotations.append(annotation(number, index + 1, category, mask, polygon=category == 3))
        write_json(root, split, {"images": listed, "annotations": annotations, "categories": CATEGORIES})
    return root


def read_json(root: Path, split: str = "train") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / "annotations" / f"instances_{split}.json").read_text())
    return content


def write_json(root: Path, split: str, content: dict[str, Any]) -> None:
    (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


def classes(seed: int) -> np.ndarray:
    """0 background, 1 rectangle, 2 disc, 3 a strip that does not count."""
    mask = np.zeros((48, 64), np.uint8)
    for label, (_, shape) in enumerate(draw(seed)[1], start=1):
        mask[shape] = label
    mask[:, :4] = 3
    return mask


def write_masks(root: Path, images: int = 4, splits: tuple[str, ...] = ("train", "val")) -> Path:
    """Folders of images and masks, with names of classes."""
    for place, split in enumerate(splits):
        for kind in ("images", "masks"):
            (root / split / kind).mkdir(parents=True)
        for index in range(images):
            seed = 100 * place + index
            Image.fromarray(draw(seed)[0]).save(root / split / "images" / f"{index}.png")
            Image.fromarray(classes(seed)).save(root / split / "masks" / f"{index}.png")
    (root / "classes.txt").write_text("background\nrectangle\ndisc\nnothing\n")
    return root
