"""Contract tests for tasks, to be inherited by the test of a new task.

    class TestBorder(TaskSuite):
        task = Border

is a test class that pytest runs. Give `slow_loss`, the definition by obvious loops, and it is compared too. Nothing
here imports pytest.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from vitlet.backbones import TimmBackbone
from vitlet.models.factory import build_model
from vitlet.objective import Objective, Term
from vitlet.tasks.declared import Option, options_of, textual
from vitlet.tasks.task import Task, TaskResult
from vitlet.tokens.attention import AttentionMap, AttentionShape
from vitlet.tokens.features import Features, Grid, GridShape, Shapes
from vitlet.tokens.geometry import grid_coords
from vitlet.tokens.views import View, fitted

BATCH, CHANNELS, HEIGHT, WIDTH, PATCH, LAYERS = 2, 8, 3, 5, 4, 2


def token_grid(
    *, height: int = HEIGHT, width: int = WIDTH, channels: int = CHANNELS, shuffled: bool = False, seed: int = 0
) -> Features:
    """Random features on a grid, by default not square; shuffled: every image has its patches in another order."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(BATCH, channels, height, width, generator=generator)
    coords = grid_coords(height, width)[None]
    if shuffled:
        coords = torch.stack([coords[0][torch.randperm(height * width, generator=generator)] for _ in range(BATCH)])
    images = torch.randn(BATCH, 3, PATCH * height, PATCH * width, generator=generator)
    return features_of(tokens, coords, images)


def features_of(tokens: Tensor, coords: Tensor, images: Tensor) -> Features:
    """Features of tokens ``(B, C, H, W)``, the same in every block; one head attends to tokens that are alike."""
    grid = Grid(tokens, coords)
    sequence = grid.sequence()
    maps = (sequence @ sequence.transpose(1, 2) / tokens.shape[1]).softmax(-1)[:, None]
    attention = AttentionMap(_attention_shape(grid.shape), coords[:, None], maps=maps)
    return Features(images, grid, after_norm=grid, every=(grid,), attention=dict.fromkeys(range(LAYERS), attention))


def _attention_shape(shape: GridShape) -> AttentionShape:
    return AttentionShape(1, shape.height, shape.width, 0, 1, shape.height * shape.width, uniform_distance=1.0)


