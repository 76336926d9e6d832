"""Every kind of run, disturbed in every way that a machine has, and compared bit by bit with one left alone.

Each kind of run is trained once undisturbed. Then, round by round, the same run is killed with SIGKILL inside a phase
drawn beforehand or at a random moment, disturbed in one more way (two SIGINT, SIGSTOP and SIGCONT, SIGTERM while it
starts, SIGKILL of a loading process), and continued with ``--resume auto`` until it ends. Weights, averages, optimizer
state and the rows of metrics have to be equal to the last bit; of a study the records of its cells, of a search the
tries that were finished. A kill counts only if there was a checkpoint to lose, and the phase of death is the one that
the process itself noted in shared memory. Begun again with the same ``--work``, the rounds that are done stay done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml

import faults
from faults import PHASES, await_end, differences, has_saved, kill_and_continue, let_end, make_config, start
from timing import Report
from vitlet.training import loop as engine
from vitlet.transfer.detection.job import DetectionJob
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.segmentation.job import SegmentationJob
from vitlet.transfer.segmentation.settings import SegmentConfig

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from builders.shapes import write_coco, write_masks

OTHERS = ("2 x SIGINT", "SIGSTOP", "SIGTERM at start", "loading process")
MARK = ".vitlet-faults"
"""In a folder of rounds: what is in it may be deleted."""
COLUMNS = (*PHASES, "process", *OTHERS)
SAVED = {"epochs": 3, "checkpoint_steps": 3, "device": "cpu", "workers": 0, "resume": "auto", "lr": 1e-3}
DENSE = {**SAVED, "batch_size": 2, "model_ema": True}
DETECTOR = {
    "backbone": "test_resnet",
    "min_side": 32,
    "max_side": 48,
    "long_side": 64,
    "head_width": 16,
    "box_width": 32,
}
SEGMENTER = {
    "backbone": "test_vit",
    "model_kwargs": {"patch_size": 8},
    "img_size": (32, 64),
    "decoder_channels": 8,
    "ignore_index": 3,
}
STUDY = {
    "settings": {
        "data": "digits",
        "img_size": 8,
        "in_chans": 1,
        "epochs": 3,
        "batch_size": 128,
        "crop": "none",
        "hflip": 0,
        "model_kwargs": {"patch_size": 2, "embed_dim": 16, "depth": 1, "num_heads": 2},
    },
    "arms": {"plain": {}, "drloc": {"task": {"drloc": 0.5}, "drloc": {"hidden": 16, "pairs": 8}}},
    "seeds": 1,
}


@dataclass(frozen=True)
class Kind:
    """A kind of run: its settings for a folder of data and one of output, and what trains it."""

    config: Callable[[Path, Path], Any]
    processes: int = 1
    work: Callable[[Any], object] = engine.train


def detect(config: DetectConfig) -> object:
    """Train a detector."""
    return engine.train_job(config, lambda _: DetectionJob, title="detect")


def segment(config: SegmentConfig) -> object:
    """Train a segmenter."""
    return engine.train_job(config, lambda _: SegmentationJob, title="segment")


def classifier(changes: dict[str, Any]) -> Kind:
    """One of the configurations that the tests kill too."""
    return Kind(lambda data, run: make_config(data / "images", run, **changes), changes.get("processes", 1))


def detector(processes: int = 1, **changes: Any) -> Kind:
    """A small detector."""
    settings = DENSE | DETECTOR | changes
    return Kind(lambda data, run: DetectConfig(data=str(data / "coco"), output=str(run), **settings), processes, detect)


def segmenter(processes: int = 1, **changes: Any) -> Kind:
    """A small segmenter."""
    settings = DENSE | SEGMENTER | changes
    return Kind(
        lambda data, run: SegmentConfig(data=str(data / "masks"), output=str(run), **settings), processes, segment
    )


KINDS: dict[str, Kind] = {
    "detection, Mask R-CNN": detector(),
    "detection, cascade, 2 workers": detector(head="cascade", workers=2),
    "detection, 2 processes": detector(2, batch_size=4),
    "segmentation": segmenter(),
    "segmentation, 2 processes, 2 workers": segmenter(2, batch_size=4, workers=2),
    "sharded, EMA": classifier({"fsdp": True, "model_ema": True}),
    "pre-training, 2 processes, sharded, EMA": classifier(
        {"pretrain": True, "processes": 2, "fsdp": True, "model_ema": True}
    ),
    **{name: classifier(changes) for name, changes in faults.CONFIGURATIONS.items()},
}


def slow_steps(rank: int) -> None:
    """Leave this process the time to see a step begin."""
    step = engine.Trainer._step
    engine.Trainer._step = lambda *of: (time.sleep(0.03), step(*of))[1]  # type: ignore[method-assign,assignment]


def is_stepping(watch: faults.Watch, process: int) -> bool:
    """Wait until a process is in a step; whether it got there."""
    while watch.phase != "step":
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.001)
    return True


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [line.split() for line in table.splitlines()]
    return [int(pid) for pid, parent in pairs if int(parent) == process]


def disturb(how: str, kind: Kind, config: Any, seconds: float, draw: random.Random) -> bool:
    """Disturb a run in another way than by killing it; whether there was a checkpoint to lose."""
    victim, log = draw.randrange(kind.processes), Path(f"{config.output}.log")
    if how == "loading process":
        config = replace(config, workers=2)  # free to change, and the bits stay the same
    started, watch = start(config, kind.processes, log, victim=victim, before=slow_steps, work=kind.work)
    hit, wanted = started[victim], {0, 75}
    if how == "SIGTERM at start":
        time.sleep(draw.uniform(0, 0.15 * seconds))
        wanted |= {-signal.SIGTERM, -signal.SIGKILL, 5}  # a process that was not asked loses the one that was
        os.kill(hit, signal.SIGTERM)
    elif is_stepping(watch, hit):
        if how == "2 x SIGINT":
            os.kill(hit, signal.SIGINT)
            time.sleep(draw.uniform(0, 0.03))
            os.kill(hit, signal.SIGINT)
        elif how == "SIGSTOP":
            os.kill(hit, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(hit, signal.SIGCONT)
        elif loading := children(hit):
            wanted |= {-signal.SIGKILL, 5}
            os.kill(draw.choice(loading), signal.SIGKILL)
    codes = await_end(started)
    if not set(codes) <= wanted:
        raise SystemExit(f"{how}: exit codes {codes} of {config.output}:\n{log.read_text()}")
    return has_saved(config)


def play_round(name: str, data: Path, work: Path, seed: int) -> tuple[Counter[str], list[str]]:
    """Disturb a run of one kind several times; what was done to it, and what differs at its end."""
    kind, draw = KINDS[name], random.Random(seed)
    whole, broken = kind.config(data, work / "whole"), kind.config(data, work / f"round-{seed}")
    clock = work / "seconds"
    if not clock.is_file():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        began = time.monotonic()
        let_end(whole, kind.processes, kind.work)
        clock.write_text(str(time.monotonic() - began))
    seconds = float(clock.read_text())
    shutil.rmtree(broken.output, ignore_errors=True)  # of a round that was not finished
    how = OTHERS[seed % len(OTHERS)]
    found = kill_and_continue(broken, kind.processes, seed, 1, seconds, kind.work)
    if how != "SIGSTOP":  # a stopped run goes on to its end
        found[how] += disturb(how, kind, broken, seconds, draw)
    found += kill_and_continue(broken, kind.processes, seed + 1, 3, seconds, kind.work)
    if how == "SIGSTOP":
        found[how] += disturb(how, kind, broken, seconds, draw)
    let_end(broken, kind.processes, kind.work)
    lost = differences(Path(whole.output), Path(broken.output))
    shutil.rmtree(broken.output)
    return found, lost


def run_study(folder: Path, *, kills: int = 0, seed: int = 0) -> tuple[Counter[str], dict[str, Any]]:
    """``vitlet study``, its command or the command and its cells killed so many times; the records in the end."""
    draw, found = random.Random(seed), Counter[str]()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    words = ["study", "study.yaml", "--work", "work", "--processes", "1"]
    command = [sys.executable, "-m", "vitlet", *words]
    for number in range(kills + 1):
        with (folder / "log").open("ab") as log:
            study = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        saved = set(folder.glob("work/**/checkpoints/step-*/manifest.json"))
        while number < kills and study.poll() is None:
            if set(folder.glob("work/**/checkpoints/step-*/manifest.json")) - saved:
                time.sleep(draw.uniform(0, 0.5))
                cells = children(study.pid) if draw.random() < 0.5 else []
                for process in (study.pid, *cells):
                    os.kill(process, signal.SIGKILL)
                found["process"] += 1
                study.wait()
                time.sleep(3.0)  # its cells end by themselves
            time.sleep(0.02)
        if study.wait() and number == kills:
            raise SystemExit(f"study: exit code {study.returncode}\n{(folder / 'log').read_text()}")
    records = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in folder.glob("cells/**/*.json")}
    free = ("cpu_seconds", "made_by")
    return found, {name: {k: v for k, v in each.items() if k not in free} for name, each in records.items()}


def play_study(data: Path, work: Path, seed: int) -> tuple[Counter[str], list[str]]:
    """A study whose processes are killed twice."""
    whole = work / "whole.json"
    if not whole.is_file():
        records = run_study(work / "whole")[1]
        whole.write_text(json.dumps(records))
    folder = work / f"round-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    found, records = run_study(folder, kills=2, seed=seed)
    shutil.rmtree(folder)
    expected = json.loads(whole.read_text())
    return found, [name for name in expected.keys() | records.keys() if expected.get(name) != records.get(name)]


def play_search(data: Path, work: Path, seed: int) -> tuple[Counter[str], list[str]]:
    """A search that is killed twice; what it had found stays, and it goes on."""
    from vitlet.experiments.tuning import tune

    folder, draw, deaths = work / f"round-{seed}", random.Random(seed), Counter[str]()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = make_config(data / "images", folder, resume=None)
    file = work / "found.json"

    def search(settings: Any) -> None:
        found = tune(replace(settings, output=None), folder, minutes=60.0, trials=2, say=print)[1]
        file.write_text(json.dumps({each.number: each.top1 for each in found}))

    let_end(config, 1, search)
    known = json.loads(file.read_text())
    for _ in range(2):
        death = faults.Death("step", draw.randint(1, 22), 0.0)  # of the 24 steps of two tries
        started, watch = start(config, 1, Path(f"{folder}.log"), death=death, work=search)
        codes = await_end(started)
        if codes == [-signal.SIGKILL]:
            deaths[watch.phase] += 1
        elif codes != [0]:
            raise SystemExit(f"tune: exit codes {codes}\n{Path(f'{folder}.log').read_text()}")
    let_end(config, 1, search)
    after = json.loads(file.read_text())
    shutil.rmtree(folder)
    return deaths, [f"try {number}" for number, top1 in known.items() if after.get(number) != top1]


def make_data(root: Path) -> Path:
    """The images of all kinds of runs, once."""
    if not (root / "complete").is_file():
        shutil.rmtree(root, ignore_errors=True)
        faults.write_images(root / "images")
        write_coco(root / "coco", images=8)
        write_masks(root / "masks", images=8)
        (root / "complete").touch()
    return root


def table(records: list[dict[str, Any]]) -> list[str]:
    """A row for every kind of run, and one for all."""
    lines = ["", "| kind of run | " + " | ".join(COLUMNS) + " | lost |", "|" + "---|" * (len(COLUMNS) + 2)]
    names = dict.fromkeys(record["kind"] for record in records)
    for name in (*names, "**all**"):
        own = [record for record in records if name in (record["kind"], "**all**")]
        counts = sum((Counter(record["found"]) for record in own), Counter[str]())
        lost = "; ".join(each for record in own for each in record["lost"]) or "nothing"
        lines.append(f"| {name} | " + " | ".join(str(counts[column]) for column in COLUMNS) + f" | {lost} |")
    return [*lines, "", f"{kills_of(records)} kills that found a checkpoint, in {len(names)} kinds of runs."]


def kills_of(records: list[dict[str, Any]], name: str | None = None) -> int:
    """Kills that count, of one kind of run or of all."""
    own = [record for record in records if name in (None, record["kind"])]
    return sum(record["found"].get(phase, 0) for record in own for phase in (*PHASES, "process"))


def main() -> None:
    """Play rounds until there are enough kills, the kind that has the fewest first; print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="in all, at least [60]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments [0]")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/faults"), help="of the runs and the rounds that are done"
    )
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    work = chosen.work.absolute()
    if work.is_dir() and any(work.iterdir()) and not (work / MARK).is_file():
        raise SystemExit(f"{work} holds other files; choose another --work.")
    work.mkdir(parents=True, exist_ok=True)
    (work / MARK).touch()
    data, file = make_data(work / "data"), work / f"rounds-{chosen.seed}.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    names = [*KINDS, "study", *(["tune"] if find_spec("optuna") else [])]
    while kills_of(records) < chosen.kills:
        name = min(names, key=lambda each: kills_of(records, each))
        seed = 1000 * chosen.seed + len(records)
        play = {"study": play_study, "tune": play_search}.get(name)
        place = work / "".join(letter if letter.isalnum() else "-" for letter in name)
        found, lost = play(data, place, seed) if play else play_round(name, data, place, seed)
        records.append({"kind": name, "seed": seed, "found": dict(found), "lost": lost})
        with file.open("a") as opened:
            opened.write(json.dumps(records[-1]) + "\n")
        print(json.dumps(records[-1]), flush=True)
    report = Report("What a fault loses", __doc__, chosen.output)
    report.add(table(records))
    if not find_spec("optuna"):
        report.add(["", "`vitlet tune` is left out: optuna is not installed here."])
    if left := [name for name in names if name not in {record["kind"] for record in records}]:
        report.add(["", f"Not disturbed yet, for want of kills: {'; '.join(left)}."])
    report.close()
    if any(record["lost"] for record in records):
        raise SystemExit("something was lost")


if __name__ == "__main__":
    main()
