"""Whether weights found while training beat fixed ones: scikit-learn's digits, paired by seed.

The ViT of `vitlet train` without data (64 x 4, patches of 2 x 2 pixels) learns the labels of 80 % of the training
images beside `drloc` and `position` at their suggested weights, 0.5 and 1. Only how the weights are balanced differs:
fixed, uncertainty (learned spreads), gradients (equal norms on the last shared layer). Seeds differ in the images held
out for validation, initial weights, order and augmentation; the test images are looked at once, by the best epoch on
the validation images.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from timing import Report, interval
from vitlet.cli.demo import digits_config
from vitlet.config import TaskConfig
from vitlet.training.loop import train
from vitlet.training.run_folder import read_rows

TASKS = {"drloc": TaskConfig(0.5, options={"hidden": 128, "pairs": 32}), "position": TaskConfig(1.0)}
KINDS = ("fixed", "uncertainty", "gradients")


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="two or more [3]")
    parser.add_argument("--epochs", type=int, default=20, help="[20]")
    parser.add_argument("--work", type=Path, default=Path("runs/balance"), help="folder of the runs [runs/balance]")
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    base = replace(digits_config(), epochs=chosen.epochs, workers=0, checkpoint_epochs=None)
    arms = {"labels only": base}
    arms |= {kind: replace(base, tasks=TASKS, balance_tasks=kind) for kind in KINDS}
    top1: dict[str, list[float]] = {name: [] for name in arms}
    weights: dict[str, list[str]] = {name: [] for name in arms}
    for seed in range(chosen.seeds):
        for name, config in arms.items():
            output = chosen.work / name.replace(" ", "-") / f"seed-{seed}"
            result = train(replace(config, seed=seed, output=str(output), resume="auto"), title=f"{name}, seed {seed}")
            assert result.test is not None
            top1[name].append(result.test.top1)
            last = read_rows(output)[-1]
            names = [f"weight/{task}" for task in ("criterion", *TASKS) if f"weight/{task}" in last]
            weights[name].append(", ".join(f"{last[key]:.2f}" for key in names))
    report = Report("Balance of tasks", __doc__, chosen.output)
    report.add(["", "Test accuracy, %:", "", "| seed | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"])
    for seed in range(chosen.seeds):
        report.add([f"| {seed} | " + " | ".join(f"{top1[name][seed]:.2f}" for name in arms) + " |"])
    report.add(["", "Paired differences, mean and 95 % interval over seeds, in points:", ""])
    for name, other in (("fixed", "labels only"), ("uncertainty", "fixed"), ("gradients", "fixed")):
        mean, half = interval([one - two for one, two in zip(top1[name], top1[other], strict=True)])
        verdict = "no difference shown" if abs(mean) <= half else "better" if mean > 0 else "worse"
        report.add([f"- {name} less {other}: {mean:+.2f} ± {half:.2f} ({verdict})"])
    report.add(["", "Weights in the last epoch (labels where they are found too, drloc, position), by seed:", ""])
    report.add([f"- {name}: {'; '.join(weights[name])}" for name in arms if name in KINDS])
    report.close()


if __name__ == "__main__":
    main()
