"""Probes of frozen features: k-nearest neighbours and a linear classifier, by the fraction of labels used."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlet.backbones import TimmBackbone
from vitlet.config import RunConfig
from vitlet.data.images import ImageSet, Subset
from vitlet.data.loading import EvaluationSet, evaluation_loader
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import mix_seed
from vitlet.data.sources import load_dataset
from vitlet.data.splits import keep
from vitlet.data.store import Fit, Lazy
from vitlet.errors import VitletError
from vitlet.models.factory import build_model, data_statistics
from vitlet.models.initialise import load_weights, pooled_features, switch_positions_off
from vitlet.tokens.features import Features, Needs
from vitlet.tokens.views import View
from vitlet.training.build import find_device
from vitlet.training.inputs import data_request, other_request, readable_part
from vitlet.training.jobs import job_class
from vitlet.training.run_folder import read_config, run_weights


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies in percent of one kind of features with one share of the labels.

    ``layer`` is the block that the features were taken from, counted from 1; None for what the classifier sees, and for
    pixels.
    """

    features: str
    layer: int | None
    fraction: float
    labels: int
    tested: int
    knn: float
    linear: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def parse_fractions(text: str) -> tuple[float, ...]:
    """Shares such as ``0.01,0.1,1``."""
    try:
        fractions = tuple(float(word) for word in text.split(","))
    except ValueError:
        fractions = ()
    if not fractions or not all(0 < fraction <= 1 for fraction in fractions):
        raise VitletError(f"fractions are {text!r}; they must be greater than 0 and at most 1, separated by commas.")
    return fractions


def probe(
    run: Path,
    data: str | None = None,
    *,
    data_dir: str | None = None,
    fractions: tuple[float, ...] = (0.01, 0.05, 0.1, 1.0),
    neighbours: int = 20,
    per_class: int | None = None,
    baselines: bool = False,
    layer: int | None = None,
    linear: bool = True,
    seed: int = 0,
    device: str = "auto",
) -> list[ProbeResult]:
    """Probe the features of a run, and optionally those of random weights and raw pixels.

    Labels come from the training images, accuracy from the test images (or the validation images where there are none).
    Of a pre-trained run, whose last blocks serve the tasks, features are the mean tokens of one block: ``layer``, or
    the one that knows most of a fifth of the labelled images from the rest. Random weights have the same choice.
    Images are split as the run's own were; ``seed`` chooses the labels.
    """
    config = read_config(run)
    request = replace(data_request(config), fraction=1.0, per_class=None)
    if data is not None:
        request = other_request(config, data, data_dir)
    dataset = load_dataset(request)
    tested = dataset.test if dataset.test is not None else dataset.val
    if tested is None:
        raise VitletError(f"{request.data} has no images to test on; give test or val images.")
    tested = readable_part(config, tested)
    train = keep(readable_part(config, dataset.train), per_class=per_class, seed=seed)
    where = find_device(device)
    kinds: dict[str, Any] = {"run": _network(config, run_weights(run))}
    if baselines:
        kinds |= {"random weights": _network(config, None), "raw pixels": None}
    subsets = {fraction: keep(train, fraction=fraction, seed=seed) for fraction in fractions}
    results = []
    for kind, model in kinds.items():
        layers, labels = extract(train, model, config, where)
        of_tested, answers = extract(tested, model, config, where)
        for fraction, subset in subsets.items():
            chosen = torch.arange(len(labels))
            if isinstance(subset, Subset) and subset is not train:
                chosen = torch.tensor(subset.indices)
            named = labels[chosen]
            block = _choose_layer([each[chosen] for each in layers], named, neighbours, layer)
            number = block + 1 if model is not None and not job_class(config).labelled else None
            known, queries = centred(layers[block][chosen], of_tested[block])
            accuracy = knn_accuracy(known, named, queries, answers, neighbours)
            by_line = linear_accuracy(known, named, queries, answers) if linear else None
            results.append(ProbeResult(kind, number, fraction, len(known), len(queries), accuracy, by_line))
    return results


