"""Token positions predicted by the task heads of a run's checkpoint.

Exported weights hold no heads; the run's checkpoints do, beside the model that they were trained with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitlet.config import RunConfig
from vitlet.errors import VitletError, first_line
from vitlet.objective import Objective
from vitlet.tasks.declared import load_task
from vitlet.tasks.task import Places, Task
from vitlet.tokens.views import View
from vitlet.training.build import build_backbone, find_device
from vitlet.training.checkpoint import Checkpoint, Checkpoints
from vitlet.training.jobs import job_class
from vitlet.training.run_folder import read_config
from vitlet.training.state import WEIGHTS
from vitlet.training.terms import make_terms


@dataclass(frozen=True)
class Locator:
    """The model of a run's newest checkpoint, in evaluation mode, with the head of a task that locates tokens."""

    objective: Objective
    task: Task
    device: torch.device

    @staticmethod
    def load(run: Path, *, device: str = "auto") -> Locator:
        """Load the head from a run folder; raises `VitletError` if the run has none."""
        config = read_config(run)
        names = [name for name in config.tasks if load_task(name).places is not Task.places]
        if not names:
            trained = f"its tasks are {', '.join(config.tasks)}" if config.tasks else "it was trained without tasks"
            raise VitletError(
                f"{run} has no localization head: {trained}. Train with --task drloc (or position) to have one."
            )
        if config.fsdp:
            raise VitletError(f"the heads of {run} are in a sharded checkpoint, which cannot be read here.")
        checkpoint, damaged = Checkpoints(run / "checkpoints").peek()
        if checkpoint is None:
            why = "; ".join(damaged) or "its folder 'checkpoints' is empty"
            raise VitletError(f"the task heads of {run} are saved in its checkpoints, but {why}.")
        where = find_device(device)
        alone = replace(config, tasks={names[0]: config.tasks[names[0]]})  # other tasks may need a teacher
        objective = _objective(alone, checkpoint).to(where).eval()
        return Locator(objective, objective.terms[0].task, where)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Places:
        """Places of the tokens of normalised images ``(B, channels, height, width)``, on the CPU."""
        found = self.task.places(self.objective.backbone(View(images.to(self.device)), self.task.needs))
        assert found is not None
        return found._replace(predicted=found.predicted.cpu(), true=found.true.cpu(), error=found.error.cpu())


def _objective(config: RunConfig, checkpoint: Checkpoint) -> Objective:
    """Network and heads as the checkpoint has them."""
    classes = job_class(config).num_classes(config, len(checkpoint.about["classes"]))
    try:
        backbone, _ = build_backbone(replace(config, pretrained=False), classes)
        objective = Objective(backbone, make_terms(config, backbone))
        own = objective.state_dict()  # without the criterion, which may hold weights of classes
        tensors = checkpoint.tensors(WEIGHTS)
        objective.load_state_dict({name: tensors[name] for name in own})
    except VitletError:
        raise
    except Exception as problem:  # a foreign file fails in many ways
        raise VitletError(f"cannot read the heads in {checkpoint.path}: {first_line(problem)}.") from problem
    return objective
