"""vitlet and an expert's plain script side by side: the same images, the same CPU time, one thread each.

    python benchmarks/versus.py DATA_DIR --seeds 3 --first-seed 10 --processes 2

Runs alternate: for every seed and dataset the expert, then the arms of vitlet, whose settings are below.
Every finished run is a row of ``benchmarks/results/versus.csv`` and is not run again; the table is written to
``versus.md``. CPU time counts imports, loading, speed tests, training and validation; the test comes after it. DATA_DIR
holds cifar10, flowers102-split and imagenette.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from timing import append_row, interval, processor, read_rows

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("dataset", "arm", "seed", "cpu_budget", "top1", "epochs", "cpu_seconds", "processor")
LOCK = threading.Lock()

DATA: dict[str, list[str]] = {
    "imagenette-852": ["imagenette", "--fraction", "0.1"],
    "cifar10-2000": ["cifar10", "--per-class", "200", "--val-fraction", "0.02"],
    "flowers102": ["flowers102-split"],
}
RECIPE = "--aug standard --tta flip --autotune --model-ema --weight-decay 0.1 --lr 4e-3 --clip-grad none"
SIZES = {"cifar10-2000": ("24:32", "32"), "imagenette-852": ("48:64", "64"), "flowers102": ("48:64", "64")}
ARMS: dict[str, str] = {
    "resnet": "--model resnet_s_for_{side}px --opt muon -b 64 --task none",
    "resnet-wsd": "--model resnet_s_for_{side}px --opt muon -b 32 --sched wsd --task none",
    "resnet+sprel": "--model resnet_s_for_{side}px --opt muon -b 64 --task sprel=0.3",
    "botnet": "--model botnet_s_for_{side}px --opt muon -b 64 --task none",
    "botnet+sprel": "--model botnet_s_for_{side}px --opt muon -b 64 --task sprel=0.3",
}
PAIRS = (
    ("resnet", "expert"),
    ("resnet-wsd", "expert"),
    ("resnet-wsd", "resnet"),
    ("botnet+sprel", "expert"),
    ("resnet+sprel", "resnet"),
    ("botnet+sprel", "botnet"),
    ("botnet", "resnet"),
    ("botnet+sprel", "resnet"),
)
"""Arms whose paired differences are shown."""


def expert(table: Path, dataset: str, seed: int, seconds: float) -> dict[str, Any]:
    """One run of ``expert.py``."""
    words = [sys.executable, str(Path(__file__).parent / "expert.py"), str(table)]
    words += ["--seconds", str(seconds), "--seed", str(seed), *(["--tiny"] if "cifar" in dataset else [])]
    found = subprocess.run(words, check=True, capture_output=True, text=True, env=one_thread())
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return {**result, "cpu_seconds": result["seconds"]}


def vitlet(words: list[str], output: Path, seconds: float) -> dict[str, Any]:
    """One run of ``vitlet train``."""
    command = [sys.executable, "-m", "vitlet", "train", *words, "--cpu-minutes", str(seconds / 60)]
    command += ["--output", str(output), "--overwrite"]
    log = output.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        subprocess.run(command, check=True, stdout=file, stderr=file, env=one_thread())
    result = json.loads((output / "result.json").read_text())
    rows = (output / "metrics.jsonl").read_text().splitlines()
    return {"top1": result["test"]["top1"], "epochs": len(rows), "cpu_seconds": result.get("cpu_seconds")}


def one_thread() -> dict[str, str]:
    """The environment of a run."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def write_table(data_dir: Path, dataset: str, seed: int, file: Path) -> None:
    """The training and test images of a vitlet run with this seed, for the expert."""
    from vitlet.cli.commands.train import run_config
    from vitlet.data.sources import load_dataset
    from vitlet.training.inputs import data_request

    config, _, _ = run_config("versus", "", [*words_of(data_dir, dataset, seed)])
    found = load_dataset(data_request(config))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["path", "label", "split"])
        for split in ("train", "test"):
            images = found.splits()[split]
            for index, label in enumerate(images.labels):
                writer.writerow([images.name(index), found.classes[label], split])


def words_of(data_dir: Path, dataset: str, seed: int) -> list[str]:
    """Data and seed as flags of `vitlet train`."""
    return [*DATA[dataset], "--data-dir", str(data_dir), "--seed", str(seed)]