def _choose_layer(layers: list[Tensor], labels: Tensor, neighbours: int, wanted: int | None) -> int:
    """The requested block, or the best one on a fifth of the labelled images, without any other image."""
    if len(layers) == 1:
        return 0
    if wanted is not None:
        if not 1 <= wanted <= len(layers):
            raise VitletError(f"layer must be between 1 and {len(layers)}, the number of blocks, got {wanted}.")
        return wanted - 1
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    held, rest = order[: max(1, len(order) // 5)], order[len(order) // 5 :]
    pairs = [centred(each[rest], each[held]) for each in layers]
    accuracies = [knn_accuracy(known, labels[rest], asked, labels[held], neighbours) for known, asked in pairs]
    return max(range(len(layers)), key=accuracies.__getitem__)


def _network(config: RunConfig, weights: Path | None) -> nn.Module:
    """The run's model with its weights, or with a random initialization."""
    torch.manual_seed(mix_seed(config.seed))
    options = {"in_chans": config.in_chans, "img_size": config.img_size, "model_kwargs": config.model_kwargs}
    model, _ = build_model(config.model, num_classes=0, **options)  # type: ignore[arg-type]
    if weights is not None:
        load_weights(model, weights)
    if config.positions == "off":
        switch_positions_off(model)
    return model.eval()


@torch.inference_mode()
def extract(
    images: ImageSet, model: nn.Module | None, config: RunConfig, device: torch.device
) -> tuple[list[Tensor], Tensor]:
    """Features ``(N, features)``, of each block where there is a choice, and labels ``(N,)``.

    Without a model, the pixels themselves.
    """
    assert config.img_size is not None
    if model is None:
        mean, std = [0.5] * config.in_chans, [0.5] * config.in_chans
    else:
        mean, std = data_statistics(model, config.in_chans)
        model = model.to(device)
    preprocess = Preprocess(config.img_size, crop_pct=config.crop_pct or 1.0, mean=mean, std=std)
    dataset = EvaluationSet(Lazy(images, True, Fit(preprocess)), preprocess, channels=config.in_chans)
    found: list[list[Tensor]] = []
    labels = []
    for batch, named in evaluation_loader(dataset, batch_size=256, workers=0, device=str(device)):
        features = [batch] if model is None else _features(model, batch.to(device), config)
        found.append([of_layer.float().cpu().flatten(1) for of_layer in features])
        labels.append(named)
    return [torch.cat(of_layer) for of_layer in zip(*found, strict=True)], torch.cat(labels)


def centred(known: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Features minus the mean of the training features, normalized to unit length."""
    mean = known.mean(0)
    return F.normalize(known - mean, dim=1), F.normalize(queries - mean, dim=1)


def _features(model: nn.Module, images: Tensor, config: RunConfig) -> list[Tensor]:
    """What the classifier sees; in pre-training, whose tasks leave a class token untrained, each block's mean token."""
    if job_class(config).labelled:
        return [pooled_features(model, images)]
    backbone = TimmBackbone(model, img_size=config.img_size, in_chans=config.in_chans)
    found: Features = backbone(View(images), Needs(every_grid=True))
    return [grid.tokens.mean((2, 3)) for grid in found.every]


def knn_accuracy(known: Tensor, labels: Tensor, queries: Tensor, answers: Tensor, neighbours: int) -> float:
    """k-NN accuracy in percent: votes of the nearest labelled features, weighted by similarity."""
    neighbours = min(neighbours, len(known))
    classes = int(max(labels.max(), answers.max())) + 1
    right = 0
    for batch, truth in zip(queries.split(1024), answers.split(1024), strict=True):
        likeness, places = (batch @ known.T).topk(neighbours)
        votes = torch.zeros(len(batch), classes).scatter_add_(1, labels[places], torch.exp(likeness / 0.07))
        right += int((votes.argmax(1) == truth).sum())
    return 100 * right / len(queries)


def linear_accuracy(known: Tensor, labels: Tensor, queries: Tensor, answers: Tensor) -> float:
    """Accuracy in percent of a logistic regression; its strength is chosen on a fifth of the known features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(known.numpy())
    inputs, outputs = scaler.transform(known.numpy()), labels.numpy()

    def fitted(strength: float, rows: Any) -> Any:
        return LogisticRegression(C=strength, max_iter=200, tol=1e-3).fit(inputs[rows], outputs[rows])

    order = np.random.default_rng(0).permutation(len(inputs))
    held, rest = order[: len(order) // 5], order[len(order) // 5 :]
    strength = 0.01
    if len(held) >= 10 and len(set(outputs[rest])) > 1:
        strengths = (0.001, 0.01, 0.1)
        strength = max(strengths, key=lambda each: fitted(each, rest).score(inputs[held], outputs[held]))
    if len(set(outputs)) < 2:
        return 100 * float((answers == labels[0]).float().mean())
    return 100 * float(fitted(strength, order).score(scaler.transform(queries.numpy()), answers.numpy()))
