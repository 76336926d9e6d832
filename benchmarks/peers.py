"""vitlet, an expert's plain script and other libraries from scratch: the same images, the same time.

    python benchmarks/peers.py DATA_DIR --seconds 120 --make-venv

Each runs for so many seconds of CPU time on one thread, or with ``--wall`` by the clock on all cores (then nothing else
may run on the machine), imports and loading included; the test comes after it. No weights are downloaded. The other
libraries live in an environment of their own, ``build/peers``, which ``--make-venv`` makes; their scripts are in
``benchmarks/peers``, and see images of the size that vitlet trains with in the end. Every finished run is a row of
``benchmarks/results/peers.csv`` and is not run again; the table is written to ``peers.md``. DATA_DIR holds cifar10,
flowers102-split and imagenette.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import versus
from timing import append_row, interval, processor, read_rows

HERE = Path(__file__).parent
COLUMNS = ("dataset", "arm", "seed", "seconds", "clock", "top1", "epochs", "used", "version", "processor")
PEERS = {
    "fastai": "with_fastai.py",
    "ultralytics": "with_ultralytics.py",
    "lightly-train": "with_lightly.py",
}
ARMS = ("expert", "vitlet", *PEERS)
LEFT_OUT = "One seed is a first look: it has no interval."


def make_venv(folder: Path) -> None:
    """An environment with the other libraries, by pip and its usual settings."""
    if not (folder / "bin" / "python").is_file():
        venv.create(folder, with_pip=True)
    subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *PEERS], check=True)


def peer(arm: str, table: Path, dataset: str, seed: int, seconds: float, *, wall: bool, python: Path) -> dict[str, Any]:
    """One run of another library, in its own environment."""
    side = versus.SIZES[dataset][1]
    words = [str(python), str(HERE / "peers" / PEERS[arm]), str(table), "--seconds", str(seconds)]
    words += ["--seed", str(seed), "--size", side, *(["--wall"] if wall else [])]
    environment = dict(os.environ) if wall else versus.one_thread()
    environment.pop("PYTHONPATH", None)
    found = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if found.returncode:
        raise SystemExit(f"{arm} failed:\n{found.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    asked = f"import importlib.metadata as m; print(m.version({arm!r}))"
    version = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    return {**result, "used": result["seconds"], "version": version}


def ours(arm: str, table: Path, dataset: str, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """One run of the expert's script, or of vitlet with the settings of the arm "resnet" of ``versus.py``."""
    if arm == "expert":
        words = [sys.executable, str(HERE / "expert.py"), str(table), "--seconds", str(chosen.seconds)]
        words += [
            "--seed",
            str(seed),
            *(["--tiny"] if "cifar" in dataset else []),
            *(["--wall"] if chosen.wall else []),
        ]
        environment = dict(os.environ) if chosen.wall else versus.one_thread()
        found = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
        result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
        return {**result, "used": result["seconds"]}
    grown, side = versus.SIZES[dataset]
    words = [*versus.words_of(chosen.data_dir, dataset, seed), "--img-size", grown]
    words += f"{versus.RECIPE} {versus.ARMS['resnet'].format(side=side)}".split()
    output = chosen.work / dataset / f"{'wall' if chosen.wall else 'cpu'}-{chosen.seconds:g}-{seed}"
    return train(words, output, chosen.seconds, wall=chosen.wall)


def train(words: Sequence[str], output: Path, seconds: float, *, wall: bool) -> dict[str, Any]:
    """One run of ``vitlet train``; by the clock its test is part of the time."""
    flag = "--minutes" if wall else "--cpu-minutes"
    command = [sys.executable, "-m", "vitlet", "train", *words, flag, str(seconds / 60)]
    log = output.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        environment = dict(os.environ) if wall else versus.one_thread()
        words = [*command, "--output", str(output), "--overwrite"]
        subprocess.run(words, check=True, stdout=file, stderr=file, env=environment)
    result = json.loads((output / "result.json").read_text())
    config = (output / "config.yaml").read_text()
    repeats = next((float(line.split()[1]) for line in config.splitlines() if "epoch_repeats:" in line), 1.0)
    epochs = repeats * len((output / "metrics.jsonl").read_text().splitlines())
    return {"top1": result["test"]["top1"], "epochs": epochs, "used": seconds if wall else result["cpu_seconds"]}


