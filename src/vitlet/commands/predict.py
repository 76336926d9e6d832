"""``vitlet predict``."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser(prog="vitlet predict", description="Classes of images, most likely first.")
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
    parser.add_argument("--topk", type=int, default=3, help="classes to name for each image [3]")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_all(words)
    from vitlet.predict import Predictor
    from vitlet.summary import print_predictions

    predictor = Predictor.load(Path(chosen.run), device=chosen.device)
    predictions = predictor.predict([Path(image) for image in chosen.images], topk=chosen.topk)
    if chosen.json:
        print(json.dumps(predictions, ensure_ascii=False, indent=2))
    else:
        print_predictions(predictions)
    return 0
