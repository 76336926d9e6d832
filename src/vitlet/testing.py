"""Tests for a task of your own, by inheriting them.

    class TestBorder(TaskSuite):
        task = Border

is a test class that pytest runs. Give `slow_loss`, the definition by obvious loops, and it is compared too. Nothing
here imports pytest.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor, nn

from vitlet.objective import Objective, Term
from vitlet.tasks.declared import options_of
from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.features import Features, Grid, GridShape, Shapes
from vitlet.tokens.geometry import grid_coords

BATCH, CHANNELS, HEIGHT, WIDTH = 2, 8, 3, 5


def token_grid(
    *, height: int = HEIGHT, width: int = WIDTH, channels: int = CHANNELS, shuffled: bool = False, seed: int = 0
) -> Features:
    """Random features on a grid, by default not square; shuffled: every image has its patches in another order."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(BATCH, channels, height, width, generator=generator)
    coords = grid_coords(height, width)[None]
    if shuffled:
        orders = [torch.randperm(height * width, generator=generator) for _ in range(BATCH)]
        coords = torch.stack([coords[0][order] for order in orders])
    grid = Grid(tokens, coords)
    images = torch.randn(BATCH, 3, 4 * height, 4 * width, generator=generator)
    return Features(images=images, last=grid, after_norm=grid)


class TaskSuite:
    """What every task on a token grid has to keep; a subclass names the task.

    Attributes:
        task: the class.
        settings: options to test it with, one set after another; the first one is used where one is enough.
        sides: rows and columns of the grids; a task that needs square ones says so here.
        views: whether coordinates may differ from image to image.
    """

    task: ClassVar[type[Task]]
    settings: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    sides: ClassVar[tuple[int, int]] = (HEIGHT, WIDTH)
    views: ClassVar[bool] = True

    def slow_loss(self, task: Any, tokens: Tensor, coords: Tensor) -> float | None:
        """The loss of tokens ``(B, C, H, W)`` at coords ``(B or 1, N, 2)`` by loops; None: not compared."""
        return None

    def built(self, **options: Any) -> Task:
        """The task with heads for a grid of these sides."""
        torch.manual_seed(0)
        task = self.task(**options)
        shape = GridShape(CHANNELS, *self.sides)
        task.build(Shapes(shape, shape, (shape,)))
        return task

    def grid(self, *, shuffled: bool = False) -> Features:
        """Features of that size."""
        return token_grid(height=self.sides[0], width=self.sides[1], shuffled=shuffled)

    def each(self) -> list[Task]:
        """The task in every setting."""
        return [self.built(**options) for options in self.settings]

    def test_equals_the_slow_loop(self) -> None:
        """On a regular grid and, where the task allows it, on shuffled patches."""
        for task, options in zip(self.each(), self.settings, strict=True):
            for shuffled in (False, True) if self.views and "pool" not in options else (False,):
                features = self.grid(shuffled=shuffled)
                grid = features.last.pooled(options.get("pool", "none"))
                expected = self.slow_loss(task, grid.tokens, grid.coords)
                if expected is not None:
                    found = task(features).loss.item()
                    assert math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6), (options, found, expected)

    def test_loss_and_metrics(self) -> None:
        """A finite scalar with gradients for every token and every head; plain detached numbers as metrics."""
        for task in self.each():
            features = self.grid()
            tokens = features.last.tokens.requires_grad_()
            result: TaskResult = task(features)
            assert result.loss.ndim == 0 and result.loss.isfinite()
            assert result.metrics, "a task needs a metric that a person understands"
            for name, value in result.metrics.items():
                assert not (isinstance(value, Tensor) and value.requires_grad), f"metric {name!r} carries gradients"
                assert math.isfinite(float(value)), f"metric {name!r} is {value}"
            result.loss.backward()
            assert tokens.grad is not None and bool(tokens.grad.flatten(2).abs().sum(1).ne(0).any())
            for name, parameter in task.named_parameters():
                assert parameter.grad is not None, f"{name} gets no gradient"

    def test_learns_one_batch(self) -> None:
        """In 60 steps on one batch, tokens and heads free, the loss falls by a fifth or more."""
        for task in self.each():
            features = self.grid()
            tokens = nn.Parameter(features.last.tokens.clone())
            grid = Grid(tokens, features.last.coords)
            optimizer = torch.optim.Adam([*task.parameters(), tokens], lr=0.02)
            losses = []
            for step in range(60):
                torch.manual_seed(step)
                loss = task(Features(images=features.images, last=grid, after_norm=grid)).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[-1] < 0.8 * losses[0], f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}"

    def test_mixed_precision(self) -> None:
        """Under autocast the loss is still float32 and near the one without."""
        task, features = self.built(**self.settings[0]), self.grid()
        torch.manual_seed(1)
        expected = task(features).loss.item()
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = task(features).loss
        assert loss.dtype == torch.float32
        assert math.isclose(loss.item(), expected, rel_tol=0.1, abs_tol=0.05)

    def test_compiles_without_a_graph_break(self) -> None:
        """As torch.compile with fullgraph."""
        task, features = self.built(**self.settings[0]), self.grid()
        torch.manual_seed(1)
        expected = task(features).loss.item()
        torch.compiler.reset()
        torch.manual_seed(1)
        compiled = torch.compile(lambda: task(features).loss, fullgraph=True, backend="eager")
        assert math.isclose(compiled().item(), expected, rel_tol=1e-4)

    def test_options_can_be_read_without_importing(self) -> None:
        """The command line and YAML offer exactly the constructor's keywords."""
        found = options_of(inspect.getsource(inspect.getmodule(self.task) or self.task), self.task.__name__, "task")
        signature = inspect.signature(self.task)
        assert list(found) == list(signature.parameters)
        hints = get_type_hints(self.task.__init__)
        for name, option in found.items():
            assert option.hint == hints[name] and option.default == signature.parameters[name].default
            assert option.help, f"say in the class's docstring, under Args, what {name!r} is"
        assert (self.task.__doc__ or "").strip(), "the first line of the class's docstring is what `vitlet tasks` shows"

    def test_verdict(self) -> None:
        """Metrics as the task gives them can be judged; a sentence, or None."""
        task = self.built(**self.settings[0])
        metrics = {name: float(value) for name, value in task(self.grid()).metrics.items()}
        verdict = task.verdict(metrics)
        assert verdict is None or verdict.endswith(".")

    def test_in_an_objective(self) -> None:
        """On a network: its logits and its state dict stay its own."""
        from vitlet.backbones import LayerBackbone

        torch.manual_seed(0)
        height, width = self.sides
        model = nn.Sequential(
            nn.Conv2d(3, CHANNELS, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 3)
        )
        images = torch.randn(2, 3, 4 * height, 4 * width)
        logits = model(images)
        keys = set(model.state_dict())
        backbone = LayerBackbone(model, layer="0", img_size=(4 * height, 4 * width))
        task = self.task(**self.settings[0])
        if task.needs.after_norm:
            options = {**self.settings[0], "tap": "before_norm"}
            task = self.task(**options)
        objective = Objective(backbone, [Term(task, 1.0, task.suggested_view)])
        outcome = objective(images, torch.tensor([0, 1]))
        torch.testing.assert_close(outcome.logits, logits)
        assert set(outcome.parts) == {"criterion", task.name} and set(model.state_dict()) == keys
        outcome.loss.backward()
