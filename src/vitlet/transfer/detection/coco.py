"""COCO's layout: images, and JSON files with boxes, polygons, run-length masks and crowd regions.

Everything is checked before training: invalid annotations are refused with an error message, those that can be left
out are left out and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from vitlet.errors import VitletError
from vitlet.transfer.common.files import upright_size
from vitlet.transfer.detection.masks import as_rle
from vitlet.values import is_number

LARGEST_NUMBER = 1e9
"""Pixels: beyond it a box or an area cannot be meant."""

SPLIT_FOLDERS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Thing:
    """An annotated object: a box as left, top, width and height, its class from 0, and its mask as it is stored."""

    box: tuple[float, float, float, float]
    label: int
    crowd: bool
    area: float
    segmentation: Any


@dataclass(frozen=True)
class CocoImage:
    """An image and its objects; ``trained`` are those that training sees."""

    id: int
    path: Path
    height: int
    width: int
    things: tuple[Thing, ...]

    @property
    def trained(self) -> list[Thing]:
        """Objects with an area that are not crowds."""
        return [thing for thing in self.things if not thing.crowd and _has_area(thing, self)]


@dataclass(frozen=True)
class CocoSplit:
    """Images of one file, and the categories of that file as (id, name)."""

    file: Path
    images: tuple[CocoImage, ...]
    categories: tuple[tuple[int, str], ...]

    @cached_property
    def masks(self) -> bool:
        """Whether every object that training sees has a mask."""
        things = [thing for image in self.images for thing in image.trained]
        return bool(things) and all(thing.segmentation for thing in things)

    def files(self) -> list[Path]:
        """The annotations and the images."""
        return [self.file, *(image.path for image in self.images)]

    def parted(self, kept: Iterable[CocoImage], held: Iterable[CocoImage]) -> tuple[CocoSplit, CocoSplit]:
        """The split in two: images to train on, and images held out."""
        one, other = (CocoSplit(self.file, tuple(images), self.categories) for images in (kept, held))
        return one, other

    @cached_property
    def counts(self) -> dict[str, int]:
        """Counts for the description."""
        every = [(thing, image) for image in self.images for thing in image.things]
        without_area = [thing for thing, image in every if not thing.crowd and not _has_area(thing, image)]
        return {
            "images without objects": sum(not image.trained for image in self.images),
            "crowd regions, which only evaluation sees": sum(thing.crowd for thing, _ in every),
            "objects without area left out of training": len(without_area),
            "objects without a mask": sum(t.segmentation is None for image in self.images for t in image.trained),
        }

    def note(self) -> str:
        """Description of the dataset."""
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items() if count)
        boxes = sum(len(image.trained) for image in self.images)
        return f"{len(self.images)} images with {boxes} objects" + (f" ({counts})" if counts else "")


def open_coco(data: Path) -> dict[str, CocoSplit]:
    """The splits of a folder; the categories of all of them agree."""
    if not data.is_dir():
        raise VitletError(f"no such folder: {data}. `vitlet detect` needs a folder in COCO's layout.")
    files = _annotation_files(data)
    splits = {name: read_split(file, images) for name, (file, images) in files.items()}
    first = next(iter(splits.values()))
    for split in splits.values():
        if split.categories != first.categories:
            raise VitletError(f"{split.file} lists other categories than {first.file}; they need to be the same.")
    return splits


def _annotation_files(data: Path) -> dict[str, tuple[Path, list[Path]]]:
    """For each split its file and the folders its images may lie in."""
    found: dict[str, tuple[Path, list[Path]]] = {}
    for file in sorted((data / "annotations").glob("instances_*.json")):
        folder = file.stem.removeprefix("instances_")
        split = next((name for name in SPLIT_FOLDERS if folder.startswith(SPLIT_FOLDERS[name])), None)
        if split is None:
            continue
        if split in found:
            raise VitletError(
                f"{data / 'annotations'} holds two files for {split}: {found[split][0].name} and {file.name}. Keep one."
            )
        found[split] = (file, [data / folder, data / "images" / folder, data / "images", data])
    for split, names in SPLIT_FOLDERS.items():  # a file in each split's folder, beside its images
        for name in names:
            for file in sorted((data / name).glob("*annotations*.json")):
                found.setdefault(split, (file, [data / name, data / name / "images"]))
    if not found:
        for file in sorted(data.glob("*annotations*.json")):
            found.setdefault("train", (file, [data, data / "images"]))
    if not found:
        raise VitletError(
            f"{data} holds no COCO annotations: needed are annotations/instances_NAME.json with the images in NAME/, or"
            " train/_annotations.coco.json beside the images."
        )
    return found


def read_split(file: Path, folders: Sequence[Path]) -> CocoSplit:
    """Read and check one file and the sizes of its images."""
    content = _read_json(file)
    categories = _categories(content["categories"], file)
    labels = {number: index for index, (number, _) in enumerate(categories)}
    listed = _listed_images(content["images"], file)
    paths = _image_files(listed, folders, file)  # first: masks are made of the sizes that entries say
    things: dict[int, list[Thing]] = {number: [] for number in listed}
    strangers: dict[str, list[Any]] = {"name images": [], "have categories": []}
    for entry in content["annotations"]:
        where = f"{file}: annotation {entry.get('id') if isinstance(entry, dict) else entry!r}"
        if not isinstance(entry, dict):
            raise VitletError(f"{where} must be an object.")
        if not _is_among(entry.get("image_id"), listed):
            strangers["name images"].append(entry.get("image_id"))
        elif not _is_among(entry.get("category_id"), labels):
            strangers["have categories"].append(entry.get("category_id"))
        else:
            image = listed[entry["image_id"]]
            things[entry["image_id"]].append(_thing(entry, labels[entry["category_id"]], image, where))
    for what, found in strangers.items():
        if found:
            raise VitletError(
                f"{file}: {len(found)} annotations {what} that it does not list, the first: {found[0]!r:.80}."
            )
    images = tuple(
        CocoImage(number, paths[number], entry["height"], entry["width"], tuple(things[number]))
        for number, entry in sorted(listed.items())
    )
    return CocoSplit(file, images, categories)


def _read_json(file: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as problem:
        raise VitletError(
            f"{file} is not valid JSON: {problem.msg} in line {problem.lineno}, column {problem.colno}."
        ) from problem
    except (OSError, ValueError, RecursionError) as problem:
        raise VitletError(f"cannot read {file}: {problem}.") from problem
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise VitletError(f"{file} is not in COCO's layout: it needs a list '{key}'.")
    found: dict[str, list[Any]] = content
    return found


def _categories(entries: Sequence[Any], file: Path) -> tuple[tuple[int, str], ...]:
    found: dict[int, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int) or "name" not in entry:
            raise VitletError(f"{file}: a category needs an id and a name, found {str(entry)[:80]}.")
        if entry["id"] in found:
            raise VitletError(f"{file}: two categories have the id {entry['id']}.")
        found[entry["id"]] = str(entry["name"])
    if not found:
        raise VitletError(f"{file} lists no categories.")
    return tuple(sorted(found.items()))


def _listed_images(entries: Sequence[Any], file: Path) -> dict[int, Mapping[str, Any]]:
    listed: dict[int, Mapping[str, Any]] = {}
    for entry in entries:
        good = isinstance(entry, dict) and isinstance(entry.get("id"), int) and isinstance(entry.get("file_name"), str)
        if not good or not all(isinstance(entry.get(side), int) and entry[side] > 0 for side in ("height", "width")):
            raise VitletError(
                f"{file}: an image needs id, file_name, height and width above 0; found {str(entry)[:120]}."
            )
        name = PurePosixPath(entry["file_name"])
        if name.is_absolute() or ".." in name.parts or re.match(r"[A-Za-z]:|.*\\", entry["file_name"]):
            raise VitletError(f"{file}: the file name {entry['file_name']!r} points outside of the folder of images.")
        if entry["id"] in listed:
            raise VitletError(f"{file}: two images have the id {entry['id']}.")
        listed[entry["id"]] = entry
    if not listed:
        raise VitletError(f"{file} lists no images.")
    return listed


def _thing(entry: Mapping[str, Any], label: int, image: Mapping[str, Any], where: str) -> Thing:
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(is_number(side, LARGEST_NUMBER) for side in box):
        raise VitletError(f"{where} must have a box [left, top, width, height], got {str(box)[:80]}.")
    left, top, width, height = (float(side) for side in box)
    segmentation = entry.get("segmentation") or None
    if segmentation is not None:
        segmentation = as_rle(segmentation, image["height"], image["width"], where)
    area, crowd = entry.get("area"), entry.get("iscrowd")
    if area is not None and not is_number(area, LARGEST_NUMBER):
        raise VitletError(f"{where} must have an area in pixels, or none, got {str(area)[:80]}.")
    if crowd not in (None, 0, 1):
        raise VitletError(f"{where} must have iscrowd 0 or 1, got {str(crowd)[:80]!r}.")
    own = max(0.0, width) * max(0.0, height) if area is None else float(area)
    return Thing((left, top, width, height), label, bool(crowd), own, segmentation)


def _is_among(value: Any, known: Mapping[int, Any]) -> bool:
    return isinstance(value, (int, float)) and value in known


def _image_files(listed: Mapping[int, Mapping[str, Any]], folders: Sequence[Path], file: Path) -> dict[int, Path]:
    """The files of the images, which have to be there and of the size that the annotations were made on."""
    folder = next((each for each in folders if any((each / e["file_name"]).is_file() for e in listed.values())), None)
    paths = {number: (folder or folders[0]) / entry["file_name"] for number, entry in listed.items()}
    missing = [path for path in paths.values() if not path.is_file()]
    if missing:
        raise VitletError(f"{file}: {len(missing)} of {len(paths)} images are not there, the first: {missing[0]}.")
    wrong = []
    for number, entry in listed.items():
        height, width = upright_size(paths[number])
        if (height, width) != (entry["height"], entry["width"]):
            wrong.append(f"{paths[number]} has {height}x{width} pixels, its entry {entry['height']}x{entry['width']}")
    if wrong:
        raise VitletError(f"{file}: {len(wrong)} images have another size than stated, the first: {wrong[0]}.")
    return paths


def _has_area(thing: Thing, image: CocoImage) -> bool:
    """Whether something of the box lies in the image, and something of the mask where there is one."""
    left, top, width, height = thing.box
    inside = min(left + width, image.width) - max(left, 0), min(top + height, image.height) - max(top, 0)
    return min(inside) > 0 and (thing.segmentation is None or not thing.segmentation.get("empty", False))
