"""Muon for hidden weights, AdamW for everything else, as one optimizer.

Jordan et al.: "Muon: an optimizer for hidden layers in neural networks", 2024: the momentum of a weight matrix is
replaced by the nearest orthogonal matrix, so that all its directions move equally far. timm has a Muon, too; this one
iterates on the small Gram matrix of a weight instead of the weight, which makes it cheap enough for small networks on
a CPU, and its learning rate is AdamW's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (
    *((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377)),
    *((3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046)),
)
"""Of the polynomials that drive singular values towards 1, one step after another."""

RATE, DECAY = 10.0, 0.3
"""Learning rate and weight decay of hidden weights, as multiples of AdamW's."""

ADAMW_SIZE = 0.2
"""Root mean square of the entries of an AdamW step at a rate of one, by Liu et al."""


def orthogonalised(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A matrix with the singular vectors of this one, and singular values near 1.

    Args:
        matrix: ``(rows, columns)``.
        dtype: to compute in.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    found: Tensor = (matrix / (matrix.norm() + 1e-7)).to(dtype)
    found = found if wide else found.T
    # Polynomials of the Gram matrix commute: they are multiplied first, then applied to the weight in one product. A
    # Gram matrix holds squares, and 16 bits lose those of small singular values: there it is computed again half-way.
    passes = (COEFFICIENTS,) if dtype is torch.float32 else (COEFFICIENTS[:2], COEFFICIENTS[2:])
    for polynomials in passes:
        gram = found @ found.T
        product = _polynomial(gram, polynomials[0])
        last = product
        for coefficients in polynomials[1:]:
            gram = last @ gram @ last
            last = _polynomial(gram, coefficients)
            product = last @ product
        found = product @ found
    return (found if wide else found.T).to(matrix.dtype)


def _polynomial(gram: Tensor, coefficients: tuple[float, float, float]) -> Tensor:
    """``a + b * gram + c * gram @ gram``."""
    a, b, c = coefficients
    found = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    found.diagonal().add_(a)
    return found


class Muon(torch.optim.AdamW):
    """AdamW, but for groups with ``muon: True``, whose parameters have two dimensions or more.

    Args:
        groups: of parameters, as for AdamW.
        lr: AdamW's; hidden weights move ten times as far.
        momentum: of hidden weights, Nesterov's.
        betas: of AdamW.
        dtype: to orthogonalise in.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.9,
        betas: tuple[float, ...] = (0.9, 0.99),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        named = [{"muon": False, **group} for group in groups]
        super().__init__(named, lr=lr, betas=(betas[0], betas[1]), fused=True)
        self.momentum, self.dtype = momentum, dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of Muon and of AdamW."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["muon"]]
            result = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["muon"]:
                for parameter in group["params"]:
                    self._move(parameter, RATE * group["lr"], DECAY * group["weight_decay"])
        return result

    def _move(self, parameter: nn.Parameter, rate: float, decay: float) -> None:
        if parameter.grad is None:
            return
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros(())  # AdamW looks for one in every state that it loads
        average: Tensor = state["momentum"]
        average.lerp_(parameter.grad, 1 - self.momentum)
        matrix = parameter.grad.lerp(average, self.momentum).flatten(1)
        update = orthogonalised(matrix, self.dtype).reshape(parameter.shape)
        parameter.mul_(1 - rate * decay)
        parameter.add_(update, alpha=-rate * step_length(parameter))


def step_length(weight: Tensor) -> float:
    """How far a weight moves at a rate of one, as the singular values of its step.

    A convolution is followed by batch norm, which undoes its size: it moves by its own size. The step of a linear layer
    has the mean square of AdamW's (Liu et al.: "Muon is Scalable for LLM Training", 2025), about a third of that here.
    """
    rows, columns = weight.flatten(1).shape
    if weight.ndim == 2:
        return ADAMW_SIZE * math.sqrt(max(rows, columns)) / RATE
    return math.sqrt(max(1.0, rows / columns))


def is_inner_weight(name: str, parameter: Tensor, ends: Iterable[str]) -> bool:
    """Whether Muon applies to a parameter: a weight of neither the first nor the last layer, and not depth-wise.

    Args:
        name: of the parameter.
        parameter: itself.
        ends: names of the first layer and the classifier.
    """
    if parameter.ndim < 2 or not name.endswith("weight") or parameter[0].numel() < 16 or parameter.shape[1] == 1:
        return False
    return not any(name == f"{end}.weight" or name.startswith(f"{end}.") for end in ends)
