"""A finished run or an export, used: evaluation on any data, and classes of images."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitlet.config import RunConfig
from vitlet.data.contents import content_print, image_parts
from vitlet.data.decode import read_image
from vitlet.data.images import ImageSet
from vitlet.data.loading import EvaluationSet, evaluation_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.sources import load_dataset, open_dataset
from vitlet.data.splits import fingerprint, pick_names
from vitlet.data.store import Fit, Lazy
from vitlet.errors import VitletError, first_line
from vitlet.inference.exported import is_export, load_network, read_export, timm_preprocess
from vitlet.inference.mixture import Mixture
from vitlet.inference.runtimes import LogitsOf, TorchNetwork
from vitlet.models.factory import load_exported
from vitlet.training.build import find_device
from vitlet.training.evaluate import Scores, averaged_over, evaluate
from vitlet.training.files import checksum
from vitlet.training.inputs import data_request, other_request, readable_part
from vitlet.training.jobs import job_class
from vitlet.training.run_folder import read_config, read_rows, run_weights
from vitlet.training.search_folder import is_search, used_members

CALIBRATION_FILE = "calibration.json"
"""In the folder of a run: the number that its logits are divided by, so that its probabilities can be believed."""


class Predictor:
    """The best weights of a run, or an export, with preprocessing and class names.

    Args:
        model: gives logits.
        preprocess: preprocessing of its images.
        classes: their names.
        config: settings of the run; of an export, what is known of them.
        device: to compute on.
        network: gives logits and embeddings; by default the model's own.
        temperature: that logits are divided by before they become probabilities.
        source: the folder.
        notes: sentences worth reading before its answers.
    """

    def __init__(
        self,
        model: nn.Module,
        preprocess: Preprocess,
        classes: Sequence[str],
        config: RunConfig,
        device: torch.device,
        *,
        network: nn.Module | None = None,
        temperature: float = 1.0,
        source: Path | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.model, self.preprocess, self.classes = model.to(device).eval(), preprocess, tuple(classes)
        self.network = network if network is not None else TorchNetwork(self.model)
        self.config, self.device, self.temperature = config, device, temperature
        self.source, self.notes = source, tuple(notes)

    @staticmethod
    def load(run: Path, *, device: str = "auto") -> Predictor:
        """Read the folder of a run, an export or a search."""
        if is_export(run):
            return _load_export(run, device)
        if is_search(run):
            return _load_search(run, device)
        config = read_config(run)
        if not job_class(config).labelled:
            raise VitletError(
                f"{run} was pre-trained without labels and has no classifier. Train one with `vitlet train DATA --init"
                f" {run}`, or measure its features with `vitlet probe {run} DATA`."
            )
        weights = run_weights(run)
        try:
            described = json.loads(weights.with_name("config.json").read_text(encoding="utf-8"))
            preprocess, names = timm_preprocess(described["pretrained_cfg"]), described["label_names"]
            model = load_exported(weights.parent)
        except Exception as problem:  # damaged files fail in many ways
            raise VitletError(f"cannot load the weights in {weights.parent}: {first_line(problem)}.") from problem
        temperature, stale = _temperature(run, weights)
        notes = [note for note in (_unfinished(run, config), stale) if note]
        return Predictor(
            model, preprocess, names, config, find_device(device), temperature=temperature, source=run, notes=notes
        )

    def evaluate(
        self,
        data: str | None = None,
        *,
        split: str | None = None,
        data_dir: str | None = None,
        batch_size: int = 128,
        workers: int = 0,
    ) -> tuple[Scores, str]:
        """Scores on a folder of class folders, or on a split of the run's own data; and what that was."""
        images, what = self.images(data, split=split, data_dir=data_dir)
        return self.score(self.fitted(images), batch_size=batch_size, workers=workers), what

    def fitted(self, images: ImageSet) -> ImageSet:
        """Images of any size, preprocessed for this model when they are read."""
        return Lazy(images, True, Fit(self.preprocess))

    def score(self, fitted: ImageSet, *, batch_size: int = 128, workers: int = 0) -> Scores:
        """Scores on images that have the model's input size."""
        loader, classes = self._loader(fitted, batch_size, workers), len(self.classes)
        return evaluate(self._classify, loader, classes=classes, device=self.device, autocast=nullcontext)

    def _classify(self, images: Tensor) -> Tensor:
        """Logits as the run was validated with: of each image, or of the mean over it and its mirror image."""
        return averaged_over(self.model, images, self.config.tta)

    def images(
        self, data: str | None = None, *, split: str | None = None, data_dir: str | None = None
    ) -> tuple[ImageSet, str]:
        """Images labelled by this model's classes, and what they are.

        Args:
            data: a source (default: the run's own).
            split: which of its images (default: test, else val, else all).
            data_dir: data folder of a source that is a table or has a name.
        """
        return self._own_split(split) if data is None else self._other(data, split, data_dir)

    def logits(self, images: ImageSet, *, batch_size: int = 128) -> tuple[Tensor, Tensor]:
        """Logits ``(n, classes)`` and labels ``(n,)`` of a set."""
        return self.logits_of(self.fitted(images), batch_size=batch_size)

    @torch.inference_mode()
    def logits_of(self, fitted: ImageSet, *, batch_size: int = 128) -> tuple[Tensor, Tensor]:
        """Logits and labels of images that have the size of the model's input."""
        loader = self._loader(fitted, batch_size)
        found = [(self._classify(batch.to(self.device)).float().cpu(), labels) for batch, labels in loader]
        return torch.cat([logits for logits, _ in found]), torch.cat([labels for _, labels in found])

    def describe(self, images: ImageSet, *, batch_size: int = 128) -> tuple[Tensor, Tensor]:
        """Probabilities ``(n, classes)`` and embeddings ``(n, features)`` of a whole set."""
        found = [self(batch) for batch, _ in self._loader(self.fitted(images), batch_size)]
        return torch.cat([probabilities for probabilities, _ in found]), torch.cat([each for _, each in found])

    def _loader(self, fitted: ImageSet, batch_size: int, workers: int = 0) -> Any:
        dataset = EvaluationSet(fitted, self.preprocess, channels=self.config.in_chans)
        return evaluation_loader(dataset, batch_size=batch_size, workers=workers, device=str(self.device))

    def _other(self, data: str, split: str | None, data_dir: str | None) -> tuple[ImageSet, str]:
        """Images of a source: those of a split, or all where it has no splits; classes are matched by name."""
        dataset = open_dataset(other_request(self.config, data, data_dir), fewest_classes=1)
        found = dataset.splits()
        name = next(each for each in (split, "test", "val", "train") if each in found)
        named = pick_names(found[name], dataset.classes, self.classes, source=data)
        images = readable_part(self.config, named)
        if name != "train":
            return images, f"{data} ({name})"
        own = Path(data).exists() and Path(self.config.data).exists() and Path(data).samefile(self.config.data)
        return images, f"{data} (all images, those that the run learned from among them)" if own else data

    def _own_split(self, split: str | None) -> tuple[ImageSet, str]:
        config = self.config
        if self.source is not None and is_export(self.source):
            raise VitletError(f"{self.source} is an export without data. Give a folder as DATA.")
        dataset = load_dataset(data_request(config))
        name = split or ("test" if dataset.test is not None else "val")
        images = dataset.test if name == "test" else dataset.val
        if images is None:
            raise VitletError(f"the data of this run ({config.data}) has no {name} images. Give a folder as DATA.")
        images = readable_part(config, pick_names(images, dataset.classes, self.classes, source=config.data))
        note = _changed(self.source, name, images) if self.source is not None else ""
        return images, f"{config.data} ({name}{note})"

    @torch.inference_mode()
    def __call__(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities ``(B, classes)`` and embeddings ``(B, features)`` of preprocessed images, on the CPU."""
        logits, embedding = self.network(batch.to(self.device))
        return (logits.float() / self.temperature).softmax(-1).cpu(), embedding.float().cpu()

    def predict(self, paths: Sequence[Path], *, topk: int = 3) -> list[dict[str, Any]]:
        """The most likely classes of image files, with probabilities."""
        check_topk(topk)
        images = [read_image(path, self.config.in_chans) for path in paths]  # all are read before any is classified
        found = (self(self.preprocess(image)[None])[0][0] for image in images)
        classes = [most_likely(probabilities, self.classes, topk) for probabilities in found]
        return [{"image": str(path), "classes": each} for path, each in zip(paths, classes, strict=True)]


def _changed(run: Path, split: str, images: ImageSet) -> str:
    """How these are not the images that a finished run had, as the end of a sentence; nothing where they are."""
    try:
        had = json.loads((run / "result.json").read_text(encoding="utf-8"))
        if had["fingerprints"][split] != fingerprint(images):
            return "; not the images that the run had: files were added, removed or renamed since"
        if had["contents"][split] != content_print(image_parts(images)):
            return "; not the images that the run had: the content of files has changed since"
    except (OSError, ValueError, KeyError):  # not finished, or of an older version
        pass
    return ""


def check_topk(topk: int) -> None:
    """Refuse what names no class."""
    if topk < 1:
        raise VitletError(f"topk must be at least 1, got {topk}.")


def most_likely(probabilities: Tensor, classes: Sequence[str], topk: int) -> list[dict[str, Any]]:
    """The first classes by probability."""
    values, labels = probabilities.topk(min(topk, len(classes)))
    return [{"class": classes[k], "probability": p} for k, p in zip(labels.tolist(), values.tolist(), strict=True)]


def _temperature(run: Path, weights: Path) -> tuple[float, str]:
    """The temperature for these weights of a run, 1 if there is none; and a note if there is one for others.

    ``calibration.json`` holds it with the checksum of the weights that it was fitted for: other weights, such as those
    of a later epoch, need another one.
    """
    file = run / CALIBRATION_FILE
    if not file.is_file():
        return 1.0, ""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        temperature, of = float(found["temperature"]), str(found["weights_sha256"])
        if not 0 < temperature < math.inf:
            raise ValueError(f"a temperature of {temperature}")
    except (ValueError, KeyError, TypeError) as problem:
        raise VitletError(
            f"{file} is not a calibration: {problem}. Run `vitlet calibrate {run}` again, or remove the file."
        ) from problem
    if of == checksum(weights):
        return temperature, ""
    note = f"{file} was fitted for other weights than the run has now, and is not used: run `vitlet calibrate {run}`."
    return 1.0, note


def _unfinished(run: Path, config: RunConfig) -> str:
    """A note on a run that has not come to its end."""
    if (run / "result.json").is_file():
        return ""
    epochs = f"{len(read_rows(run))} of {config.last_epoch} epochs"
    return f"{run} is not finished ({epochs}): these are its best weights so far."


def _load_search(folder: Path, device: str) -> Predictor:
    """The run that a search found best, or its ensemble as one model."""
    used = used_members(folder)
    loaded = [Predictor.load(run, device=device) for run in used]
    first = loaded[0]
    if len(loaded) == 1:
        first.source = folder
        return first
    mixture = Mixture([each.model for each in loaded], list(used.values()), [each.preprocess for each in loaded])
    notes = [note for each in loaded for note in each.notes]
    return Predictor(mixture, mixture.preprocess, first.classes, first.config, first.device, source=folder, notes=notes)


def _load_export(folder: Path, device: str) -> Predictor:
    about = read_export(folder)
    network = load_network(folder, about)
    in_torch = isinstance(network, TorchNetwork)
    where = find_device(device) if in_torch else torch.device("cpu")
    if not in_torch and device not in ("auto", "cpu"):
        raise VitletError(f"{folder} is exported for {about.format}, which computes on the CPU here; found {device}.")
    model: Any = network.model if in_torch and about.dtype == "float32" else LogitsOf(network)
    channels, height, width = about.preprocessing["input_size"]
    config = RunConfig(model=about.architecture, img_size=(height, width), in_chans=channels)
    preprocess, names, network = timm_preprocess(about.preprocessing), about.label_names, network.to(where).eval()
    return Predictor(
        model, preprocess, names, config, where, network=network, temperature=about.temperature, source=folder
    )
