"""`vitlet scan`: what is in a dataset, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from vitlet.data.decode import GREY_MODES
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.scan.duplicates import LIKENESS, Copies, find_copies
from vitlet.data.scan.findings import Duplicate, ImageSizes, Location, ScanReport, SizeRange, Unreadable
from vitlet.data.scan.hints import flip_hint, imbalance_hint
from vitlet.data.scan.measure import ImageFacts, OnProgress, measure_sets
from vitlet.errors import VitletError

Facts = Mapping[str, Mapping[int, ImageFacts]]
"""Of every readable image, by split and index."""

CROWD = 50
"""Images in one group of duplicates that are worth a word."""


def scan_dataset(
    dataset: Dataset,
    *,
    channels: int = 3,
    workers: int | None = None,
    progress: OnProgress | None = None,
) -> ScanReport:
    """Read every image of every split, and report the findings.

    Args:
        dataset: its splits.
        channels: to decode with, as in training.
        workers: processes that read images; 0 or 1 for none, by default as many as cores if the work is worth it.
        progress: called with the number of images read and of all.
    """
    sets = dataset.splits()
    _check(dataset, sets, channels)
    found = measure_sets(sets, channels, workers=workers, progress=progress)
    facts = {
        split: {index: item for index, item in enumerate(part) if isinstance(item, ImageFacts)}
        for split, part in found.items()
    }
    counts = {split: _class_counts(sets[split], part, len(dataset.classes)) for split, part in facts.items()}
    duplicates, leaks, copies = _duplicates(dataset, sets, facts)
    headers = [item.header for part in facts.values() for item in part.values()]
    mean, std = _statistics(facts["train"])
    return ScanReport(
        classes=dataset.classes,
        note=dataset.note,
        counts=counts,
        unreadable=tuple(
            Unreadable(**vars(_location(dataset, sets, split, index)), reason=reason)
            for split, part in found.items()
            for index, reason in enumerate(part)
            if isinstance(reason, str)
        ),
        sizes=_sizes(facts),
        kinds=dict(Counter(f"{header.format} {header.mode}" for header in headers).most_common()),
        exif_rotated=sum(header.rotated for header in headers),
        animated=sum(header.animated for header in headers),
        more_than_8_bits=sum(header.bits > 8 for header in headers),
        mean=mean,
        std=std,
        duplicates=duplicates,
        leaks=leaks,
        near_duplicate_search=copies.search,
        hints=_hints(dataset, counts, copies),
        grey=bool(headers) and all(header.mode in GREY_MODES for header in headers),
    )


def _check(dataset: Dataset, sets: Mapping[str, ImageSet], channels: int) -> None:
    if channels < 1:
        raise VitletError(f"images must have at least one channel, got {channels}.")
    if not any(map(len, sets.values())):
        raise VitletError("the dataset contains no images: nothing to scan.")
    for split, images in sets.items():
        wrong = [label for label in images.labels if not 0 <= label < len(dataset.classes)]
        if wrong:
            raise VitletError(
                f"the {split} images have the label {wrong[0]}, but there are {len(dataset.classes)} classes, numbered"
                f" 0 to {len(dataset.classes) - 1}. Correct the labels or the list of classes."
            )


def _class_counts(images: ImageSet, facts: Mapping[int, ImageFacts], classes: int) -> tuple[int, ...]:
    counted = Counter(images.labels[index] for index in facts)
    return tuple(counted[label] for label in range(classes))


def _location(dataset: Dataset, sets: Mapping[str, ImageSet], split: str, index: int) -> Location:
    return Location(split, dataset.classes[sets[split].labels[index]], sets[split].name(index))


def _sizes(facts: Facts) -> ImageSizes | None:
    sizes = np.array([item.size for part in facts.values() for item in part.values()])
    if not len(sizes):
        return None
    height, width = (SizeRange(int(side.min()), float(np.median(side)), int(side.max())) for side in sizes.T)
    return ImageSizes(height, width, float(np.median(sizes.min(axis=1))), len(np.unique(sizes, axis=0)))


def _statistics(facts: Mapping[int, ImageFacts]) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and standard deviation of each channel, rounded to what is meaningful."""
    if not facts:
        return None, None
    mean, square = np.array([item.moments for item in facts.values()]).mean(axis=0)
    std = np.sqrt(np.maximum(square - mean**2, 0))
    return tuple(np.round(mean, 6).tolist()), tuple(np.round(std, 6).tolist())


def _duplicates(
    dataset: Dataset, sets: Mapping[str, ImageSet], facts: Facts
) -> tuple[tuple[Duplicate, ...], dict[str, dict[str, int]], Copies]:
    """Groups, the gravest first; how many images of each split recur in an earlier one; what the search left out."""
    readable = [(split, index, item) for split, part in facts.items() for index, item in part.items()]
    items = [item for _, _, item in readable]
    digests = np.frombuffer(b"".join(item.digest for item in items), dtype=np.uint64).reshape(-1, 2)
    copies = find_copies(digests, np.array([item.grid for item in items]), np.array([item.thumbnail for item in items]))
    found = []
    splits = list(sets)
    leaks = {split: dict.fromkeys(splits[:number], 0) for number, split in enumerate(splits) if number}
    for group in copies.groups:
        locations = tuple(_location(dataset, sets, *readable[member][:2]) for member in group.members)
        here = Counter(location.split for location in locations)
        for split, earlier in leaks.items():
            for other in earlier:
                earlier[other] += here[split] if here[other] else 0
        found.append(Duplicate(locations, group.exact, group.likeness))
    return tuple(sorted(found, key=_gravity)), leaks, copies


def _gravity(duplicate: Duplicate) -> tuple[bool, bool, float]:
    return len(duplicate.splits) == 1, len(duplicate.labels) == 1, -duplicate.likeness


def _hints(dataset: Dataset, counts: Mapping[str, tuple[int, ...]], copies: Copies) -> tuple[str, ...]:
    hints = [imbalance_hint(counts["train"]), flip_hint(dataset.classes), *_thin_classes(dataset.classes, counts)]
    if copies.likeness > LIKENESS[0]:
        hints.append(
            "many of these images look alike, as digits, line drawings and frames of a video do: only those whose"
            f" likeness is at least {copies.likeness} are listed as near duplicates."
        )
    largest = max((len(group.members) for group in copies.groups), default=0)
    if largest >= CROWD:
        hints.append(f"one group of duplicates joins {largest} images: frames of one video must stay in one split.")
    return tuple(hint for hint in hints if hint)


def _thin_classes(classes: tuple[str, ...], counts: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Classes without images, or with one for training."""
    hints = []
    for split, numbers in counts.items():
        for few in (0, 1) if split == "train" else (0,):
            names = [repr(name) for name, number in zip(classes, numbers, strict=True) if number == few]
            if names:
                much = ("no image", "one image")[few]
                effect = (
                    ("nothing to learn from", "none can be held out")[few] if split == "train" else "accuracy is n/a"
                )
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                hints.append(f"{much} in {split} of {', '.join(names[:5])}{more}: {effect}.")
    return hints
