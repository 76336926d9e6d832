"""``vitlet segment train|evaluate|predict``."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.transfer_commands import (
    evaluate_parser,
    image_paths,
    measure,
    predict_parser,
    start,
    subcommand,
    train_config,
)
from vitlet.transfer.segmentation.recipes import RECIPES
from vitlet.transfer.segmentation.settings import SegmentConfig

ABOUT = "Find the class of every pixel with UPerNet on a trained backbone."


def run(words: list[str]) -> int:
    """Run the command."""
    return subcommand("segment", ABOUT, {"train": _train, "evaluate": _evaluate, "predict": _predict}, words)


def _train(words: list[str]) -> int:
    config = train_config(SegmentConfig, ABOUT, words, RECIPES)
    from vitlet.transfer.segmentation.job import prepare_segmentation
    from vitlet.transfer.segmentation.metrics import SegmentationScores

    return start(config, words, prepare_segmentation, SegmentationScores)


def _evaluate(words: list[str]) -> int:
    chosen = evaluate_parser("segment", "folder of images and masks").parse_all(words)
    from vitlet.transfer.segmentation.predict import Segmenter

    return measure(Segmenter.load(Path(chosen.run), device=chosen.device), chosen, "IoU_per_class")


def _predict(words: list[str]) -> int:
    parser = predict_parser("segment", "Classes of every pixel, as pictures and as masks of class numbers.")
    chosen = parser.parse_all(words)
    paths = image_paths(chosen)
    from vitlet.cli.summary import say
    from vitlet.transfer.segmentation.predict import Segmenter

    found = Segmenter.load(Path(chosen.run), device=chosen.device).predict(paths, Path(chosen.output))
    if chosen.json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return 0
    for each in found:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in list(each["shares"].items())[:5] if share > 0)
        say(f"{each['image']}: {shares}; picture {each['picture']}, mask {each['mask']}")
    return 0