class TaskSuite:
    """Contract tests that every task must pass; a subclass names the task.

    Attributes:
        task: the class.
        settings: options to test it with, one set after another; the first one is used where one is enough. By default
            none, and then each choice of each option by itself.
        sides: rows and columns of the grids; a task that needs square ones says so here.
        views: whether coordinates may differ from image to image; elsewhere they are of the view that it suggests.
    """

    task: ClassVar[type[Task]]
    settings: ClassVar[Sequence[Mapping[str, Any]]] = ()
    sides: ClassVar[tuple[int, int]] = (HEIGHT, WIDTH)
    views: ClassVar[bool] = True

    def slow_loss(self, task: Any, tokens: Tensor, coords: Tensor) -> float | None:
        """The loss of tokens ``(B, C, H, W)`` at coords ``(B or 1, N, 2)`` by loops; None: not compared."""
        return None

    def declared(self) -> dict[str, Option]:
        """The options, read from the source."""
        source = inspect.getsource(inspect.getmodule(self.task) or self.task)
        return options_of(source, self.task.__name__, self.task.__module__)

    def every_setting(self) -> list[Mapping[str, Any]]:
        """The settings, or the choices that the options declare."""
        if self.settings:
            return list(self.settings)
        found: list[Mapping[str, Any]] = [{}]
        for name, option in self.declared().items():
            for hint in (option.hint, *get_args(option.hint)):  # a union with None has its choices one level down
                choices = get_args(hint) if get_origin(hint) is Literal else (True, False) if hint is bool else ()
                found += [{name: choice} for choice in choices if choice != option.default]
        return found

    def built(self, **options: Any) -> Task:
        """The task with heads for a grid of these sides."""
        torch.manual_seed(0)
        task = self.task(**options)
        shape = GridShape(CHANNELS, *self.sides)
        view = self.view(token_grid(height=self.sides[0], width=self.sides[1]).images)
        images = GridShape(*view.images.shape[1:])
        attention = (_attention_shape(shape),) * LAYERS
        task.build(Shapes(shape, shape, (shape,), attention, images, view.hidden is not None))
        return task

    def each(self) -> list[Task]:
        """The task in every setting."""
        return [self.built(**options) for options in self.every_setting()]

    def grid(self, *, shuffled: bool = False, tokens: Tensor | None = None) -> Features:
        """Features of that size as the task's view places them, or shuffled; of these tokens if they are given."""
        found = token_grid(height=self.sides[0], width=self.sides[1], shuffled=shuffled)
        torch.manual_seed(3)
        view = self.view(found.images)
        coords = found.last.coords if shuffled else view.coords(*self.sides)
        features = features_of(found.last.tokens if tokens is None else tokens, coords, view.images)
        return replace(features, hidden=view.hidden)

    def view(self, images: Tensor) -> View:
        """The view that the task suggests, of these images."""
        size = int(images.shape[2]), int(images.shape[3])
        return fitted(self.task.suggested_view, size, self.sides)(images)

    def cases(self) -> Iterator[tuple[Mapping[str, Any], Task, Features]]:
        """Every setting on a regular grid and, where the task allows it, on shuffled patches."""
        for options in self.every_setting():
            moved = self.views and options.get("pool", "none") == "none"
            yield from (
                (options, self.built(**options), self.grid(shuffled=each)) for each in (False, True)[: 1 + moved]
            )

    def test_equals_the_slow_loop(self) -> None:
        """On a regular grid and, where the task allows it, on shuffled patches."""
        for options, task, features in self.cases():
            grid = features.last.pooled(options.get("pool", "none"))
            expected = self.slow_loss(task, grid.tokens, grid.coords)
            if expected is not None:
                found = task(features).loss.item()
                assert math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6), (options, found, expected)

    def test_loss_and_metrics(self) -> None:
        """A finite scalar with gradients for every token and every head; plain detached numbers as metrics."""
        for task in self.each():
            tokens = self.grid().last.tokens.requires_grad_()
            result: TaskResult = task(self.grid(tokens=tokens))
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
        """In 60 steps on one batch, tokens and heads free, the loss falls by a tenth or more."""
        for task, options in zip(self.each(), self.every_setting(), strict=True):
            tokens = nn.Parameter(self.grid().last.tokens.clone())
            optimizer = torch.optim.Adam([*task.parameters(), tokens], lr=0.02)
            losses = []
            for step in range(60):
                features = self.grid(tokens=tokens)
                torch.manual_seed(step)
                loss = task(features).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            fallen = losses[0] - losses[-1]
            assert fallen > 0.1 * abs(losses[0]), f"{options}: the loss went from {losses[0]:.3f} to {losses[-1]:.3f}"

    def test_mixed_precision(self) -> None:
        """Under autocast the loss is still float32 and near the one without."""
        for options, task, features in self.cases():
            torch.manual_seed(1)
            expected = task(features).loss.item()
            torch.manual_seed(1)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = task(features).loss
            assert loss.dtype == torch.float32
            assert math.isclose(loss.item(), expected, rel_tol=0.1, abs_tol=0.05), (options, loss.item(), expected)

    def test_compiles_without_a_graph_break(self) -> None:
        """As torch.compile with fullgraph; in the first setting, on every kind of grid."""
        for options, task, features in self.cases():
            if options != self.every_setting()[0]:
                break
            torch.manual_seed(1)
            expected = task(features).loss.item()
            torch.compiler.reset()
            torch.manual_seed(1)
            compiled = torch.compile(task, fullgraph=True, backend="eager")
            assert math.isclose(compiled(features).loss.item(), expected, rel_tol=1e-4)

    def test_options_can_be_read_without_importing(self) -> None:
        """The command line and YAML offer exactly the constructor's keywords."""
        found, parameters = self.declared(), inspect.signature(self.task).parameters
        assert list(found) == list(parameters)
        hints = get_type_hints(self.task.__init__)
        for name, option in found.items():
            assert option.hint == textual(hints[name]) and option.default == parameters[name].default
            assert option.help, f"say in the class's docstring, under Args, what {name!r} is"
        assert (self.task.__doc__ or "").strip(), "the first line of the class's docstring is what `vitlet tasks` shows"

    def test_verdict(self) -> None:
        """The verdict on the task's own metrics is a remark that ends with a period, or None."""
        task = self.each()[0]
        metrics = {name: float(value) for name, value in task(self.grid()).metrics.items()}
        verdict = task.verdict(metrics)
        assert verdict is None or verdict.endswith(".")

    def test_in_an_objective(self) -> None:
        """On a model: its logits and its state dict stay its own."""
        torch.manual_seed(0)
        size = PATCH * self.sides[0], PATCH * self.sides[1]
        options = {"patch_size": PATCH, "embed_dim": CHANNELS, "depth": LAYERS, "num_heads": 2}
        model, _ = build_model("vit_tiny_patch16_224", num_classes=3, img_size=size, model_kwargs=options)
        images, keys = torch.randn(2, 3, *size), set(model.state_dict())
        logits = model(images)
        task = self.task(**self.every_setting()[0])
        objective = Objective(TimmBackbone(model, img_size=size), [Term(task, 1.0, task.suggested_view)])
        outcome = objective(images, torch.tensor([0, 1]))
        torch.testing.assert_close(outcome.logits, logits)
        assert set(outcome.parts) == {"criterion", task.name} and set(model.state_dict()) == keys
        outcome.loss.backward()
