"""A task of your own, in one file: how many cells is a token away from the border of the image?

Run: python examples/add_a_task.py   (docs/add_a_task.md puts it on the command line and tests it)
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.features import Features, Shapes


def border_cells(coords: Tensor, height: int, width: int) -> Tensor:
    """Cells to the nearest border: coords ``(B, N, 2)`` to ``(B, N)``."""
    far = coords.new_tensor([height - 1, width - 1]) - coords
    return coords.minimum(far).amin(-1)


class Border(Task):
    """Tell how far each token is from the border.

    Args:
        loss: l1 or squared error.

    Example:
        >>> attached = vitlet.attach(model, [Border(loss="mse")])
        >>> loss = criterion(model(images), labels) + attached.loss()
    """

    name = "border"
    suggested_weight = 0.3

    def __init__(self, *, loss: Literal["l1", "mse"] = "l1") -> None:
        super().__init__()
        self.loss = F.l1_loss if loss == "l1" else F.mse_loss

    def build(self, shapes: Shapes) -> None:
        self.head = nn.Linear(shapes.last.channels, 1)

    def forward(self, features: Features) -> TaskResult:
        grid = features.last
        said = self.head(grid.sequence()).squeeze(-1).float()  # B, N
        cells = border_cells(grid.coords, grid.shape.height, grid.shape.width).expand_as(said)
        error, chance = (said.detach() - cells).abs().mean(), (cells - cells.median()).abs().mean()
        return TaskResult(self.loss(said, cells), {"error_cells": error, "chance_cells": chance})


if __name__ == "__main__":
    import timm
    import torch

    import vitlet

    model = timm.create_model("test_vit", img_size=(48, 80), patch_size=8, num_classes=10, pos_embed="none")
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(Border(), 0.3)])
    optimizer = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    images = (
        torch.rand(16, 3, 48, 80) + torch.linspace(0, 1, 80) + torch.linspace(0, 1, 48)[:, None]
    )  # light from one side
    for _ in range(40):
        outcome = objective(images)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
    print({name: round(float(value), 2) for name, value in outcome.metrics.items()})
