"""``vitlet detect train|evaluate|predict``."""

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
from vitlet.errors import VitletError
from vitlet.transfer.detection.recipes import RECIPES
from vitlet.transfer.detection.settings import DetectConfig

ABOUT = "Find objects, their boxes and masks, with Mask R-CNN or Cascade Mask R-CNN on a trained backbone."


def run(words: list[str]) -> int:
    """Run the command."""
    return subcommand("detect", ABOUT, {"train": _train, "evaluate": _evaluate, "predict": _predict}, words)


def _train(words: list[str]) -> int:
    config = train_config(DetectConfig, ABOUT, words, RECIPES)
    from vitlet.transfer.detection.job import prepare_detection
    from vitlet.transfer.detection.metrics import DetectionScores

    return start(config, words, prepare_detection, DetectionScores)


def _evaluate(words: list[str]) -> int:
    chosen = evaluate_parser("detect", "folder in COCO's layout").parse_all(words)
    from vitlet.transfer.detection.predict import Detector

    return measure(Detector.load(Path(chosen.run), device=chosen.device), chosen, "box_AP_per_class")


def _predict(words: list[str]) -> int:
    parser = predict_parser("detect", "Objects in images, as a list and as pictures with boxes and masks.")
    parser.add_argument("--score", type=float, default=0.5, help="leave out what is less sure [0.5]")
    chosen = parser.parse_all(words)
    if not 0 <= chosen.score <= 1:
        raise VitletError(f"--score is {chosen.score:g}; it needs to be from 0 to 1.")
    paths = image_paths(chosen)
    from vitlet.cli.summary import say
    from vitlet.transfer.detection.predict import Detector

    detector = Detector.load(Path(chosen.run), device=chosen.device)
    found = detector.predict(paths, Path(chosen.output), score=chosen.score)
    if chosen.json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return 0
    for each in found:
        say(f"{each['image']}: {len(each['objects'])} objects, picture {each['picture']}")
        for thing in each["objects"]:
            left, top, right, bottom = (round(side) for side in thing["box"])
            say(f"  {thing['class']} {thing['score']:.2f} from {left},{top} to {right},{bottom}")
    return 0
