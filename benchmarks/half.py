"""Half of the labels against an expert with all of them; the schedule wsd with batches of 32 against cosine with 64.

    python benchmarks/half.py

Reads the cells of ``studies/half-labels`` and the rows of ``benchmarks/results/versus.csv`` with the same seeds
(``python benchmarks/versus.py DATA_DIR --arms expert resnet-wsd --first-seed 20``): the same images, 2 minutes of CPU
time on one core each, test images.
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
PAIRS = (
    *(("all, wsd", "expert"), ("half, wsd", "expert"), ("half, cosine", "expert")),
    *(("all, wsd", "all, cosine"), ("half, wsd", "half, cosine"), ("half, wsd", "all, wsd")),
)


def accuracies(dataset: str) -> dict[str, dict[str, float]]:
    """Test accuracy in percent by arm and seed."""
    found: dict[str, dict[str, float]] = {}
    for file in sorted((CELLS / dataset / "model").rglob("*.json")):
        cell = json.loads(file.read_text())
        arm = cell["cell"]["arm"]
        name = f"{'half' if arm.startswith('half') else 'all'}, {'wsd' if arm.endswith('wsd') else 'cosine'}"
        found.setdefault(name, {})[str(cell["cell"]["seed"])] = cell["test_best"]
    names = {"expert": "expert", "resnet-wsd": "all, wsd"}
    for row in read_rows(HERE / "results" / "versus.csv"):
        if row["dataset"] == DATASETS[dataset] and row["arm"] in names:
            found.setdefault(names[row["arm"]], {})[row["seed"]] = float(row["top1"])
    return found


def shown(values: list[float], sign: str = "") -> str:
    """Mean and interval, bold where a difference is significant."""
    mean, half = interval(values)
    text = f"{mean:{sign}.2f} ± {half:.2f}"
    return f"**{text}**" if sign and abs(mean) > half else text


def main() -> None:
    """Accuracies, then paired differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "half.md")
    chosen = parser.parse_args()
    tables = {dataset: accuracies(dataset) for dataset in DATASETS}
    first = ["| dataset | arm | seeds | accuracy, % |", "|---|---|---|---|"]
    second = ["| dataset | arm | against | seeds | difference |", "|---|---|---|---|---|"]
    for dataset, arms in tables.items():
        first += [f"| {dataset} | {arm} | {len(each)} | {shown(list(each.values()))} |" for arm, each in arms.items()]
        for arm, other in PAIRS:
            seeds = sorted(arms.get(arm, {}).keys() & arms.get(other, {}).keys())
            if len(seeds) > 1:
                gains = [arms[arm][seed] - arms[other][seed] for seed in seeds]
                second.append(f"| {dataset} | {arm} | {other} | {len(seeds)} | {shown(gains, '+')} |")
    head = [f"# {(__doc__ or '').splitlines()[0]}", "", f"`python benchmarks/half.py`, {datetime.date.today()}.", ""]
    chosen.output.write_text("\n".join([*head, *first, "", *second, ""]))
    print("\n".join([*first, "", *second]))


if __name__ == "__main__":
    main()
