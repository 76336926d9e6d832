"""Experiment trackers: TensorBoard always, others by flag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitlet.config import BaseConfig
from vitlet.errors import VitletError, first_line, require_extra


class Tracker(NamedTuple):
    """Something that keeps numbers: what takes those of an epoch, and what is called when there will be no more."""

    log: Callable[[Mapping[str, float], int], None]
    close: Callable[[], None]


def tensorboard(path: Path, done: int) -> Tracker:
    """TensorBoard event files in the run folder; entries after ``done`` epochs are removed."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(path), purge_step=done + 1 if done else None)

    def log(numbers: Mapping[str, float], epoch: int) -> None:
        for key, value in numbers.items():
            if key != "epoch":
                writer.add_scalar(key, value, epoch)
        writer.flush()

    return Tracker(log, writer.close)


def wandb_or_trackio(library: Any, path: Path, settings: dict[str, Any], **options: Any) -> Tracker:
    """Weights & Biases, or Trackio, which has the same interface."""
    run = library.init(project="vitlet", name=path.name, config=settings, **options)
    return Tracker(lambda numbers, epoch: run.log(dict(numbers), step=epoch), run.finish)


def mlflow(library: Any, path: Path, settings: dict[str, Any]) -> Tracker:
    """MLflow tracker, at the location of MLflow's own settings."""
    library.set_experiment("vitlet")
    library.start_run(run_name=path.name)
    library.log_params({key: str(value)[:500] for key, value in settings.items()})

    def log(numbers: Mapping[str, float], epoch: int) -> None:
        library.log_metrics({key.replace("%", ""): float(value) for key, value in numbers.items()}, step=epoch)

    return Tracker(log, library.end_run)


def open_trackers(config: BaseConfig, path: Path, done: int) -> list[Tracker]:
    """Open all trackers of the settings."""
    settings = config.to_dict()
    others: dict[str, Callable[[Any], Tracker]] = {
        "wandb": lambda library: wandb_or_trackio(library, path, settings, dir=str(path)),
        "trackio": lambda library: wandb_or_trackio(library, path, settings, embed=False),
        "mlflow": lambda library: mlflow(library, path, settings),
    }
    trackers = [tensorboard(path, done)]
    for name, library in require_trackers(config).items():
        try:
            trackers.append(others[name](library))
        except Exception as problem:  # not logged in, no server: each has errors of its own
            raise VitletError(f"--log-{name} does not work: {first_line(problem)}.") from problem
    return trackers


def require_trackers(config: BaseConfig) -> dict[str, Any]:
    """Import the libraries of the requested trackers; `VitletError` if one is not installed."""
    names = [name for name in ("wandb", "trackio", "mlflow") if getattr(config, f"log_{name}")]
    return {name: require_extra(name, name, f"--log-{name}") for name in names}
