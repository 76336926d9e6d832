"""Hugging Face datasets: a folder saved with ``save_to_disk``, or the name of one on the hub (``hf:owner/name``)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from vitlet.data.images import Dataset, EncodedImages, file_inside
from vitlet.data.trees import SPLIT_OF
from vitlet.errors import VitletError, first_line, require_extra

MARKERS = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True)
class HubImages(EncodedImages):
    """A split of a Hugging Face dataset; images are decoded by our own rules."""

    table: Any
    column: str
    labels: tuple[int, ...]
    split: str
    folders: tuple[Path, ...]
    """Where files may lie that are not in the table itself."""

    def content(self, index: int) -> bytes:
        entry = self.table[index][self.column] or {}
        content: bytes | None = entry.get("bytes")
        if content is not None:
            return content
        try:
            return file_inside(entry.get("path") or "", *self.folders).read_bytes()
        except (VitletError, OSError) as problem:
            advice = "Save the dataset with its images in it, as save_to_disk does."
            raise VitletError(f"cannot read the image {self.name(index)}: {problem} {advice}") from problem

    def name(self, index: int) -> str:
        return f"{self.split} image {index}"

    def key(self, index: int) -> str:
        return f"{self.split}/{index}"


def is_saved_dataset(folder: Path) -> bool:
    """Whether ``datasets.save_to_disk`` made this folder."""
    return any((folder / marker).is_file() for marker in MARKERS)


def read_hub(source: str) -> Dataset:
    """All splits of a saved folder or of ``owner/name`` on the hub."""
    datasets = require_extra("datasets", "hub", "reading Hugging Face datasets")
    try:
        found = datasets.load_from_disk(source) if Path(source).is_dir() else datasets.load_dataset(source)
    except Exception as problem:  # offline, no such name, damaged files: each in a type of its own
        raise VitletError(f"cannot load the Hugging Face dataset {source}: {first_line(problem)}.") from problem
    if isinstance(found, datasets.Dataset):
        found = {"train": found}
    tables = {SPLIT_OF[name.lower()]: table for name, table in found.items() if name.lower() in SPLIT_OF}
    if "train" not in tables:
        raise VitletError(f"the dataset {source} has the splits {', '.join(found)}; it needs one named 'train'.")
    folders = (Path(source),) if Path(source).is_dir() else _downloaded(source, datasets)
    image, label, classes = _columns(source, tables["train"], datasets)
    sets, notes = {}, [f"Hugging Face dataset {source}"]
    for split, table in tables.items():
        labels = table[label]
        without = sum(each is None or each < 0 for each in labels)  # -1 stands for labels that are kept secret
        if without and split == "train":
            raise VitletError(f"the dataset {source}: {without} of {len(labels)} training images have no label.")
        if without:
            notes.append(f"the {split} images are skipped: {without} of {len(labels)} have no label")
            continue
        images = table.cast_column(image, datasets.Image(decode=False))
        sets[split] = HubImages(images, image, tuple(map(int, labels)), split, folders)
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), "; ".join(notes))


def _downloaded(name: str, datasets: Any) -> tuple[Path, ...]:
    """Cache folders of a hub dataset: downloaded files and unpacked ones."""
    hub = import_module("huggingface_hub.constants").HF_HUB_CACHE
    return Path(hub) / f"datasets--{name.replace('/', '--')}", Path(datasets.config.DOWNLOADED_DATASETS_PATH)


def _columns(source: str, table: Any, datasets: Any) -> tuple[str, str, tuple[str, ...]]:
    """Names of the image and the label column, and the classes."""
    images = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    labels = [name for name, kind in table.features.items() if isinstance(kind, datasets.ClassLabel)]
    if not images or not labels:
        shown = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in table.features.items())
        raise VitletError(f"the dataset {source} has the columns {shown}; it needs an Image and a ClassLabel.")
    return images[0], labels[0], tuple(table.features[labels[0]].names)
