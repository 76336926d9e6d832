"""Where an epoch's numbers also go: TensorBoard always, other trackers by flag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from vitlet.config import BaseConfig
from vitlet.errors import VitletError, first_line


class Tracker(Protocol):
    """Something that keeps numbers."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Keep the numbers of an epoch."""

    def close(self) -> None:
        """There will be no more."""


class TensorBoard:
    """Event files in the run's folder; what lies behind ``done`` epochs is taken back."""

    def __init__(self, path: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(path), purge_step=done + 1 if done else None)

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        for key, value in numbers.items():
            if key != "epoch":
                self.writer.add_scalar(key, value, epoch)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbOrTrackio:
    """Weights & Biases, or Trackio, which has the same interface."""

    def __init__(self, library: Any, path: Path, settings: dict[str, Any], **options: Any) -> None:
        self.run = library.init(project="vitlet", name=path.name, config=settings, **options)

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self.run.log(dict(numbers), step=epoch)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """MLflow, at the place that its own settings name (by default beside the working folder)."""

    def __init__(self, library: Any, path: Path, settings: dict[str, Any]) -> None:
        self.library = library
        library.set_experiment("vitlet")
        library.start_run(run_name=path.name)
        library.log_params({key: str(value)[:500] for key, value in settings.items()})

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self.library.log_metrics({key.replace("%", ""): float(value) for key, value in numbers.items()}, step=epoch)

    def close(self) -> None:
        self.library.end_run()


def open_trackers(config: BaseConfig, path: Path, done: int) -> list[Tracker]:
    """All that the settings ask for."""
    settings = config.to_dict()
    others: dict[str, Callable[[Any], Tracker]] = {
        "wandb": lambda library: WandbOrTrackio(library, path, settings, dir=str(path)),
        "trackio": lambda library: WandbOrTrackio(library, path, settings, embed=False),
        "mlflow": lambda library: MLflow(library, path, settings),
    }
    trackers: list[Tracker] = [TensorBoard(path, done)]
    for name, make in others.items():
        if getattr(config, f"log_{name}"):
            try:
                trackers.append(make(_library(name)))
            except Exception as problem:  # not logged in, no server: each has errors of its own
                raise VitletError(f"--log-{name} does not work: {first_line(problem)}.") from problem
    return trackers


def require_trackers(config: BaseConfig) -> None:
    """Refuse a tracker that is not installed, before anything is written."""
    for name in ("wandb", "trackio", "mlflow"):
        if getattr(config, f"log_{name}"):
            _library(name)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise VitletError(f"--log-{name} needs an extra: pip install 'vitlet[{name}]'.") from None
