"""Both detectors on eight images of COCO: train, stop, resume, evaluate, predict; they have to learn them by heart.

    python benchmarks/overfit.py COCO [--work FOLDER] [--output benchmarks/results/overfit.md]

COCO is a folder in COCO's layout. The first eight training images with one to four large objects become a dataset of
their own, listed ten times over so that an epoch is long enough, and are trained on and evaluated on. A finished run is
not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch

from timing import processor

BACKBONE, EPOCHS, COPIES, WANTED = "swin_for_96px", 8, 10, 80.0
SETTINGS = {
    "--backbone": BACKBONE,
    "--min-side": "128",
    "--max-side": "128",
    "--long-side": "192",
    "--head-width": "32",
    "--box-width": "256",
    "--epochs": str(EPOCHS),
    "-b": "4",
    "--lr": "1e-3",
    "--sched": "cosine",
    "--warmup-epochs": "1",
    "--clip-grad": "5",
    "--hflip": "0",
    "--weight-decay": "0",
}


def eight_images(coco: Path, folder: Path) -> list[Path]:
    """A dataset of eight images, to train on and to evaluate on; their files."""
    file = next(iter(sorted((coco / "annotations").glob("instances_train*.json"))))
    content = json.loads(file.read_text(encoding="utf-8"))
    objects: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for each in content["annotations"]:
        objects[each["image_id"]].append(each)

    def suits(image: dict[str, Any]) -> bool:
        found = objects[image["id"]]
        return 1 <= len(found) <= 4 and all(each["area"] > 1500 and not each["iscrowd"] for each in found)

    chosen = [image for image in content["images"] if suits(image)][:8]
    source = coco / file.stem.removeprefix("instances_")
    for split, copies in (("train", COPIES), ("val", 1)):
        images, annotations = [], []
        (folder / split).mkdir(parents=True, exist_ok=True)
        for image in chosen * copies:
            shutil.copy(source / image["file_name"], folder / split)
            images.append(image | {"id": len(images) + 1})
            for each in objects[image["id"]]:
                annotations.append(each | {"id": len(annotations) + 1, "image_id": len(images)})
        (folder / "annotations").mkdir(exist_ok=True)
        (folder / "annotations" / f"instances_{split}.json").write_text(
            json.dumps({"images": images, "annotations": annotations, "categories": content["categories"]})
        )
    return [folder / "val" / image["file_name"] for image in chosen]


def command(*words: str) -> list[str]:
    """``vitlet detect`` in a process of its own."""
    return [sys.executable, "-m", "vitlet", "detect", *words]


def train(data: Path, run: Path, head: str) -> bool:
    """Train to the end, with one stop on the way; whether it was stopped and continued."""
    words = ["train", str(data), "--head", head, "--output", str(run), "--resume", "auto"]
    words += [word for pair in SETTINGS.items() for word in pair]
    if (run / "result.json").is_file():
        return (run / "stopped").is_file()
    process = subprocess.Popen(command(*words))
    while process.poll() is None:
        rows = run / "metrics.jsonl"
        if not (run / "stopped").is_file() and rows.is_file() and len(rows.read_text().splitlines()) >= 2:
            process.send_signal(signal.SIGTERM)
            if process.wait() != 75:
                raise SystemExit(f"stopped with exit code {process.returncode}, expected 75")
            (run / "stopped").touch()
            process = subprocess.Popen(command(*words))
        time.sleep(1)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}")
    return (run / "stopped").is_file()


def main() -> None:
    """Both detectors, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coco", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/overfit"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/overfit.md"))
    chosen = parser.parse_args()
    data = chosen.work / "eight"
    images = eight_images(chosen.coco, data)
    rows = []
    for head in ("mask-rcnn", "cascade"):
        run = chosen.work / head
        resumed = train(data, run, head)
        found = subprocess.run(command("evaluate", str(run), "--json"), capture_output=True, text=True, check=True)
        scores = json.loads(found.stdout)
        pictures = [*map(str, images[:4]), "--score", "0.2", "--output", str(chosen.work / f"{head}-pictures")]
        subprocess.run(command("predict", str(run), *pictures), check=True)
        best = json.loads((run / "result.json").read_text())["best_epoch"]
        numbers = " | ".join(f"{scores[key]:.1f}" for key in ("box_AP", "box_AP50", "mask_AP", "mask_AP50"))
        rows.append(f"| {head} | {numbers} | {best} of {EPOCHS} | {'yes' if resumed else 'no'} |")
        if scores["box_AP50"] <= WANTED:
            print(f"{head}: box AP50 {scores['box_AP50']:.1f} is not above {WANTED:g}", file=sys.stderr)
    flags = " ".join(word for pair in SETTINGS.items() for word in pair)
    columns = ("head", "box AP", "box AP50", "mask AP", "mask AP50", "best epoch", "resumed")
    place = f"{date.today()}; {processor()}, one thread; torch {torch.__version__}."
    text = [
        "# Two detectors learn eight images by heart",
        "",
        f"`python benchmarks/overfit.py COCO`, {place}",
        "",
        "COCO is a sample of COCO 2017: 128 training images, 480 pixels wide or high. The first eight with one to four",
        "objects of more than 1,500 pixels are trained on, each ten times an epoch, and evaluated on, with",
        f"`{flags}`.",
        "Each run was stopped by SIGTERM after its second epoch and continued.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *rows,
    ]
    chosen.output.write_text("\n".join(text) + "\n")
    print(chosen.output.read_text())


if __name__ == "__main__":
    main()