def run_all(chosen: argparse.Namespace, file: Path) -> None:
    """Every run that has no row yet."""
    done = {(row["dataset"], row["arm"], row["seed"], row["cpu_budget"]) for row in read_rows(file)}
    jobs = [
        (dataset, arm, seed)
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds)
        for dataset in chosen.datasets
        for arm in chosen.arms
        if (dataset, arm, str(seed), f"{chosen.cpu_seconds:g}") not in done
    ]

    def one(job: tuple[str, str, int]) -> None:
        dataset, arm, seed = job
        if arm == "expert":
            table = chosen.work / f"{dataset}-{seed}.csv"
            write_table(chosen.data_dir, dataset, seed, table)
            found = expert(table, dataset, seed, chosen.cpu_seconds)
        else:
            grown, side = SIZES[dataset]
            words = [*words_of(chosen.data_dir, dataset, seed), "--img-size", grown]
            words += f"{RECIPE} {ARMS[arm].format(side=side)}".split()
            found = vitlet(words, chosen.work / dataset / arm / f"seed-{seed}", chosen.cpu_seconds)
        about = {"dataset": dataset, "arm": arm, "seed": seed, "cpu_budget": f"{chosen.cpu_seconds:g}"}
        with LOCK:
            append_row(file, COLUMNS, {**found, **about, "processor": processor()})
            print(f"{dataset} {arm} seed {seed}: {found['top1']:.2f}", flush=True)

    with ThreadPoolExecutor(chosen.processes) as pool:
        list(pool.map(one, jobs))


def report(file: Path) -> str:
    """Two tables: mean accuracy of each arm by dataset and budget, and paired differences between arms."""
    rows = read_rows(file)
    lines = ["| dataset | CPU s | arm | seeds | test top-1 % | epochs |", "|---|---|---|---|---|---|"]
    others = ["| dataset | CPU s | arm | against | difference | ahead |", "|---|---|---|---|---|---|"]
    for dataset, budget in sorted({(row["dataset"], float(row["cpu_budget"])) for row in rows}):
        mine = [row for row in rows if row["dataset"] == dataset and float(row["cpu_budget"]) == budget]
        found: dict[str, dict[str, float]] = {}
        for arm in ("expert", *ARMS):
            runs = [row for row in mine if row["arm"] == arm]
            if runs:
                found[arm] = {row["seed"]: float(row["top1"]) for row in runs}
                mean, half = interval(list(found[arm].values())) if len(runs) > 1 else (float(runs[0]["top1"]), 0.0)
                epochs = sum(float(row["epochs"]) for row in runs) / len(runs)
                lines.append(
                    f"| {dataset} | {budget:g} | {arm} | {len(runs)} | {mean:.2f} ± {half:.2f} | {epochs:.0f} |"
                )
        for arm, other in PAIRS:
            pairs = [
                found[arm][seed] - found[other][seed] for seed in found.get(arm, {}) if seed in found.get(other, {})
            ]
            if len(pairs) > 1:
                mean, half = interval(pairs)
                shown = f"{mean:+.2f} ± {half:.2f}"
                shown = f"**{shown}**" if abs(mean) > half else shown
                ahead = f"{sum(pair > 0 for pair in pairs)} of {len(pairs)}"
                others.append(f"| {dataset} | {budget:g} | {arm} | {other} | {shown} | {ahead} |")
    return "\n".join([*lines, "", *others]) + "\n"


def main() -> None:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--arms", nargs="*", default=["expert", *ARMS], choices=["expert", *ARMS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cpu-seconds", type=float, default=120.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/versus"))
    parser.add_argument("--output", type=Path, default=RESULTS / "versus.csv")
    chosen = parser.parse_args()
    chosen.data_dir = chosen.data_dir.resolve()
    run_all(chosen, chosen.output)
    about = (__doc__ or "").replace("    python", "`python").replace("--processes 2\n", "--processes 2`\n")
    place = f"{datetime.date.today()}; {processor()}, one thread; torch {torch.__version__}."
    chosen.output.with_suffix(".md").write_text(f"# {about}\n{place}\n\n{report(chosen.output)}")
    print(report(chosen.output))


if __name__ == "__main__":
    main()
