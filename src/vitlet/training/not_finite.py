"""Report of a loss or gradient that is not finite: an error message, and a file with the details."""

from __future__ import annotations

import json
import math
from typing import Any

from torch import Tensor

from vitlet.errors import NotFiniteError, VitletError
from vitlet.objective import Outcome
from vitlet.training.distributed import World
from vitlet.training.job import Batches
from vitlet.training.saver import Saver
from vitlet.training.state import State


def not_finite_error(
    outcomes: list[Outcome], norm: Tensor, state: State, order: Batches, saver: Saver, world: World
) -> NotFiniteError:
    """The error to raise; all processes call this, and the first writes ``not_finite.json``."""
    mine = [
        {
            "process": world.rank,
            "loss": float(outcome.loss.detach()),
            "parts": {name: float(part) for name, part in outcome.parts.items()},
            "images": order.images(state.step, part),
        }
        for part, outcome in zip(order.mine, outcomes, strict=True)
    ]
    found = [each for process in world.gather(mine) for each in process]
    worst = next((each for each in found if not math.isfinite(each["loss"])), found[0])
    about: dict[str, Any] = {"epoch": state.epoch + 1, "step": state.step + 1, "seed": saver.job.config.seed}
    about |= {"gradient_norm": float(norm), "parts_of_the_step": found}
    if saver.folder is not None:
        saver.folder.write_text("not_finite.json", json.dumps(about, indent=1))
    what = "gradient" if math.isfinite(worst["loss"]) else "loss"
    parts = ", ".join(f"{name} {value:g}" for name, value in worst["parts"].items())
    shown = ", ".join(map(str, worst["images"][:8])) + (", ..." if len(worst["images"]) > 8 else "")
    kept = sorted(saver.checkpoints.folder.glob("step-*"))
    rest = f"The checkpoint {kept[-1].name} is still valid." if kept else "No state was saved before."
    return NotFiniteError(
        f"the {what} is not finite in epoch {about['epoch']}, step {about['step']} (seed {about['seed']}): {parts};"
        f" gradient norm {float(norm):g}; process {worst['process']}, training images {shown} (all of them in"
        f" {saver.path / 'not_finite.json'}). The step was not taken. {rest} Lower --lr or the"
        " task's weight, or train without --amp."
    )


def one_value_error(problem: ValueError) -> VitletError | None:
    """The error message of batch normalization on one value per channel; None for another problem."""
    if "more than 1 value per channel" not in str(problem):
        return None
    return VitletError(
        "batch normalization found one value per channel, which has no variance: one image, where the grid is 1x1."
        " Use a larger --batch-size (for each process and accumulated part), or larger images."
    )
