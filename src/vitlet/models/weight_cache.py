"""Trained weights that are on this machine already: files in a folder, and in the caches of timm, the hub and torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vitlet.errors import VitletError, first_line
from vitlet.models.layouts import LAYOUTS, Layout, described, recognize
from vitlet.models.weight_files import PICKLED, read_shapes

ENDS = (".safetensors", *(end for end in PICKLED if end != ".tar"), ".pth.tar")
"""Of the names of files that are looked into."""


@dataclass(frozen=True)
class WeightFile:
    """A file that ``--init`` could be given.

    Attributes:
        path: of the file.
        place: what kind of folder it is in.
        megabytes: its size.
        layout: which `Layout` it is; None where the user has to name the model.
        problem: why it cannot be used; empty where it can.
    """

    path: Path
    place: str
    megabytes: float
    layout: Layout | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **asdict(self),
            "path": str(self.path),
            "layout": self.layout.name if self.layout else None,
            "model": self.layout.model if self.layout else None,
            "licence": self.layout.licence if self.layout else None,
        }


def find_weights_here(folder: Path) -> list[WeightFile]:
    """The files of weights in a folder and in the caches, known layouts first."""
    found = [_look(path, place) for place, root in _places(folder).items() for path in _files(place, root)]
    return sorted(found, key=lambda each: (each.layout is None, bool(each.problem)))


def best_known(folder: Path) -> Path:
    """The file that ``--init auto`` stands for: of the layouts in the table, the first one that is on this machine."""
    usable = {each.layout: each.path for each in find_weights_here(folder) if each.layout and not each.problem}
    wanted = [layout for layout in LAYOUTS if not layout.differs]
    for layout in wanted:
        if layout in usable:
            return usable[layout]
    raise VitletError(
        f"--init auto found no trained weights of a known layout in {folder.resolve()} or in the caches of timm and"
        f" torch; needed is a file such as {' or '.join(layout.file for layout in wanted)}. `vitlet weights` lists"
        " where to get one."
    )


def _places(folder: Path) -> dict[str, Path]:
    """Folders to search; timm's ``--pretrained`` saves weights in the hub's cache."""
    from huggingface_hub import constants

    return {
        "folder": folder,
        "hub cache": Path(constants.HF_HUB_CACHE),
        "torch cache": Path(torch.hub.get_dir()) / "checkpoints",
    }


def _files(place: str, root: Path) -> Iterator[Path]:
    pattern = "models--*/snapshots/*/*" if place == "hub cache" else "*"
    for path in sorted(root.glob(pattern)):
        if path.name.endswith(ENDS) and path.is_file():
            yield path


def _look(path: Path, place: str) -> WeightFile:
    size = path.stat().st_size / 2**20
    try:
        layout = recognize(read_shapes(path)) or described(path)
    except VitletError as problem:
        return WeightFile(path, place, size, problem=first_line(problem))
    return WeightFile(path, place, size, layout)
