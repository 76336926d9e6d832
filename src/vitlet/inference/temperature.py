"""The temperature of a run: one number that its logits are divided by, so that its probabilities can be believed.

``calibration.json`` in the run's folder holds it, with the checksum of the weights that it was fitted for: other
weights, such as those of a later epoch, need another one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from vitlet.errors import VitletError
from vitlet.training.files import checksum

CALIBRATION_FILE = "calibration.json"


def read_temperature(run: Path, weights: Path) -> tuple[float, str]:
    """The temperature for these weights of a run, 1 if there is none; and a sentence if there is one for others."""
    file = run / CALIBRATION_FILE
    if not file.is_file():
        return 1.0, ""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        temperature, of = float(found["temperature"]), str(found["weights_sha256"])
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(f"a temperature of {temperature}")
    except (ValueError, KeyError, TypeError) as problem:
        raise VitletError(
            f"{file} is not a calibration: {problem}. Run `vitlet calibrate {run}` again, or remove the file."
        ) from problem
    if of != checksum(weights):
        return 1.0, (
            f"{file} was fitted for other weights than the run has now, and is not used: run `vitlet calibrate {run}`."
        )
    return temperature, ""
