"""Pre-training with RelViT's tasks against SimCLR of the `lightly` package, in the same budget, then fine-tuning.

    pip install lightly
    python benchmarks/other_pretraining.py DATA_DIR [--work FOLDER] [--output benchmarks/results/other_pretraining.md]

DATA_DIR holds Imagenette, as for `studies/confirmation`. Network and settings are that study's: a tenth of Imagenette,
852 images of 64 px, a ViT 96 wide and 4 deep, 20 passes of so many images through the network in all, batches of 32.
Labels alone: 20 epochs, read from that study's cells. RelViT's tasks (`sprel` and `position`): 10 epochs without,
then 10 with labels. SimCLR: 5 epochs of two views of each image (its own augmentation and head, temperature 0.5), then
10 with labels. The weights that are best on the validation images are tested once. The command can be stopped at any
moment and given again.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from torchvision.transforms.functional import to_pil_image

from timing import interval, processor, run
from vitlet import RunConfig
from vitlet.data.sources import load_dataset
from vitlet.training.inputs import data_request

MODEL, SIZES = "vit_tiny_patch16_224", {"patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 4}
COMMON = [
    *("--model", MODEL, "--model-kwargs", *(f"{name}={size}" for name, size in SIZES.items()), "--img-size", "64"),
    *("--fraction", "0.1", "--val-fraction", "0.1", "-b", "32", "--lr", "1e-3", "--checkpoint-epochs", "5"),
    *("--drop-path", "0.1"),
]
BASELINE = Path(__file__).parent.parent / "studies/confirmation/cells/imagenette/vit/baseline"
ARMS = ("labels alone", "RelViT's tasks", "SimCLR (lightly)")


def simclr(data_dir: Path, seed: int, weights: Path) -> None:
    """Five epochs of two views of the run's own training images; the network's weights into a file."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform

    torch.manual_seed(seed)
    config = RunConfig(data="imagenette", data_dir=str(data_dir), fraction=0.1, val_fraction=0.1, seed=seed)
    images = load_dataset(data_request(config)).train
    pictures = [to_pil_image(images.image(index, 3)) for index in range(len(images))]
    two_views = SimCLRTransform(input_size=64, gaussian_blur=0.0)
    network = timm.create_model(MODEL, img_size=64, num_classes=0, drop_path_rate=0.1, **SIZES)
    head = SimCLRProjectionHead(96, 96, 128)
    parameters = [*network.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)
    steps = 5 * (len(pictures) // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps, pct_start=0.05)
    criterion = NTXentLoss(temperature=0.5)
    for _ in range(5):
        for chosen in torch.randperm(len(pictures)).split(32):
            if len(chosen) < 32:
                continue
            first, second = zip(*(two_views(pictures[index]) for index in chosen), strict=True)
            features = head(network(torch.stack([*first, *second])))
            loss = criterion(*features.chunk(2))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    print(f"SimCLR, seed {seed}: loss {loss.item():.2f} at the end", flush=True)
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), weights.with_suffix(".part"))
    weights.with_suffix(".part").replace(weights)


def accuracy(arm: str, seed: int, chosen: argparse.Namespace) -> float:
    """Test accuracy of an arm, its pre-training first."""
    if arm == "labels alone":
        return float(json.loads((BASELINE / f"seed-{seed}.json").read_text())["test_best"])
    name = f"{ARMS.index(arm)}-{seed}"
    output, end = chosen.work / name, ["--data-dir", str(chosen.data_dir), "--seed", str(seed)]
    before = chosen.work / f"{name}-before"
    if arm == "RelViT's tasks":
        tasks = ["--task", "sprel=1", "--task", "position=1", "--aug", "relvit"]
        run(["pretrain", "imagenette", *COMMON, "--epochs", "10", *tasks, *end], before)
    elif not (before / "model.safetensors").is_file():
        simclr(chosen.data_dir, seed, before / "model.safetensors")
    start = before if (before / "result.json").is_file() else before / "model.safetensors"
    run(["train", "imagenette", *COMMON, "--epochs", "10", "--task", "none", "--init", str(start), *end], output)
    return float(json.loads((output / "result.json").read_text())["test"]["top1"])


def main() -> None:
    """All seeds of all arms, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/other_pretraining"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/other_pretraining.md"))
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for seed in range(chosen.seeds):
        for arm in ARMS:
            found[arm].append(accuracy(arm, seed, chosen))
    lines = [
        "# Pre-training by other means, in the same budget",
        "",
        f"`python benchmarks/other_pretraining.py DATA_DIR`, {date.today()}; {processor()}, one thread; torch"
        f" {torch.__version__}.",
        "",
        *(__doc__ or "").strip().splitlines()[5:],
        "",
        "| start | test accuracy % by seed | mean, 95 % interval | less labels alone, same seed |",
        "|---|---|---|---|",
    ]
    for arm, values in found.items():
        less = [value - base for value, base in zip(values, found[ARMS[0]], strict=True)]
        shown = [", ".join(f"{each:.2f}" for each in values), "{:.2f} ± {:.2f}".format(*interval(values))]
        shown.append("" if arm == ARMS[0] else "{:+.2f} ± {:.2f}".format(*interval(less)))
        lines.append(f"| {arm} | {' | '.join(shown)} |")
    chosen.output.write_text("\n".join(lines) + "\n")
    print(chosen.output.read_text())


if __name__ == "__main__":
    main()
