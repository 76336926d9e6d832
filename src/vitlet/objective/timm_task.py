"""The objective as a ``timm.task.TrainingTask``, for loops written for timm."""

from __future__ import annotations

from typing import Any

import torch
from timm.task import TrainingTask
from torch import Tensor, nn

from vitlet.errors import VitletError
from vitlet.objective.balance import Balance
from vitlet.objective.objective import Objective

BALANCE = "_balance."
"""In front of the names of a balance's weights, beside those of the tasks' heads."""


class TimmTrainingTask(TrainingTask):
    """An `Objective` as timm's ``TrainingTask``; evaluation and checkpoints see the plain timm model.

    Args:
        objective: backbone, terms and criterion.
        device: device of the parameters.

    Attributes:
        epoch: (fractional) epoch; set it at each step if a weight follows a schedule.

    Example:
        >>> task = vitlet.TimmTrainingTask(vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.DRLoc()]))
        >>> task(images, labels)["loss"].backward()
    """

    def __init__(self, objective: Objective, *, device: torch.device | None = None, verbose: bool = False) -> None:
        super().__init__(device=device, verbose=verbose)
        if objective.balance is not None and type(objective.balance).update is not Balance.update:
            raise VitletError(
                f"{type(objective.balance).__name__} learns from gradient norms after each step, which loops written"
                " for timm do not hand back. Use Uncertainty or fixed weights, or a loop of your own."
            )
        self.trainable_module: nn.Module = objective.to(self.device)
        self.epoch: float | None = None

    def prepare_distributed(self, device_ids: list[int] | None = None, **ddp: Any) -> TimmTrainingTask:
        """Wrap the objective, with its heads, in DDP."""
        self.trainable_module = nn.parallel.DistributedDataParallel(self.trainable_module, device_ids=device_ids, **ddp)
        return self

    def compile(  # type: ignore[override]  # timm returns the evaluation model
        self, backend: str = "inductor", mode: str | None = None, **options: Any
    ) -> nn.Module:
        """Compile the objective's forward pass in place."""
        self.trainable_module.compile(backend=backend, mode=mode, **options)
        return self.get_eval_model()

    def get_eval_model(self, module: nn.Module | None = None, ema: bool = False) -> nn.Module:
        """The timm model alone."""
        objective = _unwrapped(module if module is not None else self.get_trainable_module(ema=ema))
        return objective.backbone.model

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        """Weights of the task heads, and what their balance has learned."""
        objective = _unwrapped(module or self.get_trainable_module(ema=ema))
        state: dict[str, Any] = objective.tasks.state_dict()
        return state if objective.balance is None else objective.balance.state_dict(destination=state, prefix=BALANCE)

    def load_task_state(
        self, state: dict[str, Any] | None, strict: bool = True, module: nn.Module | None = None, ema: bool = False
    ) -> None:
        """Load the task heads again, and their balance where the state has one."""
        if state is None:
            return
        objective = _unwrapped(module or self.get_trainable_module(ema=ema))
        balance = {name.removeprefix(BALANCE): state[name] for name in state if name.startswith(BALANCE)}
        if objective.balance is not None and balance:
            objective.balance.load_state_dict(balance, strict=strict)
            state = {name: value for name, value in state.items() if not name.startswith(BALANCE)}
        objective.tasks.load_state_dict(state, strict=strict)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Any]:
        """``loss`` and ``output`` as timm expects, the parts by name, and the tasks' metrics as ``task/metric``."""
        weights = _unwrapped(self.trainable_module).weights(self.epoch)
        outcome = self.trainable_module(input, target, weights)
        return {"loss": outcome.loss, "output": outcome.logits, **outcome.parts, **outcome.metrics}


def _unwrapped(module: Any) -> Objective:
    """The objective inside EMA and DDP wrappers."""
    while not isinstance(module, Objective):
        module = module.module
    return module
