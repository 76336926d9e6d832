"""The six domains of DomainNet, split by the official lists of `path label` lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitlet.data.images import Dataset
from vitlet.data.named.folders import read_lines, read_listed, roots
from vitlet.data.named.official import Official
from vitlet.errors import VitletError

_LISTS = (".", "txt", "splits", "image_list")


def find_domainnet(official: Official, data_dir: Path) -> Dataset | None:
    """The images of a domain and its two lists."""
    domain = official.name.removeprefix("domainnet-")
    for root in roots(data_dir, official.folders):
        train, test = (_list(root, domain, split) for split in ("train", "test"))
        if (root / domain).is_dir() and train is not None:
            return _load(root / domain, {"train": train, "test": test}, official)
    return None


def _list(root: Path, domain: str, split: str) -> Path | None:
    places = (root / place / f"{domain}_{split}.txt" for place in (*_LISTS, domain))
    return next((path for path in places if path.is_file()), None)


def _load(home: Path, lists: dict[str, Path | None], official: Official) -> Dataset:
    names: dict[int, str] = {}
    found = {split: read_listed(home, _entries(path, home.name, names), path) for split, path in lists.items() if path}
    outside = [label for label in names if not 0 <= label < official.classes]
    if outside or len(set(names.values())) < len(names):
        what = f"the label {outside[0]}" if outside else "one class under two labels"
        raise VitletError(
            f"the lists of {home} hold {what}; 0 to {official.classes - 1}, one for each class, are needed."
            " Download the official lists."
        )
    order = {label: place for place, label in enumerate(sorted(names))}  # the same where the lists are whole
    sets = {split: replace(one, labels=tuple(order[label] for label in one.labels)) for split, one in found.items()}
    note = f"official lists of {home}" + "".join(one.remark() for one in found.values())
    return Dataset(tuple(names[label] for label in sorted(names)), sets["train"], None, sets.get("test"), note)


def _entries(path: Path, domain: str, names: dict[int, str]) -> list[tuple[str, int]]:
    """Paths below the domain's folder with their labels; ``names`` learns the folder of each label."""
    entries: list[tuple[str, int]] = []
    for line in read_lines(path):
        name, _, label = line.strip().rpartition(" ")
        parts = name.split("/")
        if not label.isdecimal() or len(parts) < 3 or parts[0] != domain:
            raise VitletError(
                f"{path} has the line {line[:80]!r}; '{domain}/CLASS/IMAGE LABEL' is needed. Get the official list."
            )
        if names.setdefault(int(label), parts[1]) != parts[1]:
            raise VitletError(
                f"{path} gives {parts[1]!r} the label {label}, which is that of {names[int(label)]!r}."
                " Download the official lists."
            )
        entries.append(("/".join(parts[1:]), int(label)))
    return entries
