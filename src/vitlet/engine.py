"""The training loop."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitlet.config import RunConfig
from vitlet.data.augment import Augment
from vitlet.data.images import Dataset
from vitlet.data.loading import EpochOrder, TrainingSet, training_loader
from vitlet.data.randomness import mix_seed
from vitlet.data.shards import ShardBatches, ShardStream
from vitlet.errors import VitletError, first_line
from vitlet.evaluate import Scores, evaluate, evaluate_tasks
from vitlet.feeding import make_recipe
from vitlet.objective import Objective, Outcome
from vitlet.prepare import Prepared, make_autocast, make_mix, make_optimizer, prepare
from vitlet.progress import Reporter
from vitlet.runs import RunFolder, read_config
from vitlet.schedules import WarmupCosine

Autocast = Callable[[], AbstractContextManager[Any]]

DWARFS = 3.0
"""A task whose weighted loss is, over the run, this many times the main loss is said to dwarf it."""


@dataclass(frozen=True)
class RunResult:
    """Where a run lies, its final numbers, and sentences worth reading."""

    path: Path
    best_epoch: int
    val: Scores | None
    test: Scores | None
    note: str
    tasks: dict[str, float]
    warnings: tuple[str, ...]


def train(config: RunConfig, dataset: Dataset | None = None, *, title: str = "train") -> RunResult:
    """Train a classifier, with any tasks beside it; the folder it returns holds everything.

    Bad settings and unreadable images are refused before anything is written.

    Args:
        config: the settings.
        dataset: images of your own (such as `vitlet.data.images.Arrays`) in place of ``config.data``.
        title: what the progress is called.
    """
    if config.resume is not None:
        path = Path(config.resume)
        config = replace(read_config(path), output=str(path), resume=str(path))
    prepared = prepare(config, dataset)
    run = RunFolder.reopen(Path(config.resume)) if config.resume else RunFolder.create(prepared.config)
    try:
        return _train(prepared, run, title)
    finally:
        run.close()


def _train(prepared: Prepared, run: RunFolder, title: str) -> RunResult:
    config, dataset, objective, device = prepared.config, prepared.dataset, prepared.objective, prepared.device
    optimizer = make_optimizer(objective, config)
    autocast = make_autocast(config, device)
    scaler = torch.amp.GradScaler(device.type, enabled=config.amp and config.amp_dtype == "float16")
    order, loader = _training_batches(prepared)
    val_loader = prepared.evaluation_loader(dataset.val) if dataset.val else None
    lr_at = WarmupCosine(config.lr, config.epochs, config.warmup_epochs or 0.0, end=min(config.min_lr, config.lr))
    mix = make_mix(config)
    done = _restore(run, prepared, optimizer, scaler) if config.resume else 0
    run.keep_rows(done)
    steps = len(order)
    with Reporter(title, epochs=config.epochs, steps=steps, done=done) as reporter:
        for epoch in range(done, config.epochs):
            started = time.monotonic()
            order.epoch = epoch
            objective.train()
            if config.freeze:
                prepared.model.eval()
            sums = _Means()
            for step, (images, labels) in enumerate(loader):
                now = epoch + step / steps
                torch.manual_seed(mix_seed(config.seed, epoch * steps + step))  # model and task randomness
                images = images.to(device, non_blocking=True)
                labels = None if config.pretrain else labels.to(device, non_blocking=True)
                images, labels = mix(images, labels)
                weights = objective.weights(now)
                for group in optimizer.param_groups:
                    group["lr"] = lr_at(now) * group.get("lr_scale", 1.0)
                with autocast():
                    outcome: Outcome = objective(images, labels, weights)
                _require_finite(outcome, epoch, step)
                optimizer.zero_grad()
                scaler.scale(outcome.loss).backward()
                if config.clip_grad:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(objective.parameters(), config.clip_grad)
                scaler.step(optimizer)
                scaler.update()
                sums.add(outcome, weights)
                reporter.step()
            seconds = time.monotonic() - started
            row = {"epoch": epoch + 1, **sums.means(), "lr": lr_at(epoch)}
            if val_loader is not None:
                row |= _validate(prepared, val_loader, epoch, autocast)
            row["images_per_second"] = len(order) * order.batch_size / seconds
            _save(run, prepared, optimizer, scaler, row)
            reporter.epoch(row)
    return _finish(prepared, run, autocast)


def _validate(prepared: Prepared, loader: Any, epoch: int, autocast: Autocast) -> dict[str, float]:
    """An epoch's validation numbers: of the classifier, or of the tasks in pre-training."""
    if prepared.config.pretrain:
        weights = prepared.objective.weights(epoch + 1)
        objective = prepared.objective
        found = evaluate_tasks(objective, loader, weights=weights, device=prepared.device, autocast=autocast)
    else:
        found = evaluate(prepared.model, loader, device=prepared.device, autocast=autocast).to_dict()
    return {f"val/{name}": value for name, value in found.items()}


def _training_batches(prepared: Prepared) -> tuple[EpochOrder | ShardBatches, Any]:
    """What is to be told the epoch, and the batches themselves."""
    config, images = prepared.config, prepared.dataset.train
    augment = Augment(make_recipe(config), prepared.preprocess)
    workers, device = config.workers or 0, str(prepared.device)
    if isinstance(images, ShardStream):
        classes = len(prepared.dataset.classes)
        options = {"channels": config.in_chans, "batch_size": config.batch_size, "seed": config.seed}
        batches = ShardBatches(images, augment, classes=classes, **options)
        return batches, batches.loader(workers=workers, device=device)
    balanced = config.balance == "sampler"
    order = EpochOrder(images.labels, batch_size=config.batch_size, seed=config.seed, balanced=balanced)
    training = TrainingSet(images, augment, channels=config.in_chans, seed=config.seed)
    return order, training_loader(training, order, workers=workers, device=device)


