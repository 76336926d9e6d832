"""Half of the labels against an expert's script with all of them: paired differences, test images.

    python benchmarks/half.py

Reads the cells of ``studies/half-labels`` and the rows of ``benchmarks/results/versus.csv`` with the same seeds
(``python benchmarks/versus.py DATA_DIR --arms expert --first-seed 20``): the same images, 2 minutes of CPU time on one
core each.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

from timing import interval, read_rows

HERE = Path(__file__).parent
CELLS = HERE.parent / "studies" / "half-labels" / "cells"
DATASETS = {"imagenette": "imagenette-852", "cifar10": "cifar10-2000", "flowers102": "flowers102"}


def main() -> None:
    """A row for each dataset and arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "half.md")
    chosen = parser.parse_args()
    rows = [row for row in read_rows(HERE / "results" / "versus.csv") if row["arm"] == "expert"]
    experts = {(row["dataset"], row["seed"]): float(row["top1"]) for row in rows}
    lines = ["| dataset | arm | images | seeds | accuracy, % | expert, all labels, % | difference |"]
    lines.append("|---|---|---|---|---|---|---|")
    for dataset, name in DATASETS.items():
        for folder in sorted((CELLS / dataset / "model").iterdir()):
            cells = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
            pairs = [(cell["test_best"], experts.get((name, str(cell["cell"]["seed"])))) for cell in cells]
            found = [(ours, theirs) for ours, theirs in pairs if theirs is not None]
            if len(found) < 2:
                continue
            mean, half = interval([ours - theirs for ours, theirs in found])
            shown = f"**{mean:+.2f} ± {half:.2f}**" if abs(mean) > half else f"{mean:+.2f} ± {half:.2f}"
            ours, theirs = (sum(each) / len(found) for each in zip(*found, strict=True))
            about = (dataset, folder.name, f"{cells[0]['train_images']:,}", str(len(found)), f"{ours:.2f}")
            lines.append(f"| {' | '.join(about)} | {theirs:.2f} | {shown} |")
    head = [f"# {(__doc__ or '').splitlines()[0]}", "", f"`python benchmarks/half.py`, {datetime.date.today()}.", ""]
    chosen.output.write_text("\n".join([*head, *lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
