"""Where an epoch's numbers also go: TensorBoard always, other trackers by flag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from vitlet.config import RunConfig
from vitlet.errors import VitletError, first_line, require_extra


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


def open_trackers(config: RunConfig, path: Path, done: int) -> list[Tracker]:
    """All that the settings ask for."""
    settings = config.to_dict()
    others: dict[str, Callable[[Any], Tracker]] = {
        "wandb": lambda library: WandbOrTrackio(library, path, settings, dir=str(path)),
        "trackio": lambda library: WandbOrTrackio(library, path, settings, embed=False),
        "mlflow": lambda library: MLflow(library, path, settings),
    }
    trackers: list[Tracker] = [TensorBoard(path, done)]
    for name, library in require_trackers(config).items():
        try:
            trackers.append(others[name](library))
        except Exception as problem:  # not logged in, no server: each has errors of its own
            raise VitletError(f"--log-{name} does not work: {first_line(problem)}.") from problem
    return trackers


def require_trackers(config: RunConfig) -> dict[str, Any]:
    """The libraries of the trackers that the settings ask for; refuses one that is not installed."""
    names = [name for name in ("wandb", "trackio", "mlflow") if getattr(config, f"log_{name}")]
    return {name: require_extra(name, name, f"--log-{name}") for name in names}
