"""Whether features learned without labels are worth more than none: nearest neighbours on CIFAR-10.

A ViT of 96 x 4 with patches of 4 pixels learns `sprel` and `position` from 30 % of the training images, without labels.
Then 500 labelled training images of each class name the 10,000 test images, 20 neighbours each, by the centred cosine
of frozen features: of that network, of the same one with its random initial weights, and of the raw pixels. The block
whose mean token is taken is chosen on a fifth of the labelled training images, for random weights too; the test images
are looked at once. Seeds differ in initial weights, images learned from, and labelled images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from timing import Report, interval
from vitlet.analysis.probes import ProbeResult, probe
from vitlet.config import RunConfig
from vitlet.training.loop import train

VIT = {"patch_size": 4, "embed_dim": 96, "depth": 4, "num_heads": 4}


def settings(data: str, output: Path, seed: int, epochs: int) -> RunConfig:
    """The pre-training of one seed; a run that was begun is continued, a finished one is not trained again."""
    return RunConfig(
        data=data,
        pretrain=True,
        img_size=(32, 32),
        model_kwargs=VIT,
        fraction=0.3,
        val_fraction=0.02,
        epochs=epochs,
        batch_size=64,
        lr=1e-3,
        weight_decay=0.1,
        clip_grad=1.0,
        aug="relvit",
        workers=0,
        seed=seed,
        output=str(output),
        resume="auto",
    )


def shown(values: list[float]) -> str:
    """Mean and 95 % interval."""
    mean, half = interval(values)
    return f"{mean:.2f} ± {half:.2f}"


def main() -> None:
    """Train, probe, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="CIFAR-10, as a folder with train and test or by name")
    parser.add_argument("--seeds", type=int, default=3, help="two or more [3]")
    parser.add_argument("--epochs", type=int, default=30, help="[30]")
    parser.add_argument("--work", type=Path, default=Path("runs/knn"), help="folder of the runs [runs/knn]")
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, ProbeResult]] = []
    for seed in range(chosen.seeds):
        output = chosen.work / f"seed-{seed}"
        train(settings(chosen.data, output, seed, chosen.epochs), title=f"seed {seed}")
        results = probe(output, chosen.data, fractions=(1.0,), per_class=500, baselines=True, seed=seed, device="cpu")
        found.append({result.features: result for result in results})
    report = Report("Nearest neighbours after pre-training", __doc__, chosen.output)
    kinds = list(found[0])
    report.add(["", "| seed | " + " | ".join(f"{kind}: kNN %, linear %" for kind in kinds) + " |", "|---" * 4 + "|"])
    for seed, of_seed in enumerate(found):
        cells = [f"{of_seed[kind].knn:.2f}, {of_seed[kind].linear:.2f}" for kind in kinds]
        block = of_seed["run"].layer
        report.add([f"| {seed} (block {block}) | " + " | ".join(cells) + " |"])
    report.add(["", "Paired differences, mean and 95 % interval over seeds, in points:", ""])
    for kind in kinds[1:]:
        knn = [of_seed["run"].knn - of_seed[kind].knn for of_seed in found]
        linear = [float(of_seed["run"].linear or 0) - float(of_seed[kind].linear or 0) for of_seed in found]
        report.add([f"- pre-trained less {kind}: kNN {shown(knn)}, linear {shown(linear)}"])
    report.close()


if __name__ == "__main__":
    main()
