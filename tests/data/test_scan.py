"""`vitlet scan` on real files made here: broken, odd, copied, leaked, mislabelled, and with hostile names."""

from __future__ import annotations

import io
import json
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from vitlet.data.decode import MAX_PIXELS
from vitlet.data.images import Arrays, Dataset, Files, Joined, Subset
from vitlet.data.scan import measure as measuring
from vitlet.data.scan.contact_sheet import picture_grid
from vitlet.data.scan.duplicates import find_copies
from vitlet.data.scan.findings import ScanReport, scan_lines
from vitlet.data.scan.hints import flip_hint
from vitlet.data.scan.scan import scan_dataset
from vitlet.errors import VitletError

HOSTILE = (
    "<script>alert(1)</script>",
    "two\nlines",
    "\u202eright to left",
    "../x",
    "=cmd()",
    "שלום",
    "long " * 50,
    '"',
)
Edit = Callable[[Image.Image], Image.Image]


def photo(number: int, size: int = 64) -> Image.Image:
    """A piece of one of scikit-learn's two photographs; each number another piece."""
    picture = load_sample_images().images[number % 2]
    top, left = 5 + 80 * (number // 2 % 4), 5 + 90 * (number // 8 % 6)
    return Image.fromarray(picture[top : top + 80, left : left + 90]).resize((size, size))


def save(image: Image.Image, path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def folders(root: Path) -> Dataset:
    """The splits that lie in a folder, nothing held out."""
    classes = tuple(sorted({folder.name for folder in root.glob("*/*") if folder.is_dir()}))
    sets = {}
    for split in ("train", "val", "test"):
        files = [
            (file, label) for label, name in enumerate(classes) for file in sorted((root / split / name).glob("*"))
        ]
        if files:
            sets[split] = Files(tuple(file for file, _ in files), tuple(label for _, label in files))
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), "as it lies")


def scan(root: Path, **options: int) -> ScanReport:
    return scan_dataset(folders(root), **options)  # type: ignore[arg-type]


def two_classes(root: Path, count: int = 4, start: int = 0) -> None:
    for number in range(count):
        save(photo(start + number), root / ("cat", "dog")[number % 2] / f"{number:03d}.png")


def test_counts_sizes_and_statistics(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 6)
    two_classes(tmp_path / "test", 2, start=10)
    save(photo(20).resize((30, 50)), tmp_path / "train" / "dog" / "tall.png")
    report = scan(tmp_path)
    assert report.counts == {"train": (3, 4), "test": (1, 1)}
    assert report.sizes is not None and report.sizes.distinct == 2
    assert (report.sizes.height.least, report.sizes.height.median, report.sizes.height.largest) == (50, 64.0, 64)
    assert (report.sizes.width.least, report.sizes.side) == (30, 64.0)
    files = sorted((tmp_path / "train").rglob("*.png"))
    images = [np.asarray(Image.open(file)).reshape(-1, 3) / 255 for file in files]
    mean = np.mean([image.mean(0) for image in images], axis=0)
    square = np.mean([(image**2).mean(0) for image in images], axis=0)
    np.testing.assert_allclose(report.mean or (), mean, atol=1e-6)
    np.testing.assert_allclose(report.std or (), np.sqrt(square - mean**2), atol=1e-6)
    assert report.kinds == {"PNG RGB": 9} and not report.duplicates and report.leaks == {"test": {"train": 0}}


