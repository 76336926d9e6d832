"""The exported weights of a detector or segmenter, and what to build for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from vitlet.errors import VitletError, first_line
from vitlet.models.weight_files import read_weights
from vitlet.training.run_folder import read_config
from vitlet.transfer.common.backbone import Opened, build
from vitlet.transfer.common.settings import TransferConfig

Config = TypeVar("Config", bound=TransferConfig)


@dataclass(frozen=True)
class Exported(Generic[Config]):
    """A run's settings, the description beside its weights, and a backbone to fill."""

    config: Config
    described: Mapping[str, Any]
    opened: Opened
    weights: Path

    def fill(self, network: nn.Module) -> None:
        """Load the weights; they have to be those of this very network."""
        try:
            network.load_state_dict(read_weights(self.weights))
        except RuntimeError as problem:
            raise VitletError(f"cannot load the weights {self.weights}: {first_line(problem)}.") from problem


def read_exported(run: Path, kind: type[Config]) -> Exported[Config]:
    """The best weights of a run, or the last ones where it has no validation images."""
    config = read_config(run, kind)
    folder = run / "best" if (run / "best").is_dir() else run / "last"
    if not (folder / "model.safetensors").is_file():
        raise VitletError(f"the run {run} has no weights yet: it has not finished its first epoch.")
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        fixed = tuple(described["fixed"]) if described["fixed"] else None
        opened = build(described["architecture"], described["model_args"], fixed or (32, 32))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise VitletError(f"cannot use the weights in {folder}: {first_line(problem)}.") from problem
    return Exported(config, described, opened, folder / "model.safetensors")
