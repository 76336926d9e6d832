"""End of a run: evaluates the best weights once on the test images, writes the result, and prints notes."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors.torch import load_file

from vitlet.errors import VitletError
from vitlet.objective import Objective
from vitlet.pictures import plot_curves
from vitlet.processes import usable_cores
from vitlet.training.distributed import World
from vitlet.training.job import Job, Measured
from vitlet.training.run_folder import RunFolder
from vitlet.training.sharded_checkpoint import fill_weights
from vitlet.training.state import State
from vitlet.training.teachers import teachers_of

DWARFS = 3.0
"""A task whose weighted loss is, over the run, this many times the main loss is said to dwarf it."""


BEST = ("val/top1", "val/box_AP", "val/mIoU")
"""What the best epoch has most of; a run has one of them."""

CURVES = "curves.png"

VALIDATED = {
    "val/top1": "validation accuracy, %",
    "test/top1": "test accuracy (eval_on_test), %",
    "val/box_AP": "validation box AP, %",
    "val/mIoU": "validation mIoU, %",
}
"""The first curves of a run, those that it has."""

Numbers = TypeVar("Numbers", bound=Measured)


@dataclass(frozen=True)
class RunResult(Generic[Numbers]):
    """Folder, final scores and notes of a run."""

    path: Path
    best_epoch: int
    val: Numbers | None
    test: Numbers | None
    note: str
    tasks: dict[str, float]
    warnings: tuple[str, ...]
    verdict: str = ""


def score(row: Mapping[str, Any]) -> float:
    """Score that selects the best epoch, by `BEST`; in pre-training the negative validation loss."""
    known = next((row[key] for key in BEST if key in row), None)
    return float(-row.get("val/loss", math.inf) if known is None else known)


def finish(state: State, job: Job, path: Path, folder: RunFolder | None, world: World) -> RunResult[Any]:
    """Test the best weights once; write the result and a picture of the curves."""
    rows, classes, cpu = state.rows, list(job.classes), time.process_time()
    val: Measured | None = None
    test: Measured | None = None
    best = rows[-1]  # without validation images the last epoch is the result
    if job.validates:
        best = max(rows, key=lambda row: (score(row), -row["epoch"]))
    if any(key in best for key in BEST):
        val = job.SCORES.from_dict({key.removeprefix("val/"): best[key] for key in best if key.startswith("val/")})
    if job.tests:
        weights = load_file(path / ("last" if val is None else "best") / "model.safetensors")
        if state.sharded:
            fill_weights(job.model, weights)
        else:
            job.model.load_state_dict(weights)
        state.module.eval()
        test = job.test(world)
    warnings = [*job.notes, *_warnings(state.objective, rows)]
    if len(rows) < (job.config.stop_epoch or state.clock.last):
        warnings.append(f"stopped after {len(rows)} epochs: none of the last {job.config.patience} was better")
    measured = test or val
    verdict = job.verdict(measured, best["epoch"], len(rows)) if measured else ""
    result = {
        "verdict": verdict,
        "best_epoch": best["epoch"],
        "val": val.to_dict() if val else None,
        "test": test.to_dict() if test else None,
        "test_per_class": dict(zip(classes, test.per_class, strict=True)) if test else None,
        "classes": classes,
        "data": job.data_note,
        "fingerprints": dict(job.fingerprints),
        "contents": dict(job.contents),
        "teachers": {name: teacher.sha256 for name, teacher in teachers_of(state.objective).items()},
        "tasks": _task_numbers(rows[-1]),
        "warnings": warnings,
        "cpu_seconds": round(cpu, 1),  # of this process before the test
        "machine": _machine(next(job.model.parameters()).device),
    }
    if folder is not None:
        folder.write(CURVES, lambda temporary: draw_run_curves(path.name, rows, temporary))
        folder.write_text("result.json", json.dumps(result, indent=2, ensure_ascii=False))
    return RunResult(path, best["epoch"], val, test, job.data_note, result["tasks"], tuple(warnings), verdict)


def finished(path: Path, kind: type[Numbers]) -> RunResult[Numbers] | None:
    """The result of a run that has come to its end."""
    file = path / "result.json"
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        val, test = (kind.from_dict(found[split]) if found[split] else None for split in ("val", "test"))
        notes = (*found["warnings"], "the run was finished already; nothing was trained")
        verdict = found.get("verdict", "")  # older runs have none
        return RunResult(path, int(found["best_epoch"]), val, test, found["data"], found["tasks"], notes, verdict)
    except (ValueError, KeyError, TypeError) as problem:
        raise VitletError(
            f"{file} is not the result of a run: {problem}. Remove it to test the run again."
        ) from problem


def draw_run_curves(name: str, rows: list[dict[str, Any]], picture: Path) -> None:
    """Draw the curves of a run: accuracy, loss, and what each task learned."""
    found = [key for key in rows[-1] if key.startswith("train/") and key.count("/") == 2]
    of_tasks = [key for key in found if key.rpartition("/")[2].startswith(("error", "accuracy"))]
    metrics = {key: title for key, title in VALIDATED.items() if key in rows[-1]}
    metrics |= {"train/loss": "training loss"}
    metrics |= {key: key.removeprefix("train/").replace("/", ": ").replace("_", " in ") for key in of_tasks[:3]}
    plot_curves({name: rows}, picture, metrics=metrics)


def _machine(device: torch.device) -> dict[str, Any]:
    """The machine that a run was trained on, as far as known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": f"{device.type} {name}", "cpus": usable_cores(), "torch": torch.__version__}


def _task_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """The tasks' metrics of an epoch: on validation images where they were taken there."""
    side = "val" if any(key.startswith("val/") and key.count("/") == 2 for key in row) else "train"
    return {k.removeprefix(f"{side}/"): v for k, v in row.items() if k.startswith(f"{side}/") and k.count("/") == 2}


def _warnings(objective: Objective, rows: list[dict[str, Any]]) -> list[str]:
    """Warnings about tasks that were not learned or that dominated the classification loss."""
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
