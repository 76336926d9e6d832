"""A finished run, used: evaluation on any data, and classes of images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitlet.config import RunConfig
from vitlet.data.decode import read_image
from vitlet.data.images import ImageSet
from vitlet.data.loading import EvaluationSet, evaluation_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.sources import load_dataset, open_dataset
from vitlet.data.splits import pick_names
from vitlet.data.store import Fit, Lazy
from vitlet.errors import VitletError, first_line
from vitlet.evaluate import Scores, evaluate
from vitlet.feeding import data_request
from vitlet.models.factory import load_exported
from vitlet.prepare import find_device
from vitlet.runs import read_config


class Predictor:
    """The best weights of a run with their preprocessing and class names."""

    def __init__(
        self, model: nn.Module, preprocess: Preprocess, classes: Sequence[str], config: RunConfig, device: torch.device
    ) -> None:
        self.model, self.preprocess, self.classes = model.to(device).eval(), preprocess, tuple(classes)
        self.config, self.device = config, device

    @staticmethod
    def load(run: Path, *, device: str = "auto") -> Predictor:
        """Read a run folder."""
        config = read_config(run)
        if config.pretrain:
            raise VitletError(
                f"{run} was pre-trained without labels and has no classifier. Train one with `vitlet train DATA --init"
                f" {run}`, or measure its features with `vitlet probe {run} DATA`."
            )
        folder = run / "best" if (run / "best").is_dir() else run / "last"
        if not (folder / "model.safetensors").is_file():
            raise VitletError(f"the run {run} has no weights yet: it has not finished its first epoch.")
        try:
            described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            own = described["pretrained_cfg"]
            preprocess = Preprocess(
                tuple(own["input_size"][1:]), crop_pct=own["crop_pct"], mean=own["mean"], std=own["std"]
            )
            model = load_exported(folder)
        except Exception as problem:  # damaged files fail in many ways
            raise VitletError(f"cannot load the weights in {folder}: {first_line(problem)}.") from problem
        return Predictor(model, preprocess, described["label_names"], config, find_device(device))

    def evaluate(
        self, data: str | None = None, *, split: str | None = None, batch_size: int = 128, workers: int = 0
    ) -> tuple[Scores, str]:
        """Scores on a folder of class folders, or on a split of the run's own data; and what that was."""
        if data is not None:
            images, what = self._other(data)
        else:
            images, what = self._own_split(split)
        fitted = Lazy(images, True, Fit(self.preprocess))
        dataset = EvaluationSet(fitted, self.preprocess, channels=self.config.in_chans)
        loader = evaluation_loader(dataset, batch_size=batch_size, workers=workers, device=str(self.device))
        classes = len(self.classes)
        return evaluate(self.model, loader, classes=classes, device=self.device, autocast=nullcontext), what

    def _other(self, data: str) -> tuple[ImageSet, str]:
        """The test images of a source, or all of them where it has no splits; classes are matched by name."""
        dataset = open_dataset(data, data_dir=self.config.data_dir, fewest_classes=1)
        split = "test" if dataset.test is not None else "val" if dataset.val is not None else "train"
        images = pick_names(dataset.splits()[split], dataset.classes, self.classes, source=data)
        return images, data if split == "train" else f"{data} ({split})"

    def _own_split(self, split: str | None) -> tuple[ImageSet, str]:
        config = self.config
        dataset = load_dataset(data_request(config))
        name = split or ("test" if dataset.test is not None else "val")
        images = dataset.test if name == "test" else dataset.val
        if images is None:
            raise VitletError(f"the data of this run ({config.data}) has no {name} images. Give a folder as DATA.")
        return images, f"{config.data} ({name})"

    @torch.inference_mode()
    def predict(self, paths: Sequence[Path], *, topk: int = 3) -> list[dict[str, Any]]:
        """The most likely classes of image files, with probabilities."""
        if topk < 1:
            raise VitletError(f"topk is {topk}; it needs to be 1 or more.")
        images = [read_image(path, self.config.in_chans) for path in paths]  # all are read before any is classified
        answers = []
        for path, image in zip(paths, images, strict=True):
            batch = self.preprocess(image)[None].to(self.device)
            probabilities = self.model(batch)[0].float().softmax(-1)
            values, labels = probabilities.topk(min(topk, len(self.classes)))
            guesses = zip(labels.tolist(), values.tolist(), strict=True)
            answers.append(
                {"image": str(path), "classes": [{"class": self.classes[k], "probability": p} for k, p in guesses]}
            )
        return answers
