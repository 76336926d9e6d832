"""A search for learning rate and weights of tasks on validation images, under a budget of time; needs optuna."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from vitlet.config import RunConfig
from vitlet.data.sources import load_dataset
from vitlet.engine import train
from vitlet.errors import VitletError
from vitlet.feeding import data_request
from vitlet.progress import duration

LR_FACTOR = 5.0
WEIGHT_FACTOR = 10.0
"""How far from the given values the search goes, both ways."""


@dataclass(frozen=True)
class Trial:
    """One try: its settings by name, and the validation accuracy of its best epoch, in percent."""

    number: int
    values: dict[str, float]
    top1: float


def tune(
    config: RunConfig, folder: Path, *, minutes: float, trials: int | None, say: Callable[[str], None]
) -> tuple[RunConfig, list[Trial]]:
    """Try the given settings, then others, until the time is up; the same folder goes on where it was.

    Test images are never looked at. A new try is begun only if it can be expected to end in time.
    """
    try:
        optuna: Any = import_module("optuna")
        journal: Any = import_module("optuna.storages.journal")
    except ImportError:
        raise VitletError("vitlet tune needs optuna: pip install 'vitlet[tune]'.") from None
    dataset = replace(load_dataset(data_request(config)), test=None)
    if dataset.val is None:
        raise VitletError("there are no validation images to tune on; leave --val-fraction above 0.")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "journal.log")))
    study = optuna.create_study(
        study_name="tune",
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=config.seed + len(list(folder.glob("trial-*"))), n_startup_trials=5),
    )
    ranges = _ranges(config)
    if not study.trials:
        study.enqueue_trial({name: (low * high) ** 0.5 for name, (low, high) in ranges.items()})
    started, spent = time.monotonic(), 0.0
    done = 0
    while trials is None or done < trials:
        if time.monotonic() - started + spent > 60 * minutes and done:
            break
        before = time.monotonic()
        trial = study.ask()
        values = {name: trial.suggest_float(name, low, high, log=True) for name, (low, high) in ranges.items()}
        output = folder / f"trial-{trial.number}"
        chosen = replace(_with(config, values), output=str(output), overwrite=True)
        result = train(chosen, dataset, title=f"try {trial.number + 1}")
        assert result.val is not None
        study.tell(trial, result.val.top1)
        done, spent = done + 1, time.monotonic() - before
        left = max(0.0, 60 * minutes - (time.monotonic() - started))
        shown = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        say(f"try {trial.number + 1}: {result.val.top1:.2f} % with {shown}; {duration(left)} left")
    found = [Trial(t.number, dict(t.params), float(t.value)) for t in study.trials if t.value is not None]
    best = max(found, key=lambda each: each.top1)
    return _with(config, best.values), sorted(found, key=lambda each: -each.top1)


def _ranges(config: RunConfig) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of everything that is searched; the given one lies in the middle."""
    ranges = {"lr": (config.lr / LR_FACTOR, config.lr * LR_FACTOR)}
    for name, task in config.tasks.items():
        if task.weight > 0:
            ranges[name] = (task.weight / WEIGHT_FACTOR, task.weight * WEIGHT_FACTOR)
    return ranges


def _with(config: RunConfig, values: dict[str, Any]) -> RunConfig:
    tasks = {name: replace(task, weight=values.get(name, task.weight)) for name, task in config.tasks.items()}
    return replace(config, lr=values["lr"], tasks=tasks)
