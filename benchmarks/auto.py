"""``vitlet train DATA --minutes N`` without further flags against an expert's script, in the same time on all cores.

    python benchmarks/auto.py DATA_DIR --minutes 2 10 30 --seeds 3

Nothing else may run on the machine. The arms take turns, each alone: the expert by the clock, then the command. A row
holds test accuracy and the seconds that the command took from its start to its end, test included. Finished rows of
``benchmarks/results/auto.csv`` are not run again; the table is written to ``auto.md``.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from timing import interval, processor
from versus import DATA, read, words_of, write_table

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("dataset", "arm", "seed", "minutes", "top1", "seconds", "used", "processor")


def expert(table: Path, dataset: str, seed: int, minutes: float) -> dict[str, Any]:
    """One run of ``expert.py`` by the clock."""
    words = [sys.executable, str(Path(__file__).parent / "expert.py"), str(table), "--wall", "--seed", str(seed)]
    words += ["--seconds", str(60 * minutes), *(["--tiny"] if "cifar" in dataset else [])]
    found = subprocess.run(words, check=True, capture_output=True, text=True)
    return {**json.loads(found.stdout.splitlines()[-1]), "used": "resnet"}


def vitlet(words: list[str], output: Path, minutes: float) -> dict[str, Any]:
    """One run of ``vitlet train`` that chooses everything itself."""
    command = [sys.executable, "-m", "vitlet", "train", *words, "--minutes", str(minutes), "--output", str(output)]
    log, began = output.with_suffix(".log"), time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        subprocess.run([*command, "--overwrite"], check=True, stdout=file, stderr=file)
    seconds = time.monotonic() - began
    if (output / "search.json").is_file():
        search = json.loads((output / "search.json").read_text())
        return {"top1": search["test"]["top1"], "seconds": seconds, "used": f"{len(search['weights'])} of members"}
    result = json.loads((output / "result.json").read_text())
    return {"top1": result["test"]["top1"], "seconds": seconds, "used": "single run"}


def report(file: Path) -> str:
    """Mean accuracy by dataset and budget, the paired difference, and how far the time was from the promise."""
    rows = read(file)
    lines = ["| dataset | minutes | seeds | expert % | vitlet % | difference | time over the promise, % |"]
    lines.append("|---|---|---|---|---|---|---|")
    for dataset, minutes in sorted({(row["dataset"], float(row["minutes"])) for row in rows}):
        mine = [row for row in rows if row["dataset"] == dataset and float(row["minutes"]) == minutes]
        both = {arm: {row["seed"]: row for row in mine if row["arm"] == arm} for arm in ("expert", "vitlet")}
        seeds = sorted(both["expert"].keys() & both["vitlet"].keys())
        if not seeds:
            continue
        tops = {arm: [float(found[seed]["top1"]) for seed in seeds] for arm, found in both.items()}
        gains = [new - old for old, new in zip(tops["expert"], tops["vitlet"], strict=True)]
        gain = "{:+.2f} ± {:.2f}".format(*interval(gains)) if len(gains) > 1 else f"{gains[0]:+.2f}"
        late = max(float(both["vitlet"][seed]["seconds"]) / (60 * minutes) - 1 for seed in seeds)
        means = " | ".join(f"{sum(values) / len(values):.2f}" for values in tops.values())
        lines.append(f"| {dataset} | {minutes:g} | {len(seeds)} | {means} | {gain} | {100 * late:+.1f} at most |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, one after another, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--minutes", nargs="+", type=float, default=[2.0, 10.0, 30.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("runs/auto"))
    parser.add_argument("--output", type=Path, default=RESULTS / "auto.csv")
    chosen = parser.parse_args()
    place, done = chosen.data_dir.resolve(), {tuple(row.values())[:4] for row in read(chosen.output)}
    for seed in range(chosen.seeds):
        for minutes in chosen.minutes:
            for dataset in chosen.datasets:
                for arm in ("expert", "vitlet"):
                    about = {"dataset": dataset, "arm": arm, "seed": str(seed), "minutes": f"{minutes:g}"}
                    if tuple(about.values()) in done:
                        continue
                    if arm == "expert":
                        table = chosen.work / f"{dataset}-{seed}.csv"
                        write_table(place, dataset, seed, table)
                        found = expert(table, dataset, seed, minutes)
                    else:
                        output = chosen.work / dataset / f"{minutes:g}-{seed}"
                        found = vitlet(words_of(place, dataset, seed), output, minutes)
                    append(chosen.output, {**found, **about, "processor": processor()})
                    print(f"{dataset} {minutes:g} min {arm} seed {seed}: {found['top1']:.2f}", flush=True)
    about_run = f"{datetime.date.today()}; {processor()}, {torch.get_num_threads()} cores; torch {torch.__version__}."
    chosen.output.with_suffix(".md").write_text(f"# {__doc__}\n{about_run}\n\n{report(chosen.output)}")
    print(report(chosen.output))


def append(file: Path, row: dict[str, Any]) -> None:
    """Add a row to the table."""
    new = not file.is_file()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore")
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
