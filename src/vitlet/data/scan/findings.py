"""What a scan found, as a record, as plain values for JSON, and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vitlet.data.scan.suggest import Suggestion
from vitlet.pictures import printable

SHOWN = 10
"""Files, duplicates and classes named in the text; JSON names all."""


@dataclass(frozen=True)
class Place:
    """Where an image is."""

    split: str
    label: str
    name: str


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be used, and why."""

    place: Place
    reason: str


@dataclass(frozen=True)
class Duplicate:
    """Images that show the same picture."""

    places: tuple[Place, ...]
    exact: bool
    likeness: float

    @property
    def splits(self) -> tuple[str, ...]:
        """Those it occurs in, in their order."""
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
class Spread:
    """Least, median and largest."""

    least: int
    median: float
    largest: int


@dataclass(frozen=True)
class Sizes:
    """Heights and widths of the upright images."""

    height: Spread
    width: Spread
    side: float
    distinct: int


@dataclass(frozen=True)
class ScanReport:
    """Everything that a scan found; what cannot be known (no readable image) is None.

    Attributes:
        classes: names, in the order of labels.
        note: how the splits came to be.
        counts: readable images of each class, by split.
        unreadable: every image that cannot be used.
        sizes: of all splits together.
        kinds: images by format and Pillow mode.
        rotated, animated, deep: images turned by EXIF, with several frames, with more than 8 bits per channel.
        mean, std: of each channel of the training images in 0..1; each image counts the same.
        duplicates: groups, those across splits first, then those with several labels.
        leaks: how many images of a split have a copy in an earlier one: ``{"test": {"train": 3}}``.
        search: what near duplicates had to meet (bits of the hash, likeness), and how many images were too plain or
            had too common a look (crowded) to be searched.
        hints: sentences.
        suggestion: image size, patch size and model; not measured.
    """

    classes: tuple[str, ...]
    note: str
    counts: Mapping[str, tuple[int, ...]]
    unreadable: tuple[Unreadable, ...]
    sizes: Sizes | None
    kinds: Mapping[str, int]
    rotated: int
    animated: int
    deep: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    duplicates: tuple[Duplicate, ...]
    leaks: Mapping[str, Mapping[str, int]]
    search: Mapping[str, float]
    hints: tuple[str, ...]
    suggestion: Suggestion | None

    @property
    def imbalance(self) -> float | None:
        """Training images of the largest class over those of the smallest that has any."""
        some = [count for count in self.counts["train"] if count]
        return max(some) / min(some) if some else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "note": self.note,
            "classes": list(self.classes),
            "images": {split: sum(counts) for split, counts in self.counts.items()},
            "counts": {split: list(counts) for split, counts in self.counts.items()},
            "unreadable": [{**asdict(item.place), "reason": item.reason} for item in self.unreadable],
            "sizes": asdict(self.sizes) if self.sizes else None,
            "kinds": dict(self.kinds),
            "exif_rotated": self.rotated,
            "animated": self.animated,
            "more_than_8_bits": self.deep,
            "mean": list(self.mean) if self.mean else None,
            "std": list(self.std) if self.std else None,
            "imbalance": round(self.imbalance, 4) if self.imbalance else None,
            "leaks": {split: dict(earlier) for split, earlier in self.leaks.items()},
            "label_conflicts": sum(len(duplicate.labels) > 1 for duplicate in self.duplicates),
            "duplicates": [duplicate.to_dict() for duplicate in self.duplicates],
            "near_duplicate_search": dict(self.search),
            "hints": list(self.hints),
            "suggestion": self.suggestion.to_dict() if self.suggestion else None,
        }


def scan_lines(report: ScanReport) -> list[str]:
    """The report as text, the gravest things first; names cannot break a line or hide what follows them."""
    sections = (_images, _unreadable, _leaks, _within, _kinds, _classes)
    lines = [line for section in sections for line in section(report)]
    lines += [f"hint: {printable(hint)}" for hint in report.hints]
    if report.suggestion:
        lines += [f"suggestion: {report.suggestion.command}", f"  {report.suggestion.reason}."]
    return lines


def _images(report: ScanReport) -> Iterator[str]:
    counted = ", ".join(f"{sum(counts):,} {split}" for split, counts in report.counts.items())
    note = f"; {printable(report.note)}" if report.note else ""
    yield f"{counted} images in {len(report.classes)} classes{note}"


def _unreadable(report: ScanReport) -> Iterator[str]:
    if report.unreadable:
        yield f"UNREADABLE images: {len(report.unreadable)}"
    for item in report.unreadable[:SHOWN]:
        yield f"  {item.place.split}: {printable(item.place.name)}: {printable(item.reason)}"
    yield from _more(len(report.unreadable))


def _leaks(report: ScanReport) -> Iterator[str]:
    for split, earlier in report.leaks.items():
        for other, count in earlier.items():
            total = sum(report.counts[split])
            share = f" ({100 * count / total:.2f} %)" if count else ""
            word = "LEAK: " if count else ""
            yield f"{word}{count or 'none'} of {total:,} {split} images{share} found again in {other}"
    yield from _listed([duplicate for duplicate in report.duplicates if len(duplicate.splits) > 1])


def _within(report: ScanReport) -> Iterator[str]:
    conflicts = [duplicate for duplicate in report.duplicates if len(duplicate.labels) > 1]
    if conflicts:
        yield f"LABEL CONFLICT: pictures that are given several classes: {len(conflicts)}"
        yield from _listed(conflicts)
    inside = [duplicate for duplicate in report.duplicates if len(duplicate.splits) == 1]
    if inside:
        exact = sum(duplicate.exact for duplicate in inside)
        yield f"pictures that occur several times within one split: {exact} exactly, {len(inside) - exact} nearly"
        yield from _listed([duplicate for duplicate in inside if len(duplicate.labels) == 1])
    left_out = report.search["plain"] + report.search["crowded"]
    if left_out:
        yield f"not searched for near duplicates, as too plain or too common a look: {left_out:.0f} images"


def _listed(duplicates: Sequence[Duplicate]) -> Iterator[str]:
    for duplicate in duplicates[:SHOWN]:
        kind = "exact" if duplicate.exact else f"near, {duplicate.likeness:.2f}"
        yield (
            f"  ({kind}) "
            + " = ".join(
                f"{place.split}: {printable(place.label)}: {printable(place.name)}" for place in duplicate.places[:4]
            )
            + (f" = {len(duplicate.places) - 4} more" if len(duplicate.places) > 4 else "")
        )
    yield from _more(len(duplicates))


def _more(total: int) -> Iterator[str]:
    if total > SHOWN:
        yield f"  ... and {total - SHOWN} more; --json lists all"


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
    odd = {"turned by EXIF": report.rotated, "animated": report.animated, "more than 8 bits": report.deep}
    if any(odd.values()):
        yield ", ".join(f"{name}: {count}" for name, count in odd.items() if count)
    for name, values in (("mean", report.mean), ("std", report.std)):
        yield f"{name} of the training images: " + ", ".join(f"{value:.4f}" for value in values)


def _classes(report: ScanReport) -> Iterator[str]:
    order = sorted(range(len(report.classes)), key=lambda label: -report.counts["train"][label])
    if len(order) > 3 * SHOWN:
        yield f"classes, the {SHOWN} largest and {SHOWN} smallest ({' / '.join(report.counts)}):"
        order = order[:SHOWN] + order[-SHOWN:]
    else:
        yield f"classes ({' / '.join(report.counts)}):"
    for label in order:
        counts = " / ".join(f"{split[label]:,}" for split in report.counts.values())
        yield f"  {printable(report.classes[label])}: {counts}"
