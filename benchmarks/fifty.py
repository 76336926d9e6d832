"""50 images per class of CIFAR-10 without the test images that recur among them, as in ciFAIR-10.

    python benchmarks/fifty.py DATA_DIR

GEM's benchmark trains on 50 images per class of ciFAIR-10, whose test set has other images in place of those that recur
among the 50,000 training images. ``studies/fifty-a-class`` tests on CIFAR-10's own. This counts, for each finished run,
the test images that recur among the 500 that it was trained on, exactly or nearly, by ``vitlet scan``; and the accuracy
that is left if every one of them was classified correctly and is taken out: the least that it can be without them.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

from timing import interval, processor
from vitlet.config import RunConfig
from vitlet.data.scan.scan import scan_dataset
from vitlet.data.sources import load_dataset
from vitlet.training.inputs import data_request

HERE = Path(__file__).parent
CELLS = HERE.parent / "studies" / "fifty-a-class" / "cells"
COMMAND = "`python benchmarks/fifty.py DATA_DIR`"
GEM = "Published for GEM's ciFAIR-10: 55.18 (tuned cross-entropy), 58.00 (best of 11 methods), later 66.5."


def recurring(data_dir: Path, settings: dict[str, object]) -> int:
    """Test images that recur among the training images of a run."""
    names = ("data", "per_class", "val_fraction", "seed")
    config = RunConfig.from_dict({name: settings[name] for name in names} | {"data_dir": str(data_dir)}, source="fifty")
    return scan_dataset(load_dataset(data_request(config))).leaks["test"]["train"]


def main() -> None:
    """A row for each run, and the mean of each arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "fifty.md")
    chosen = parser.parse_args()
    lines = [
        "| arm | seed | accuracy, % | recurring test images | at least, without them, % |",
        "|---|---|---|---|---|",
    ]
    least: dict[str, list[float]] = {}
    for file in sorted(CELLS.rglob("*.json")):
        cell = json.loads(file.read_text())
        arm, seed, images = cell["cell"]["arm"], cell["cell"]["seed"], cell["test_images"]
        count = recurring(chosen.data_dir, cell["settings"])
        without = (cell["test_last"] * images / 100 - count) / (images - count) * 100
        least.setdefault(arm, []).append(without)
        lines.append(f"| {arm} | {seed} | {cell['test_last']:.2f} | {count} | {without:.2f} |")
    means = [
        f"- {arm}: {interval(found)[0]:.2f} ± {interval(found)[1]:.2f}" for arm, found in least.items() if found[1:]
    ]
    place = f"{COMMAND}, {datetime.date.today()}, {processor()}."
    title = (__doc__ or "").partition("\n")[0]
    text = "\n".join([f"# {title}", "", place, GEM, "", *lines, "", "Mean of the last column:", "", *means])
    chosen.output.write_text(f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
