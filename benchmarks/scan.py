"""Seconds that a scan takes: ``python benchmarks/scan.py FOLDER``, with train and perhaps val and test in it."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import time
from pathlib import Path

from vitlet.data.images import Dataset, Files
from vitlet.data.scan.findings import ScanReport
from vitlet.data.scan.scan import scan_dataset


def read(root: Path) -> Dataset:
    """The splits as they lie, nothing held out."""
    classes = tuple(sorted(folder.name for folder in (root / "train").iterdir() if folder.is_dir()))
    found = {}
    for split in ("train", "val", "test"):
        files = [
            (file, label) for label, name in enumerate(classes) for file in sorted((root / split / name).glob("*"))
        ]
        if files:
            paths, labels = zip(*files, strict=True)
            found[split] = Files(paths, labels)
    return Dataset(classes, found["train"], found.get("val"), found.get("test"), f"folders of {root.name}")


def cpu_seconds() -> float:
    """Of this process and those it started and ended: what another load on the machine changes least."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def row(name: str, report: ScanReport, seconds: float, cpu: float, workers: int | None) -> str:
    """A line of the table in ``results/scan.md``."""
    images = sum(map(sum, report.counts.values()))
    exact = sum(duplicate.exact for duplicate in report.duplicates)
    leaks = "; ".join(
        f"{split} in {other}: {count}" for split, earlier in report.leaks.items() for other, count in earlier.items()
    )
    processes = "auto" if workers is None else str(workers)
    return (
        f"| {name} | {images:,} | {processes} | {seconds:.1f} | {cpu:.1f} |"
        f" {len(report.unreadable)} | {exact} / {len(report.duplicates) - exact} | {leaks} |"
    )


def main() -> None:
    """Scan and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("-j", "--workers", type=int, default=None)
    chosen = parser.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print("| folder | images | processes | seconds | CPU seconds | unreadable | exact / near groups | copies |")
    print(f"{datetime.date.today()}; {platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f} before")
    for folder in chosen.folder:
        dataset = read(folder)
        began, began_cpu = time.perf_counter(), cpu_seconds()
        report = scan_dataset(dataset, workers=chosen.workers)
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - began_cpu
        print(row(folder.name, report, seconds, cpu, chosen.workers), flush=True)


if __name__ == "__main__":
    main()