def report(file: Path) -> str:
    """Mean test accuracy by dataset, budget and arm, and the paired difference of vitlet from each of the others."""
    rows = read_rows(file)
    lines = [
        "| dataset | time | arm | seeds | test top-1 % | epochs | vitlet's difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for dataset, seconds, clock in sorted({(row["dataset"], row["seconds"], row["clock"]) for row in rows}):
        key = (dataset, seconds, clock)
        mine = [row for row in rows if (row["dataset"], row["seconds"], row["clock"]) == key]
        tops = {arm: {row["seed"]: float(row["top1"]) for row in mine if row["arm"] == arm} for arm in ARMS}
        for arm, found in tops.items():
            if found:
                epochs = [float(row["epochs"]) for row in mine if row["arm"] == arm]
                shared = [seed for seed in found if seed in tops["vitlet"] and arm != "vitlet"]
                gains = [tops["vitlet"][seed] - found[seed] for seed in shared]
                cells = (dataset, f"{seconds} s, {clock}", arm, str(len(found)), _mean(list(found.values())))
                lines.append(f"| {' | '.join(cells)} | {sum(epochs) / len(epochs):.0f} | {_mean(gains, '+')} |")
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float], sign: str = "") -> str:
    if len(values) < 2:
        return f"{values[0]:{sign}.2f}" if values else ""
    mean, half = interval(list(values))
    return f"{mean:{sign}.2f} ± {half:.2f}"


def main() -> None:
    """Run what is missing, one after another, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--datasets", nargs="+", default=["imagenette-852"], choices=list(versus.DATA))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--wall", action="store_true", help="by the clock on all cores, not CPU time on one thread")
    parser.add_argument("--venv", type=Path, default=HERE.parent / "build" / "peers", help="of the other libraries")
    parser.add_argument("--make-venv", action="store_true", help="make it and install them, by pip")
    parser.add_argument("--work", type=Path, default=Path("runs/peers"))
    parser.add_argument("--output", type=Path, default=HERE / "results" / "peers.csv")
    chosen = parser.parse_args()
    chosen.data_dir, clock = chosen.data_dir.resolve(), "wall" if chosen.wall else "CPU"
    if chosen.make_venv:
        make_venv(chosen.venv)
    done = {tuple(row.values())[:5] for row in read_rows(chosen.output)}
    for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
        for dataset in chosen.datasets:
            table = chosen.work / f"{dataset}-{seed}.csv"
            versus.write_table(chosen.data_dir, dataset, seed, table)
            for arm in chosen.arms:
                about = {"dataset": dataset, "arm": arm, "seed": str(seed), "seconds": f"{chosen.seconds:g}"}
                about["clock"] = clock
                if tuple(about.values()) in done:
                    continue
                python = chosen.venv.absolute() / "bin" / "python"
                if arm in PEERS:
                    found = peer(arm, table, dataset, seed, chosen.seconds, wall=chosen.wall, python=python)
                else:
                    found = ours(arm, table, dataset, seed, chosen)
                append_row(chosen.output, COLUMNS, {**found, **about, "processor": processor()})
                print(f"{dataset} {arm} seed {seed}: {found['top1']:.2f}", flush=True)
    place = f"{datetime.date.today()}; {processor()}."
    about_run = (__doc__ or "").replace("    python", "`python").replace("--make-venv\n", "--make-venv`\n", 1)
    chosen.output.with_suffix(".md").write_text(f"# {about_run}\n{place}\n\n{report(chosen.output)}\n{LEFT_OUT}\n")
    print(report(chosen.output))


if __name__ == "__main__":
    main()
