"""A search for learning rate and weights of tasks on validation images, under a budget of time; needs optuna."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlet.config import RunConfig
from vitlet.data.sources import load_dataset
from vitlet.errors import NotFiniteError, VitletError, first_line, require_extra
from vitlet.training.defaults import choose_tasks
from vitlet.training.inputs import data_request
from vitlet.training.loop import train
from vitlet.training.progress import duration
from vitlet.training.resume import differences

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
    config: RunConfig,
    folder: Path,
    *,
    minutes: float,
    trials: int | None,
    say: Callable[[str], None],
    open_tasks: bool = False,
) -> tuple[RunConfig, list[Trial]]:
    """Try the given settings, then others, until the time is up; the same folder is resumed.

    Test images are never looked at. A new try is begun only if it can be expected to end in time. A try whose loss is
    no number is passed over. With ``open_tasks`` the tasks are those that a training would choose.
    """
    optuna = require_extra("optuna", "tune", "vitlet tune")
    dataset = replace(load_dataset(data_request(config)), test=None)
    if dataset.val is None:
        raise VitletError("there are no validation images to tune on; use a --val-fraction greater than 0.")
    if open_tasks:
        config, _, why = choose_tasks(config, dataset)
        say(why)
    _claim(folder, config)
    study, ranges = _open_study(optuna, folder, config.seed), _ranges(config)
    if not any(trial.state.is_finished() for trial in study.trials):
        study.enqueue_trial({name: (low * high) ** 0.5 for name, (low, high) in ranges.items()})
    started, spent, done = time.monotonic(), 0.0, 0
    while trials is None or done < trials:
        before = time.monotonic()
        if before - started + spent > 60 * minutes and done:
            break
        trial = study.ask()
        values = {name: trial.suggest_float(name, low, high, log=True) for name, (low, high) in ranges.items()}
        chosen = replace(_with(config, values), output=str(folder / f"trial-{trial.number}"), overwrite=True)
        shown = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        try:
            result = train(chosen, dataset, title=f"try {trial.number + 1}")
        except NotFiniteError as problem:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            answer = f"diverged with {shown} ({first_line(problem)})"
        else:
            assert result.val is not None
            study.tell(trial, result.val.top1)
            answer = f"{result.val.top1:.2f} % with {shown}"
        done, spent = done + 1, time.monotonic() - before
        left = max(0.0, 60 * minutes - (time.monotonic() - started))
        say(f"try {trial.number + 1}: {answer}; {duration(left)} left")
    found = [Trial(t.number, dict(t.params), float(t.value)) for t in study.trials if t.value is not None]
    if not found:
        raise NotFiniteError("every try diverged. Begin with a smaller --lr, or add --clip-grad 1.")
    found.sort(key=lambda each: -each.top1)
    return _with(config, found[0].values), found


def _open_study(optuna: Any, folder: Path, seed: int) -> Any:
    """Optuna study of this folder, new or resumed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal = require_extra("optuna.storages.journal", "tune", "vitlet tune")
    sampler = optuna.samplers.TPESampler(seed=seed + len(list(folder.glob("trial-*"))), n_startup_trials=5)
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(folder / "journal.log")))
    return optuna.create_study(
        study_name="tune", storage=storage, direction="maximize", load_if_exists=True, sampler=sampler
    )


def _claim(folder: Path, config: RunConfig) -> None:
    """Make the folder of a search, or find that it is one of these very settings."""
    file = folder / "searched.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            file.write_text(config.dump(), encoding="utf-8")
    except OSError as problem:
        raise VitletError(f"cannot write in {folder}: {problem.strerror}. Choose another --output.") from problem
    if not file.is_file():
        raise VitletError(f"{folder} contains other files and is not a search; choose another --output.")
    had = RunConfig.from_dict(RunConfig.read(file), source=str(file)).to_dict()
    if different := differences(had, config.to_dict(), RunConfig, "the search"):
        raise VitletError(
            f"cannot continue the search {folder} with other settings: {'; '.join(different)}. Choose another"
            " --output, or give the same ones."
        )


def _ranges(config: RunConfig) -> dict[str, tuple[float, float]]:
    """Search range of each setting; the given value is in the middle."""
    rate = config.lr if config.lr_base is None else config.lr_base
    weights = {name: task.weight for name, task in config.tasks.items() if task.weight > 0}
    ranges = {_rate(config): (rate / LR_FACTOR, rate * LR_FACTOR)}
    return ranges | {name: (weight / WEIGHT_FACTOR, weight * WEIGHT_FACTOR) for name, weight in weights.items()}


def _with(config: RunConfig, values: dict[str, Any]) -> RunConfig:
    tasks = {name: replace(task, weight=values.get(name, task.weight)) for name, task in config.tasks.items()}
    return replace(config, tasks=tasks, **{_rate(config): values[_rate(config)]})


def _rate(config: RunConfig) -> str:
    """The setting that the learning rate follows."""
    return "lr" if config.lr_base is None else "lr_base"
