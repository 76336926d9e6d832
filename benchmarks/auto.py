"""``vitlet train DATA --minutes N`` without further flags against others, in the same time on the same cores.

    taskset --cpu-list 0 python benchmarks/auto.py DATA_DIR --minutes 2 10 30 --seeds 3

Nothing else may run on these cores; without taskset they are all of the machine's. The arms take turns: an expert's
script; the best single setting of the recipe study, by flags (the arm "resnet" of ``versus.py``); fastai, Ultralytics
and lightly-train (their environment is made by ``benchmarks/peers.py --make-venv``); then the command without flags.
The test of vitlet is part of its time, that of the others comes after it. A row holds test accuracy and seconds, those
of vitlet from its start to its end. Finished rows of ``benchmarks/results/auto.csv`` are not run again; the table is
written to ``auto.md``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from peers import PEERS, peer
from timing import append_row, interval, processor, read_rows
from versus import ARMS as RECIPES
from versus import DATA, RECIPE, SIZES, words_of, write_table
from vitlet.processes import usable_cores

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("dataset", "arm", "seed", "minutes", "top1", "seconds", "used", "cores", "processor")
ARMS = ("expert", "single", "fastai", "ultralytics", "lightly-train", "vitlet")


def expert(table: Path, dataset: str, seed: int, minutes: float) -> dict[str, Any]:
    """One run of ``expert.py`` by the clock."""
    words = [sys.executable, str(Path(__file__).parent / "expert.py"), str(table), "--wall", "--seed", str(seed)]
    words += ["--seconds", str(60 * minutes), *(["--tiny"] if "cifar" in dataset else [])]
    found = subprocess.run(words, check=True, capture_output=True, text=True)
    return {**json.loads(found.stdout.splitlines()[-1]), "used": "resnet"}


def single_words(dataset: str) -> list[str]:
    """The best single setting of the recipe study, as flags."""
    grown, side = SIZES[dataset]
    return ["--img-size", grown, *f"{RECIPE} {RECIPES['resnet'].format(side=side)}".split()]


def vitlet(words: list[str], output: Path, minutes: float) -> dict[str, Any]:
    """One run of ``vitlet train``, which chooses what the words leave open."""
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
    """Of each arm beside the command: both means, the paired difference, and how far its time was from the promise."""
    rows = read_rows(file)
    lines = ["| dataset | cores | minutes | against | seeds | its % | vitlet % | difference | late by, % |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for dataset, cores, minutes in sorted({(row["dataset"], row["cores"], float(row["minutes"])) for row in rows}):
        about = (dataset, cores, minutes)
        mine = [row for row in rows if (row["dataset"], row["cores"], float(row["minutes"])) == about]
        found = {arm: {row["seed"]: row for row in mine if row["arm"] == arm} for arm in ARMS}
        for arm in ARMS[:-1]:
            seeds = sorted(found[arm].keys() & found["vitlet"].keys())
            if not seeds:
                continue
            olds, news = ([float(found[each][seed]["top1"]) for seed in seeds] for each in (arm, "vitlet"))
            gains = [new - old for old, new in zip(olds, news, strict=True)]
            gain = "{:+.2f} ± {:.2f}".format(*interval(gains)) if len(gains) > 1 else f"{gains[0]:+.2f}"
            late = max(float(found["vitlet"][seed]["seconds"]) / (60 * minutes) - 1 for seed in seeds)
            cells = [dataset, cores, f"{minutes:g}", arm, str(len(seeds)), f"{sum(olds) / len(olds):.2f}"]
            cells += [f"{sum(news) / len(news):.2f}", gain, f"{100 * late:+.1f} at most"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def run_arm(
    arm: str, place: Path, dataset: str, seed: int, minutes: float, chosen: argparse.Namespace
) -> dict[str, Any]:
    """One run of an arm."""
    if arm in ("vitlet", "single"):
        words = [*words_of(place, dataset, seed), *(single_words(dataset) if arm == "single" else [])]
        return vitlet(words, chosen.work / dataset / f"{arm}-{minutes:g}-{seed}", minutes)
    table = chosen.work / f"{dataset}-{seed}.csv"
    write_table(place, dataset, seed, table)
    if arm in PEERS:
        python = chosen.venv.absolute() / "bin" / "python"
        return peer(arm, table, dataset, seed, 60 * minutes, wall=True, python=python)
    return expert(table, dataset, seed, minutes)


def main() -> None:
    """Run what is missing, one after another, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--minutes", nargs="+", type=float, default=[2.0, 10.0, 30.0])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--venv", type=Path, default=Path("build/peers"), help="of fastai and Ultralytics")
    parser.add_argument("--work", type=Path, default=Path("runs/auto"))
    parser.add_argument("--output", type=Path, default=RESULTS / "auto.csv")
    chosen = parser.parse_args()
    place, done = chosen.data_dir.resolve(), {tuple(row.values())[:4] for row in read_rows(chosen.output)}
    for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
        for minutes in chosen.minutes:
            for dataset in chosen.datasets:
                for arm in chosen.arms:
                    about = {"dataset": dataset, "arm": arm, "seed": str(seed), "minutes": f"{minutes:g}"}
                    if tuple(about.values()) in done:
                        continue
                    found = run_arm(arm, place, dataset, seed, minutes, chosen)
                    about |= {"cores": str(usable_cores()), "processor": processor()}
                    append_row(chosen.output, COLUMNS, {**found, **about})
                    print(f"{dataset} {minutes:g} min {arm} seed {seed}: {found['top1']:.2f}", flush=True)
    about_run = f"{datetime.date.today()}; {processor()}; torch {torch.__version__}."
    chosen.output.with_suffix(".md").write_text(f"# {__doc__}\n{about_run}\n\n{report(chosen.output)}")
    print(report(chosen.output))


if __name__ == "__main__":
    main()