class _Means:
    """Running means of losses and metrics, kept on the device until the epoch ends."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor | float] = defaultdict(float)
        self.count = 0

    def add(self, outcome: Outcome, weights: Mapping[str, float]) -> None:
        self.count += 1
        self.sums["train/loss"] += outcome.loss.detach()
        for name, part in outcome.parts.items():
            self.sums[f"train/{name}"] += part
        for name, value in outcome.metrics.items():
            self.sums[f"train/{name}"] += value
        for name, weight in weights.items():
            self.sums[f"weight/{name}"] += weight

    def means(self) -> dict[str, float]:
        return {name: float(total) / self.count for name, total in self.sums.items()}


def _require_finite(outcome: Outcome, epoch: int, step: int) -> None:
    if not torch.isfinite(outcome.loss):
        parts = ", ".join(f"{name} {float(part):g}" for name, part in outcome.parts.items())
        raise VitletError(
            f"the loss is not finite at epoch {epoch + 1}, step {step + 1} ({parts}); the last whole epoch is kept."
            " Lower --lr or the task's weight, or train without --amp."
        )


def _score(row: Mapping[str, Any]) -> float:
    """What the best epoch has most of: validation accuracy, or in pre-training the negative validation loss."""
    return float(row.get("val/top1", -row.get("val/loss", math.inf)))


def _save(run: RunFolder, prepared: Prepared, optimizer: Any, scaler: Any, row: dict[str, Any]) -> None:
    """An epoch's weights, the state to continue from, and its row, in that order."""
    best = max((_score(old) for old in run.rows()), default=-math.inf)
    weights = {name: tensor.contiguous() for name, tensor in prepared.model.state_dict().items()}
    folders = ["last", "best"] if _score(row) > best else ["last"]
    for folder in folders:
        run.write_text(f"{folder}/config.json", prepared.description)
        run.write(f"{folder}/model.safetensors", lambda path: save_file(weights, path, metadata={"format": "pt"}))
    state = {
        "epoch": row["epoch"],
        "objective": prepared.objective.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }
    run.write("resume.pt", lambda path: torch.save(state, path))
    run.log(row)


def _restore(run: RunFolder, prepared: Prepared, optimizer: Any, scaler: Any) -> int:
    """Load the state after the last whole epoch; returns its number."""
    file = run.path / "resume.pt"
    if not file.is_file():
        return 0
    try:
        state = torch.load(file, map_location=prepared.device, weights_only=True)
        prepared.objective.load_state_dict(state["objective"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
    except Exception as problem:  # a damaged or foreign file fails in many ways
        raise VitletError(f"cannot continue from {file}: {first_line(problem)}.") from problem
    return int(state["epoch"])


def _finish(prepared: Prepared, run: RunFolder, autocast: Autocast) -> RunResult:
    """Test the best weights once, write the result, and say what deserves saying."""
    rows = run.rows()
    val, test = None, None
    best = rows[-1]  # without validation images the last epoch is the result
    if prepared.dataset.val is not None:
        best = max(rows, key=lambda row: (_score(row), -row["epoch"]))
    if "val/top1" in best:
        val = Scores.from_dict({key.removeprefix("val/"): best[key] for key in best if key.startswith("val/")})
    if prepared.dataset.test is not None:
        folder = "last" if val is None else "best"
        prepared.model.load_state_dict(load_file(run.path / folder / "model.safetensors"))
        loader = prepared.evaluation_loader(prepared.dataset.test)
        test = evaluate(prepared.model, loader, device=prepared.device, autocast=autocast)
    warnings = (*prepared.notes, *_warnings(prepared.objective, rows))
    side = "val" if any(key.startswith("val/") and key.count("/") == 2 for key in rows[-1]) else "train"
    tasks = {
        k.removeprefix(f"{side}/"): v for k, v in rows[-1].items() if k.startswith(f"{side}/") and k.count("/") == 2
    }
    result = {
        "best_epoch": best["epoch"],
        "val": val.to_dict() if val else None,
        "test": test.to_dict() if test else None,
        "test_per_class": dict(zip(prepared.dataset.classes, test.per_class, strict=False)) if test else None,
        "classes": list(prepared.dataset.classes),
        "data": prepared.dataset.note,
        "tasks": tasks,
        "warnings": list(warnings),
    }
    run.write_text("result.json", json.dumps(result, indent=2, ensure_ascii=False))
    return RunResult(run.path, best["epoch"], val, test, prepared.dataset.note, tasks, warnings)


def _warnings(objective: Objective, rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for every task that was not learned or that drowned the labels."""
    found = []
    for term in objective.terms:
        name = term.task.name
        prefix = f"train/{name}/"
        metrics = {key.removeprefix(prefix): value for key, value in rows[-1].items() if key.startswith(prefix)}
        verdict = term.task.verdict(metrics)
        if verdict:
            found.append(f"{name} {verdict}")
        weighted = sum(row[f"weight/{name}"] * row[f"train/{name}"] for row in rows)
        main = sum(row.get(f"train/{Objective.MAIN}", 0.0) for row in rows)
        if main and weighted > DWARFS * main:
            found.append(
                f"{name} dwarfs the labels: its weighted loss was {weighted / main:.1f} times the main loss over the"
                " run. Lower its weight."
            )
    return found
