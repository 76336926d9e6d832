"""Which weight a price on attention gets where nobody gives one.

Handwritten digits (scikit-learn's 1,797 scans of 8 x 8): 1,000 to train on, 300 for validation, the last 497 for
testing. A ViT of 48 x 3 with patches of 2 pixels, 300 steps of 64 scans. For each task and weight the mean over seeds
of validation accuracy and of the mean attention distance of the priced layer, in patches. The weight suggested is the
one with the best validation accuracy among those that lower the distance (for similarity: the loss) by at least a
tenth. That one is then tested against no price, seed by seed: mean and 95 % interval of the difference.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import timm
import torch
from sklearn.datasets import load_digits

import vitlet
from timing import Report, interval
from vitlet.tasks.task import Task

WEIGHTS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
OPTIONS = {"img_size": 8, "patch_size": 2, "embed_dim": 48, "depth": 3, "num_heads": 3}


def run(task: Task, weight: float, seed: int, steps: int) -> tuple[float, float, float, float]:
    """Accuracy on validation and test scans in percent; on validation, the priced layer's reach and unweighted loss."""
    digits = load_digits()
    images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    torch.manual_seed(seed)
    model = timm.create_model("vit_tiny_patch16_224", in_chans=1, num_classes=10, **OPTIONS)
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(task, weight)])
    optimizer = torch.optim.AdamW(objective.parameters(), lr=2e-3, weight_decay=0.05)
    for _ in range(steps):
        batch = torch.randint(1000, (64,))
        optimizer.zero_grad()
        objective(images[batch], labels[batch]).loss.backward()
        optimizer.step()
    objective.eval()
    with torch.no_grad():
        held, last = (objective(images[part], labels[part]) for part in (slice(1000, 1300), slice(1300, None)))
    accuracies = [
        100 * float((outcome.logits.argmax(1) == labels[part]).float().mean())
        for outcome, part in ((held, slice(1000, 1300)), (last, slice(1300, None)))
    ]
    reach = next(float(value) for name, value in held.metrics.items() if name.endswith("_distance"))
    return accuracies[0], accuracies[1], reach, float(held.parts[task.name])


def study(name: str, make: type[Task], seeds: int, steps: int, report: Report) -> None:
    """The table of one task, its choice, and the test of that choice."""
    found = {weight: [run(make(), weight, seed, steps) for seed in range(seeds)] for weight in WEIGHTS}
    means = {weight: [statistics.mean(column) for column in zip(*rows, strict=True)] for weight, rows in found.items()}
    report.add(
        ["", f"## {name}", "", "| weight | validation % | distance, patches | unweighted loss |", "|---|---|---|---|"]
    )
    report.add(f"| {weight:g} | {m[0]:.2f} | {m[2]:.2f} | {m[3]:.3f} |" for weight, m in means.items())
    measure = 2 if name == "attention-distance" else 3
    working = [weight for weight in WEIGHTS[1:] if means[weight][measure] <= 0.9 * means[0.0][measure]]
    if not working:
        report.add(["", "No weight lowers it by a tenth."])
        return
    best = max(working, key=lambda weight: means[weight][0])
    gains = [priced[1] - plain[1] for priced, plain in zip(found[best], found[0.0], strict=True)]
    mean, half = interval(gains)
    test = f"{means[best][1]:.2f} % against {means[0.0][1]:.2f} % without"
    report.add(["", f"Best by validation: {best:g}. Test: {test}, paired difference {mean:+.2f} ± {half:.2f}."])


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="[5]")
    parser.add_argument("--steps", type=int, default=300, help="[300]")
    parser.add_argument("--output", type=Path, help="write the tables here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("The weight of a price on attention", __doc__, chosen.output)
    study("attention-distance", vitlet.AttentionDistance, chosen.seeds, chosen.steps, report)
    study("attention-similarity", vitlet.AttentionSimilarity, chosen.seeds, chosen.steps, report)
    report.close()


if __name__ == "__main__":
    main()
