"""Fit one temperature on validation images, so that probabilities can be believed. It is kept in the run's folder;
predict, serve and export use it from then on. Remove calibration.json to undo it."""

from __future__ import annotations

import json
from pathlib import Path

from vitlet.cli.flags import Parser


def run(words: list[str]) -> int:
    """Run the command."""
    parser = Parser("vitlet calibrate", __doc__)
    parser.add_usual("run")
    about = "labelled images to fit it on (default: the run's validation images)"
    parser.add_argument("data", metavar="DATA", nargs="?", help=about)
    parser.add_usual("--data-dir", "--device", "--json")
    chosen = parser.parse_all(words)
    from vitlet.cli.summary import say
    from vitlet.inference.calibrate import calibrate

    found = calibrate(Path(chosen.run), chosen.data, data_dir=chosen.data_dir, device=chosen.device)
    if chosen.json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
        return 0
    say(f"temperature {found.temperature:.3f}")
    for name, part in (("fitted on", found.fitted), ("not seen by the fit:", found.tested)):
        if part is not None:
            error = f"ECE {part.ece_before:.2f} -> {part.ece_after:.2f} %"
            loss = f"loss {part.loss_before:.3f} -> {part.loss_after:.3f}"
            say(f"{name} {part.data}, {part.images} images: {error}, {loss}")
    if found.tested is None:
        say("note: no test images are at hand that were not fitted on, so how it does on unseen ones is open.")
    return 0
