"""A detector or segmenter, ready to use: in the evaluations of its training, and read from a run folder."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from vitlet.backbones import Backbone
from vitlet.data.preprocess import Preprocess
from vitlet.errors import VitletError, first_line
from vitlet.models.weight_files import read_weights
from vitlet.training.build import find_device
from vitlet.training.distributed import World
from vitlet.training.evaluate import nothing
from vitlet.training.job import Measured
from vitlet.training.run_folder import read_config
from vitlet.transfer.common.backbone import build
from vitlet.transfer.common.loading import TrainingSamples
from vitlet.transfer.common.objective import DenseHead, DenseModel
from vitlet.transfer.common.pyramid import Levels
from vitlet.transfer.common.settings import TransferConfig
from vitlet.transfer.common.splits import with_validation


class DensePredictor(ABC):
    """A model with a dense head, the way of images into it, and what it is measured by.

    Args:
        config: the settings of its run.
        backbone: backbone of the model.
        levels: the maps that the backbone gives to the head.
        about: what beside weights and settings it takes to build it again: the ``config.json`` beside its weights.

    Attributes:
        model: what is trained and exported.
        fixed: the only image size that the backbone takes, if there is one.
        normalize: from pixels to what the backbone expects.
    """

    SETTINGS: ClassVar[type[TransferConfig]]
    SCORES: ClassVar[type[Measured]]
    BY_CLASS: ClassVar[str]
    """What the numbers of single classes are called."""

    config: TransferConfig

    def __init__(self, config: Any, backbone: Backbone, levels: Levels, about: Mapping[str, Any]) -> None:
        self.config, self.about, self.levels = config, about, levels
        self.fixed = _pair(about["fixed"])
        self.normalize = Preprocess((1, 1), crop_pct=1.0, mean=about["mean"], std=about["std"]).normalize
        self.model = DenseModel(backbone, self.make_head())

    @classmethod
    def load(cls, run: Path, *, device: str = "auto") -> Self:
        """The best weights of a run, or the last ones where it has no validation images."""
        config = read_config(run, cls.SETTINGS)
        folder = run / "best" if (run / "best").is_dir() else run / "last"
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise VitletError(f"the run {run} has no weights yet: it has not finished its first epoch.")
        try:
            about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            opened = build(about["architecture"], about["model_args"], _pair(about["fixed"]) or (32, 32))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise VitletError(f"cannot use the weights in {folder}: {first_line(problem)}.") from problem
        found = cls(config, opened.backbone, Levels(opened), about)
        try:
            found.model.load_state_dict(read_weights(weights))
        except RuntimeError as problem:
            raise VitletError(f"cannot load the weights {weights}: {first_line(problem)}.") from problem
        found.model.eval().to(find_device(device))
        return found

    @property
    @abstractmethod
    def classes(self) -> list[str]:
        """Names of the classes."""

    @abstractmethod
    def make_head(self) -> DenseHead:
        """Build the head from the settings."""

    @abstractmethod
    def samples(self, split: Any) -> TrainingSamples:
        """The images of a split as training sees them."""

    @abstractmethod
    def open_data(self, data: str) -> dict[str, Any]:
        """The splits of a dataset, which has to have the classes that this was trained with."""

    @abstractmethod
    def measure(self, split: Any, world: World = World(), between: Callable[[], None] = nothing) -> Measured:
        """The numbers of a split; each image goes through the model by itself, so they do not depend on the batch."""

    def evaluate(self, data: str | None = None, *, split: str | None = None) -> tuple[Measured, str]:
        """The numbers of a split of the run's own data, or of other data with the same classes; and which it was."""
        place = data or self.config.data
        splits = self.open_data(place)
        if data is None:
            splits = with_validation(splits, self.config)
        name = split or next(each for each in ("test", "val", "train") if each in splits)
        if name not in splits:
            raise VitletError(f"{place} has no {name} images; there are {', '.join(splits)}.")
        return self.measure(splits[name]), f"{place} ({name})"


def _pair(size: Any) -> tuple[int, int] | None:
    """A height and width that may have been through JSON."""
    return (int(size[0]), int(size[1])) if size else None
