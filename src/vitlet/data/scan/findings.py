"""Findings of a scan as a record, as plain values for JSON, and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vitlet.pictures import printable

MAX_LISTED = 10
"""Files, duplicates and classes named in the text; JSON names all."""


@dataclass(frozen=True)
class Location:
    """Split, class and name of an image."""

    split: str
    label: str
    name: str


@dataclass(frozen=True)
class Unreadable(Location):
    """An image that cannot be used, and why."""

    reason: str


@dataclass(frozen=True)
class Duplicate:
    """Images that show the same picture."""

    places: tuple[Location, ...]
    exact: bool
    likeness: float

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits in which it occurs, in order."""
        return tuple(dict.fromkeys(place.split for place in self.places))

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes it is given."""
        return tuple(dict.fromkeys(place.label for place in self.places))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        facts = {"exact": self.exact, "likeness": self.likeness, "leak": len(self.splits) > 1}
        return {**facts, "label_conflict": len(self.labels) > 1, "images": [asdict(place) for place in self.places]}


@dataclass(frozen=True)
class SizeRange:
    """Least, median and largest."""

    least: int
    median: float
    largest: int


@dataclass(frozen=True)
class ImageSizes:
    """Heights and widths of the upright images."""

    height: SizeRange
    width: SizeRange
    side: float
    distinct: int


@dataclass(frozen=True)
class ScanReport:
    """Everything that a scan found; what cannot be known (no readable image) is None.

    Attributes:
        note: how the splits came to be.
        classes: names, in the order of labels.
        counts: readable images of each class, by split.
        unreadable: every image that cannot be used.
        sizes: sizes of all splits together.
        kinds: images by format and Pillow mode.
        exif_rotated, animated, more_than_8_bits: images rotated by EXIF, of several frames, of deeper channels.
        mean, std: of each channel of the training images in 0..1; each image counts the same.
        leaks: how many images of a split have a copy in an earlier one: ``{"test": {"train": 3}}``.
        duplicates: groups, those across splits first, then those with several labels.
        near_duplicate_search: what near duplicates had to meet (bits of the hash, likeness), and how many images were
            too plain or had too common a look (crowded) to be searched.
        hints: sentences.
        grey: whether all images are grey.
    """

    note: str
    classes: tuple[str, ...]
    counts: Mapping[str, tuple[int, ...]]
    unreadable: tuple[Unreadable, ...]
    sizes: ImageSizes | None
    kinds: Mapping[str, int]
    exif_rotated: int
    animated: int
    more_than_8_bits: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    leaks: Mapping[str, Mapping[str, int]]
    duplicates: tuple[Duplicate, ...]
    near_duplicate_search: Mapping[str, float]
    hints: tuple[str, ...]
    grey: bool

    @property
    def imbalance(self) -> float | None:
        """Training images of the largest class over those of the smallest that has any."""
        some = [count for count in self.counts["train"] if count]
        return max(some) / min(some) if some else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {
            "images": {split: sum(counts) for split, counts in self.counts.items()},
            "imbalance": round(self.imbalance, 4) if self.imbalance else None,
            "label_conflicts": sum(len(duplicate.labels) > 1 for duplicate in self.duplicates),
            "duplicates": [duplicate.to_dict() for duplicate in self.duplicates],
        }


def scan_lines(report: ScanReport) -> list[str]:
    """The report as text, the gravest things first; names cannot break a line or hide what follows them."""
    sections = (_images, _unreadable, _leaks, _within, _kinds, _classes)
    lines = [line for section in sections for line in section(report)]
    return [*lines, *(f"hint: {printable(hint)}" for hint in report.hints)]


def _images(report: ScanReport) -> Iterator[str]:
    counted = ", ".join(f"{sum(counts):,} {split}" for split, counts in report.counts.items())
    note = f"; {printable(report.note)}" if report.note else ""
    yield f"{counted} images in {len(report.classes)} classes{note}"


def _unreadable(report: ScanReport) -> Iterator[str]:
    if report.unreadable:
        yield f"UNREADABLE images: {len(report.unreadable)}"
    for item in report.unreadable[:MAX_LISTED]:
        yield f"  {item.split}: {printable(item.name)}: {printable(item.reason)}"
    yield from _more(len(report.unreadable))


def _leaks(report: ScanReport) -> Iterator[str]:
    for split, earlier in report.leaks.items():
        for other, count in earlier.items():
            total = sum(report.counts[split])
            share = f" ({100 * count / total:.2f} %)" if count else ""
            word = "LEAK: " if count else ""
            yield f"{word}{count or 'none'} of {total:,} {split} images{share} also found in {other}"
    yield from _listed([duplicate for duplicate in report.duplicates if len(duplicate.splits) > 1])


def _within(report: ScanReport) -> Iterator[str]:
    conflicts = [duplicate for duplicate in report.duplicates if len(duplicate.labels) > 1]
    if conflicts:
        yield f"LABEL CONFLICT: images with several labels: {len(conflicts)}"
        yield from _listed(conflicts)
    inside = [duplicate for duplicate in report.duplicates if len(duplicate.splits) == 1]
    if inside:
        exact = sum(duplicate.exact for duplicate in inside)
        yield f"images that occur several times within one split: {exact} exactly, {len(inside) - exact} nearly"
        yield from _listed([duplicate for duplicate in inside if len(duplicate.labels) == 1])
    left_out = report.near_duplicate_search["plain"] + report.near_duplicate_search["crowded"]
    if left_out:
        yield f"not searched for near duplicates, because they are too uniform or too common: {left_out:.0f} images"


def _listed(duplicates: Sequence[Duplicate]) -> Iterator[str]:
    for duplicate in duplicates[:MAX_LISTED]:
        kind = "exact" if duplicate.exact else f"near, {duplicate.likeness:.2f}"
        shown = [f"{each.split}: {printable(each.label)}: {printable(each.name)}" for each in duplicate.places[:4]]
        more = [f"{len(duplicate.places) - 4} more"] if len(duplicate.places) > 4 else []
        yield f"  ({kind}) " + " = ".join(shown + more)
    yield from _more(len(duplicates))


def _more(total: int) -> Iterator[str]:
    if total > MAX_LISTED:
        yield f"  ... and {total - MAX_LISTED} more; --json lists all"


def _kinds(report: ScanReport) -> Iterator[str]:
    if report.sizes is None or report.mean is None or report.std is None:
        yield "sizes, mean and std: n/a (no readable training image)"
        return
    height, width = report.sizes.height, report.sizes.width
    yield (
        f"height {height.least} to {height.largest} (median {height.median:g}), width {width.least} to"
        f" {width.largest} (median {width.median:g}); distinct sizes: {report.sizes.distinct}"
    )
    yield "stored as " + ", ".join(f"{printable(kind)}: {count:,}" for kind, count in report.kinds.items())
    odd = (("rotated by EXIF", "exif_rotated"), ("animated", "animated"), ("more than 8 bits", "more_than_8_bits"))
    if some := [f"{name}: {getattr(report, field)}" for name, field in odd if getattr(report, field)]:
        yield ", ".join(some)
    for name, values in (("mean", report.mean), ("std", report.std)):
        yield f"{name} of the training images: " + ", ".join(f"{value:.4f}" for value in values)


def _classes(report: ScanReport) -> Iterator[str]:
    order = sorted(range(len(report.classes)), key=lambda label: -report.counts["train"][label])
    which = ""
    if len(order) > 3 * MAX_LISTED:
        which = f", the {MAX_LISTED} largest and {MAX_LISTED} smallest"
        order = order[:MAX_LISTED] + order[-MAX_LISTED:]
    yield f"classes{which} ({' / '.join(report.counts)}):"
    for label in order:
        counts = " / ".join(f"{split[label]:,}" for split in report.counts.values())
        yield f"  {printable(report.classes[label])}: {counts}"
