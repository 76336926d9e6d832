"""Flowers-102: numbered pictures with two MATLAB files, or class folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitlet.data.images import Dataset, Files, Joined
from vitlet.data.named.folders import from_folders, roots
from vitlet.data.named.listed import read_listed
from vitlet.data.named.matfile import read_numbers
from vitlet.data.named.official import Official
from vitlet.errors import VitletError

FLOWERS = tuple(
    """
pink primrose; hard-leaved pocket orchid; canterbury bells; sweet pea; english marigold; tiger lily; moon orchid;
bird of paradise; monkshood; globe thistle; snapdragon; colt's foot; king protea; spear thistle; yellow iris;
globe-flower; purple coneflower; peruvian lily; balloon flower; giant white arum lily; fire lily; pincushion
flower; fritillary; red ginger; grape hyacinth; corn poppy; prince of wales feathers; stemless gentian; artichoke;
sweet william; carnation; garden phlox; love in the mist; mexican aster; alpine sea holly; ruby-lipped cattleya;
cape flower; great masterwort; siam tulip; lenten rose; barbeton daisy; daffodil; sword lily; poinsettia; bolero
deep blue; wallflower; marigold; buttercup; oxeye daisy; common dandelion; petunia; wild pansy; primula;
sunflower; pelargonium; bishop of llandaff; gaura; geranium; orange dahlia; pink-yellow dahlia; cautleya spicata;
japanese anemone; black-eyed susan; silverbush; californian poppy; osteospermum; spring crocus; bearded iris;
windflower; tree poppy; gazania; azalea; water lily; rose; thorn apple; morning glory; passion flower; lotus; toad
lily; anthurium; frangipani; clematis; hibiscus; columbine; desert-rose; tree mallow; magnolia; cyclamen;
watercress; canna lily; hippeastrum; bee balm; ball moss; foxglove; bougainvillea; camellia; mallow; mexican
petunia; bromelia; blanket flower; trumpet creeper; blackberry lily
""".replace("\n", " ")
    .strip()
    .split("; ")
)
"""The flowers in the order of their numbers."""


def find(official: Official, data_dir: Path) -> Dataset | None:
    """Its three splits; ``flowers102`` trains on the first two together."""
    places = roots(data_dir, official.folders)
    for root in places:
        paths = {name: _beside(root, data_dir, name) for name in ("setid.mat", "imagelabels.mat")}
        if (root / "jpg").is_dir() and None not in paths.values():
            found = _numbered(root / "jpg", *(path for path in paths.values() if path is not None))
            return _arranged(found, official)
    folders = next((found for found in map(from_folders, places) if found is not None), None)
    return None if folders is None else _arranged(_by_name(folders), official)


def _beside(root: Path, data_dir: Path, name: str) -> Path | None:
    return next((folder / name for folder in (root, root / "jpg", data_dir) if (folder / name).is_file()), None)


def _arranged(found: Dataset, official: Official) -> Dataset:
    """Training and validation images joined where they are trained on together."""
    if official.val is not None or found.val is None:
        return found
    return replace(found, train=Joined((found.train, found.val)), val=None)


def _numbered(images: Path, setid: Path, imagelabels: Path) -> Dataset:
    """``setid.mat`` has the numbers of each split's pictures, ``imagelabels.mat`` the flower of each, both from 1."""
    labels = read_numbers(imagelabels, "labels")[0].reshape(-1).tolist()
    splits = [ids.reshape(-1).tolist() for ids in read_numbers(setid, "trnid", "valid", "tstid")]
    everything = [number for ids in splits for number in ids]
    if len(set(everything)) < len(everything):
        raise VitletError(f"{setid} puts one picture into two splits; each belongs to one. Get the official file.")
    if not all(1 <= number <= len(labels) for number in everything) or not set(labels) <= set(range(1, 103)):
        raise VitletError(
            f"{setid} and {imagelabels} do not belong together: {len(labels):,} labels of 1 to 102, and pictures with"
            f" numbers up to {len(labels):,}, are needed. Get the official files."
        )
    listed = [
        read_listed(images, ((f"image_{number:05d}.jpg", labels[number - 1] - 1) for number in ids), setid)
        for ids in splits
    ]
    train, val, test = (Files(one.paths, one.labels) for one in listed)
    note = f"setid.mat of {images.parent}" + "".join(one.remark() for one in listed)
    return Dataset(FLOWERS, train, val, test, note)


def _by_name(found: Dataset) -> Dataset:
    """Class folders named by number get the flowers' names; those named by flower get the official order."""
    if len(found.classes) != len(FLOWERS):
        return found
    if [name for name in found.classes if name.isdecimal()] == list(found.classes):
        numbers = [int(name) for name in found.classes]
        return replace(found, classes=FLOWERS) if numbers in (list(range(102)), list(range(1, 103))) else found
    if set(found.classes) != set(FLOWERS):
        return found
    order = [FLOWERS.index(name) for name in found.classes]

    def renumbered(images: Files) -> Files:
        return replace(images, labels=tuple(order[label] for label in images.labels))

    sets = {name: renumbered(images) for name, images in found.splits().items() if isinstance(images, Files)}
    return Dataset(FLOWERS, sets["train"], sets.get("val"), sets.get("test"), found.note)
