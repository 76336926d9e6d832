"""How well two processes share the work of one.

A network is trained by one process with one thread, then by two with one thread each, in turns, the images of a step
the same; images per second of an epoch after the first. Efficiency is the speed of two over twice the speed of one. It
needs two cores that nobody else uses: wall time is what is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import VIT, write_images
from timing import Report
from vitlet.training.run_folder import read_rows

NETWORKS = {
    "ViT 128 x 6, 32 px": ["--model", "vit_tiny_patch16_224", "--model-kwargs", *(f"{k}={v}" for k, v in VIT.items())],
    "resnet_for_32px": ["--model", "resnet_for_32px"],
}


def images_per_second(data: Path, output: Path, network: list[str], processes: int, extra: list[str]) -> float:
    """The median over the epochs of one run, the first left out."""
    words = [*network, "--img-size", "32", "-b", "64", "--epochs", "4", "-j", "0", "--val-fraction", "0", *extra]
    command = [sys.executable, "-m", "vitlet", "train", str(data), *words, "--device", "cpu", "--output", str(output)]
    command += ["--nproc", str(processes)] if processes > 1 else []
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.DEVNULL)
    return statistics.median(row["images_per_second"] for row in read_rows(output)[1:])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="[2]")
    parser.add_argument("--images", type=int, default=1024, help="of an epoch [1024]")
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    report = Report("Two processes", __doc__, chosen.output)
    load = os.getloadavg()[0]
    report.add(["", f"Load of the machine at the start: {load:.1f} (other work on the cores lowers all figures).", ""])
    report.add(["| network | one, images/s | two (DDP) | efficiency | two (FSDP2) | efficiency |", "|---" * 6 + "|"])
    with tempfile.TemporaryDirectory(prefix="vitlet-scaling-") as work:
        data = write_images(Path(work) / "data", chosen.images)
        for name, network in NETWORKS.items():
            speeds: dict[str, list[float]] = {"one": [], "ddp": [], "fsdp": []}
            for number in range(chosen.rounds):
                for kind, found in speeds.items():
                    extra = ["--fsdp"] if kind == "fsdp" else []
                    output = Path(work) / f"{name[:3]}-{number}-{kind}"
                    found.append(images_per_second(data, output, network, 1 if kind == "one" else 2, extra))
            one, ddp, fsdp = (max(found) for found in speeds.values())
            figures = f"{one:.0f} | {ddp:.0f} | {ddp / one / 2:.2f} | {fsdp:.0f} | {fsdp / one / 2:.2f}"
            report.add([f"| {name} | {figures} |"])
    report.close()


if __name__ == "__main__":
    main()
