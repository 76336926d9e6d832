"""Calibrate a run's probabilities by temperature scaling (Guo et al., 2017) on validation images. The temperature is
saved in the run's folder; predict, serve and export use it from then on. Remove calibration.json to undo it."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet calibrate", __doc__, example="vitlet calibrate runs/photos")
    parser.add_usual("run")
    about = "labelled images to fit the temperature on (default: the run's validation images)"
    parser.add_argument("data", metavar="DATA", nargs="?", help=about)
    parser.add_usual("--data-dir", "--device", "--json")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    from vitlet.cli.summary import say
    from vitlet.inference.calibrate import calibrate

    found = calibrate(Path(chosen.run), chosen.data, data_dir=chosen.data_dir, device=chosen.device)
    if chosen.json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
        return 0
    say(f"temperature {found.temperature:.3f}")
    for name, part in (("fitted on", found.fitted), ("held out:", found.tested)):
        if part is not None:
            error = f"ECE {part.ece_before:.2f} -> {part.ece_after:.2f} %"
            loss = f"loss {part.loss_before:.3f} -> {part.loss_after:.3f}"
            say(f"{name} {part.data}, {part.images} images: {error}, {loss}")
    if found.tested is None:
        say("note: there are no test images beside those of the fit; calibration on unseen images is not measured.")
    return 0
