"""ImageNet and its small relatives: training images in a folder per WordNet id, validation images in any usual layout.

Classes are WordNet ids in their own order, the one name that is the same in every layout (two classes are "crane").
"""

from __future__ import annotations

import re
from pathlib import Path

from vitlet.data.images import Dataset
from vitlet.data.named.folders import TRAIN, class_names, first_folder, read_classes, roots
from vitlet.data.named.listed import read_lines
from vitlet.data.named.official import Official
from vitlet.data.named.validation import read_validation
from vitlet.errors import VitletError

_WNID = re.compile(r"n\d{8}", re.ASCII)

_KNOWN = {
    "imagenette": "n01440764 n02102040 n02979186 n03000684 n03028079 n03394916 n03417042 n03425413 n03445777 n03888257",
    "imagewoof": "n02086240 n02087394 n02088364 n02089973 n02093754 n02096294 n02099601 n02105641 n02111889 n02115641",
}


def find(official: Official, data_dir: Path, class_list: Path | None = None) -> Dataset | None:
    """Training images by class folder; the validation images are the test images."""
    for root in roots(data_dir, official.folders):
        train = first_folder(root, TRAIN)
        available = _wnids(train) if train is not None else ()
        if train is None or not available:
            continue
        classes = _choose(official, train, available, class_list)
        test, how = read_validation(root, data_dir, classes, strict=official.name != "imagenet100")
        return Dataset(classes, read_classes(train, classes), None, test, f"class folders in {root}{how}")
    return None


def _wnids(folder: Path) -> tuple[str, ...]:
    return tuple(name for name in class_names(folder) if _WNID.fullmatch(name))


def _choose(official: Official, train: Path, available: tuple[str, ...], class_list: Path | None) -> tuple[str, ...]:
    """The classes to keep: those of the list for imagenet100, else all that are there."""
    if official.name in _KNOWN:
        known = _KNOWN[official.name].split()
        stranger = next((wnid for wnid in available if wnid not in known), None)
        if stranger is not None:
            raise VitletError(
                f"{train} holds the class {stranger}, which {official.name} does not have; its classes are"
                f" {', '.join(known)}. Point --data-dir at {official.name}."
            )
    if official.name != "imagenet100" or (class_list is None and len(available) == official.classes):
        return available
    if class_list is None:
        raise VitletError(
            f"{train} holds {len(available):,} classes and imagenet100 has {official.classes}: say which with"
            " --class-list FILE, a WordNet id (such as n02869837) per line."
        )
    wanted = read_class_list(class_list)
    missing = next((wnid for wnid in wanted if wnid not in set(available)), None)
    if missing is not None:
        raise VitletError(f"{class_list} lists {missing}, but {train} has no such folder. Add it, or correct the list.")
    return wanted


def read_class_list(path: Path) -> tuple[str, ...]:
    """The WordNet ids at the start of each line, sorted; lines with ``#`` are remarks."""
    wnids: set[str] = set()
    for line in read_lines(path):
        if line.lstrip().startswith("#"):
            continue
        wnid = line.split()[0]
        if not _WNID.fullmatch(wnid) or wnid in wnids:
            what = "a second time" if wnid in wnids else "no WordNet id (such as n02869837)"
            raise VitletError(
                f"{path} has the line {line[:40]!r}, {what}; a WordNet id per line, each once, is needed."
            )
        wnids.add(wnid)
    return tuple(sorted(wnids))