def test_every_unreadable_file_is_listed_with_its_reason(tmp_path: Path) -> None:
    two_classes(tmp_path / "train")
    folder = tmp_path / "train" / "cat"
    content = save(photo(9), folder / "truncated.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(content[: len(content) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("this is no image")
    save(Image.new("1", (MAX_PIXELS // 10_000 + 1, 10_000)), folder / "bomb.png")
    (folder / "gone.png").symlink_to(tmp_path / "nowhere")
    report = scan(tmp_path)
    reasons = {Path(item.name).name: item.reason for item in report.unreadable}
    assert set(reasons) == {"truncated.jpg", "empty.png", "text.png", "bomb.png", "gone.png"}
    assert "truncated" in reasons["truncated.jpg"].lower() and "empty" in reasons["empty.png"]
    assert "not in a supported image format" in reasons["text.png"]
    assert "pixels" in reasons["bomb.png"] and "No such" in reasons["gone.png"]
    assert not any("0x" in reason for reason in reasons.values())
    assert report.counts["train"] == (2, 2)
    text = "\n".join(scan_lines(report))
    assert all(name in text for name in reasons)


def test_nothing_readable_is_no_nan(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "empty.png").write_bytes(b"")
    report = scan(tmp_path)
    assert report.sizes is None and report.mean is None and report.imbalance is None and not report.grey
    assert "NaN" not in json.dumps(report.to_dict()) and any("n/a" in line for line in scan_lines(report))


def test_odd_kinds_are_counted(tmp_path: Path) -> None:
    two_classes(tmp_path / "train")
    folder = tmp_path / "train" / "cat"
    save(photo(8).convert("L"), folder / "grey.png")
    save(photo(9).convert("RGBA"), folder / "alpha.png")
    save(photo(10).convert("P"), folder / "palette.png")
    save(photo(11).convert("CMYK"), folder / "cmyk.jpg")
    deep = np.asarray(photo(12).convert("L")).astype(np.uint16) * 257
    save(Image.fromarray(deep), folder / "deep.png")
    save(Image.fromarray(deep[::-1].copy()), folder / "deep.tif")
    frames = [photo(13), photo(14)]
    for name in ("moving.gif", "moving.webp"):
        save(frames[0], folder / name, save_all=True, append_images=frames[1:])
    exif = Image.Exif()
    exif[0x0112] = 6
    save(photo(16).resize((40, 20)), folder / "turned.jpg", exif=exif)
    report = scan(tmp_path)
    kinds = {
        "PNG L",
        "PNG RGBA",
        "PNG P",
        "JPEG CMYK",
        "PNG I;16",
        "TIFF I;16",
        "GIF P",
        "WEBP RGB",
        "JPEG RGB",
        "PNG RGB",
    }
    assert kinds - {"GIF P"} <= set(report.kinds) and any(kind.startswith("GIF") for kind in report.kinds)
    assert (report.exif_rotated, report.animated, report.more_than_8_bits) == (1, 2, 2)
    assert report.sizes is not None and (report.sizes.height.least, report.sizes.width.least) == (40, 20)
    assert not report.unreadable and sum(report.kinds.values()) == 13


def test_sixteen_bit_colour_is_seen_though_pillow_hides_it(tmp_path: Path) -> None:
    header = b"\x00\x00\x00\x02\x00\x00\x00\x02\x10\x02\x00\x00\x00"  # 2 x 2, 16 bits, RGB
    two_classes(tmp_path / "train")
    (tmp_path / "train" / "cat" / "deep.png").write_bytes(
        _png(header, b"".join(b"\x00" + bytes(range(12)) for _ in range(2)))
    )
    report = scan(tmp_path)
    assert report.more_than_8_bits == 1 and not report.unreadable


def _png(header: bytes, rows: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_exact_copies_across_splits(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 8)
    two_classes(tmp_path / "val", 2, start=20)
    save(photo(2), tmp_path / "test" / "cat" / "leak.png")
    save(photo(2), tmp_path / "test" / "cat" / "leak.bmp")  # other bytes, the same pixels
    save(photo(30), tmp_path / "test" / "dog" / "new.png")
    report = scan(tmp_path)
    (group,) = report.duplicates
    assert group.exact and group.likeness == 1.0 and group.splits == ("train", "test")
    assert [Path(place.name).name for place in group.places] == ["002.png", "leak.bmp", "leak.png"]
    assert report.leaks == {"val": {"train": 0}, "test": {"train": 2, "val": 0}}
    assert any("LEAK: 2 of 3 test images (66.67 %)" in line for line in scan_lines(report))


def _again(quality: int) -> Edit:
    def edit(image: Image.Image) -> Image.Image:
        content = io.BytesIO()
        image.save(content, "JPEG", quality=quality)
        return Image.open(content)

    return edit


EDITS: dict[str, Edit] = {
    "encoded again": _again(75),
    "smaller": lambda image: image.resize((57, 57)),
    "larger": lambda image: image.resize((80, 80)),
    "brighter": lambda image: image.point(lambda value: min(255, value + 2)),
    "grey": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_near_copies_across_splits(tmp_path: Path, edit: str) -> None:
    two_classes(tmp_path / "train", 16)
    for number in (1, 6):
        save(EDITS[edit](photo(number)), tmp_path / "test" / ("cat", "dog")[number % 2] / f"{number:03d}.png")
    save(photo(33), tmp_path / "test" / "cat" / "new.png")
    report = scan(tmp_path)
    pairs = {tuple(Path(place.name).name for place in group.places) for group in report.duplicates}
    assert pairs == {("001.png", "001.png"), ("006.png", "006.png")}
    assert not any(group.exact for group in report.duplicates) and report.leaks == {"test": {"train": 2}}


def test_different_pictures_are_not_copies(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 40)
    generator = np.random.default_rng(0)
    slope = np.linspace(0, 60, 64)
    for number in range(30):  # clear skies: shading, and a little noise
        sky = 120 + np.outer(slope, np.full(64, generator.uniform(0.8, 1.2))) + generator.normal(0, 2, (64, 64))
        save(Image.fromarray(sky.clip(0, 255).astype(np.uint8)), tmp_path / "train" / "cat" / f"sky {number}.png")
    report = scan(tmp_path)
    assert not report.duplicates and report.near_duplicate_search["plain"] >= 30


def test_label_conflict_is_called_out(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 8)
    save(photo(3), tmp_path / "train" / "cat" / "also a dog.png")
    report = scan(tmp_path)
    (group,) = report.duplicates
    assert group.labels == ("cat", "dog") and report.leaks == {}
    assert report.to_dict()["label_conflicts"] == 1 and report.to_dict()["duplicates"][0]["label_conflict"]
    assert any(line.startswith("LABEL CONFLICT") for line in scan_lines(report))


def test_search_narrows_rather_than_hang() -> None:
    """Thousands of digits are alike by nature; the work is bounded, and what was left out is said."""
    scans = load_digits().images
    generator = np.random.default_rng(0)
    grids = np.zeros((6000, 8, 9), dtype=np.uint8)
    grids[:, :, :8] = scans[generator.integers(0, len(scans), 6000)] * 15
    thumbnails = np.repeat(np.repeat(grids[:, :, :8], 2, axis=1), 2, axis=2)
    digests = np.arange(12000, dtype=np.uint64).reshape(6000, 2)
    began = time.perf_counter()
    full = find_copies(digests, grids, thumbnails)
    few = find_copies(digests, grids, thumbnails, work=20_000)
    assert time.perf_counter() - began < 15
    assert full.radius == 7 and few.radius == 3 and few.crowded > 0
    drawn_twice = {group.members for group in full.groups}
    assert drawn_twice and all(len(group.members) > 1 for group in few.groups)


def test_digits_are_no_copies_of_each_other() -> None:
    """Handwritten digits look alike by nature: they are held to more, and that is said."""
    digits = load_digits()
    pixels = (digits.images * 15).astype(np.uint8)
    images = Arrays.of(np.concatenate([pixels, pixels[:20]]), [*digits.target, *digits.target[:20]])
    test = tuple(range(1500, len(images)))
    classes = tuple(map(str, range(10)))
    report = scan_dataset(
        Dataset(classes, Subset(images, tuple(range(1500))), None, Subset(images, test), ""), channels=1
    )
    assert 20 <= report.leaks["test"]["train"] < 25 and report.near_duplicate_search["likeness"] > 0.9
    assert any("look alike" in hint for hint in report.hints) and any("--hflip 0" in hint for hint in report.hints)


def test_all_pairs_within_the_radius_are_found() -> None:
    """Against a slow loop."""
    generator = np.random.default_rng(3)
    base = generator.integers(0, 256, (40, 8, 9)).astype(np.uint8)
    changed = base.copy()
    for number, grid in enumerate(changed):  # more and more places are altered
        places = generator.integers(0, 8, (number // 4, 2))
        grid[places[:, 0], places[:, 1]] = generator.integers(0, 256, len(places))
    grids = np.concatenate([base, changed[4:]])
    bits = (grids[:, :, 1:] > grids[:, :, :-1]).reshape(len(grids), -1)
    apart = (bits[:, None] != bits[None]).sum(-1)
    expected = {(i, j) for i in range(len(grids)) for j in range(i + 1, len(grids)) if apart[i, j] <= 7}
    same = generator.integers(0, 256, (1, 16, 16)).astype(np.uint8)
    digests = np.arange(2 * len(grids), dtype=np.uint64).reshape(-1, 2)
    found = find_copies(digests, grids, np.repeat(same, len(grids), axis=0))
    assert {group.members for group in found.groups} == expected and 20 < len(expected) < 36


def test_thin_classes_and_imbalance_are_said(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 12)
    save(photo(40), tmp_path / "train" / "rare" / "only.png")
    (tmp_path / "train" / "none").mkdir()
    two_classes(tmp_path / "val", 2, start=20)
    report = scan(tmp_path)
    assert report.counts["train"] == (6, 6, 0, 1) and report.imbalance == 6.0
    text = "\n".join(report.hints)
    assert "no image in train of 'none'" in text and "one image in train of 'rare'" in text
    assert "no image in val of 'none', 'rare': accuracy is n/a" in text and "balanced sampling" in text
    assert "NaN" not in json.dumps(report.to_dict())


def test_hostile_class_names(tmp_path: Path) -> None:
    pixels = np.stack([np.asarray(photo(number)) for number in range(len(HOSTILE))])
    dataset = Dataset(HOSTILE, Arrays.of(pixels, range(len(HOSTILE))), None, None, "a note\nwith\x1b[31m escapes")
    report = scan_dataset(dataset)
    assert json.loads(json.dumps(report.to_dict()))["classes"] == list(HOSTILE)
    lines = scan_lines(report)
    assert all(line.isprintable() for line in lines) and any("two\\nlines" in line for line in lines)
    picture_grid(dataset, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG" and sheet.width < 1200 and sheet.height < 1000


def test_picture_of_many_classes_and_unreadable_images(tmp_path: Path) -> None:
    for number in range(30):
        save(photo(number).resize((90, 30)), tmp_path / "data" / "train" / f"class {number:02d}" / "a.png")
    (tmp_path / "data" / "train" / "class 00" / "broken.png").write_bytes(b"no image")
    dataset = folders(tmp_path / "data")
    picture_grid(dataset, tmp_path / "sheet.png", channels=1)
    with Image.open(tmp_path / "sheet.png") as sheet:
        colours = {colour for _, colour in sheet.getcolors(1_000_000) or []}
        assert sheet.height < 20 * 80 + 40 and (255, 0, 0) in colours
    with pytest.raises(VitletError, match="cannot write the picture"):
        picture_grid(dataset, tmp_path / "no folder" / "sheet.png")


def test_arrays_subsets_and_joined_sets() -> None:
    pixels = np.stack([np.asarray(photo(number, 32)) for number in range(12)])
    pixels[11] = pixels[0]
    everything = Arrays.of(pixels, [number % 2 for number in range(12)])
    joined = Joined((Subset(everything, (1, 2, 3)), Subset(everything, (0,))))
    report = scan_dataset(Dataset(("a", "b"), joined, None, Subset(everything, (10, 11)), ""))
    assert report.kinds == {"array RGB": 6} and report.counts == {"train": (2, 2), "test": (1, 1)}
    assert report.leaks == {"test": {"train": 1}} and report.duplicates[0].labels == ("a", "b")
    grey = Dataset(("a", "b"), Arrays.of(pixels[..., 0], [0, 1] * 6), None, None, "")
    assert scan_dataset(grey, channels=1).grey
    many = Arrays.of(np.repeat(pixels, 2, axis=-1), [0, 1] * 6)
    assert len(scan_dataset(Dataset(("a", "b"), many, None, None, ""), channels=6).mean or ()) == 6


def test_processes_change_nothing(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 80)
    two_classes(tmp_path / "test", 30)
    (tmp_path / "test" / "cat" / "broken.png").write_bytes(b"no image")
    calls: list[tuple[int, int]] = []
    one = scan_dataset(folders(tmp_path), workers=1)
    two = scan_dataset(folders(tmp_path), workers=2, progress=lambda done, total: calls.append((done, total)))
    assert one.to_dict() == two.to_dict() == scan_dataset(folders(tmp_path)).to_dict()
    assert calls == [(64, 111), (80, 111), (111, 111)] and one.leaks["test"]["train"] == 30


class Deadly(Files):
    """Ends the process that reads from it, as a machine short of memory would."""

    def content(self, index: int) -> bytes:
        os._exit(1)


def test_a_killed_process_is_named(tmp_path: Path) -> None:
    images = Deadly((save(photo(0), tmp_path / "a.png"),), (0,))
    with pytest.raises(VitletError, match="was killed or could not start"):
        measuring.measure_sets({"train": images}, 3, workers=2)


def test_bad_requests() -> None:
    images = Arrays.of(np.zeros((2, 8, 8), dtype=np.uint8), [0, 5])
    with pytest.raises(VitletError, match="label 5, but there are 2 classes"):
        scan_dataset(Dataset(("a", "b"), images, None, None, ""))
    with pytest.raises(VitletError, match="contains no image"):
        scan_dataset(Dataset(("a", "b"), Subset(images, ()), None, None, ""))
    with pytest.raises(VitletError, match="at least one channel"):
        scan_dataset(Dataset(("a", "b"), images, None, None, ""), channels=0)


@pytest.mark.parametrize(
    ("classes", "warns"),
    [
        ([str(digit) for digit in range(10)], True),
        (["digit 0", "digit 1", "digit 2"], True),
        (["a", "b", "c", "D"], True),
        (["zero", "one", "two"], True),
        (["turn left", "turn_right", "stop"], True),
        ([f"{number:03d}" for number in range(102)], False),
        ([str(number) for number in range(100)], False),
        (["cat", "dog"], False),
        (["a"], False),
    ],
)
def test_flip_hint(classes: list[str], warns: bool) -> None:
    assert (flip_hint(classes) is not None) == warns
