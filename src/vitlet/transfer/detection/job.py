"""From the settings of a detector to everything its training needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import mix_seed
from vitlet.errors import VitletError
from vitlet.training.distributed import World
from vitlet.training.evaluate import nothing
from vitlet.training.loaders import Batches
from vitlet.training.optim import make_autocast
from vitlet.transfer.common.backbone import Opened, open_backbone
from vitlet.transfer.common.extras import require
from vitlet.transfer.common.job import TransferJob, hold_out, resolved, terms_on
from vitlet.transfer.common.loading import TrainingSamples, shared_out, training_batches
from vitlet.transfer.common.objective import Network, TransferObjective
from vitlet.transfer.common.pyramid import Levels, padded_size
from vitlet.transfer.detection.coco import CocoImage, CocoSplit, open_coco
from vitlet.transfer.detection.detector import DetectionHead
from vitlet.transfer.detection.metrics import DetectionScores, average_precision, detections
from vitlet.transfer.detection.samples import DetectionSamples, Resizing, evaluation_image, make_sides
from vitlet.transfer.detection.settings import DetectConfig

Categories = Sequence[tuple[int, str]]


def prepare_detection(config: DetectConfig, world: World) -> tuple[TransferJob, Batches]:
    """Find the data, build the network, resolve the settings; nothing is written yet."""
    require("faster_coco_eval", "detection")
    config, device = resolved(config)
    splits = open_coco(Path(config.data))
    if "train" not in splits:
        found = ", ".join(str(split.file) for split in splits.values())
        raise VitletError(f"{config.data} has no training annotations; found {found}.")
    splits = with_validation(splits, config)
    train = splits["train"]
    if not any(image.trained for image in train.images):
        raise VitletError(f"{train.file} holds no objects to learn from.")
    masks = train.masks
    torch.manual_seed(mix_seed(config.seed))
    canvas = canvas_of(config)
    opened = open_backbone(config, canvas)
    levels = Levels(opened)
    head = make_head(config, levels, len(train.categories), masks=masks)
    terms = terms_on(opened, config, canvas)
    objective = TransferObjective(opened.backbone, head, terms).to(device)
    network = Network(opened.backbone, head)
    mean, std = opened.statistics()
    fixed = canvas if terms else opened.fixed
    resizing = make_resizing(config, levels.divisor, fixed, mean, std)
    dataset = DetectionSamples(train.images, resizing, masks=masks, hflip=config.hflip or 0.0)
    samples = TrainingSamples(dataset, DetectionSamples.KEYS, config.seed, resizing.collate)
    job = TransferJob(
        config,
        objective,
        network,
        device,
        describe(opened, levels.divisor, fixed, train.categories, masks=masks),
        _notes(opened, train, terms=bool(terms), canvas=canvas),
        [name for _, name in train.categories],
        "; ".join(f"{name}: {split.note()}" for name, split in splits.items()),
        samples,
        {
            name: partial(_evaluation, network, resizing, split, make_autocast(config, device), masks)
            for name, split in splits.items()
            if name != "train"
        },
    )
    return job, training_batches(config, samples, world, device)


def _evaluation(
    network: Network,
    resizing: Resizing,
    split: CocoSplit,
    autocast: Callable[[], AbstractContextManager[Any]],
    masks: bool,
    world: World,
    between: Callable[[], None],
) -> DetectionScores:
    """The numbers of a split, as the loop asks for them."""
    with autocast():
        return evaluate_detector(
            network, resizing, split.images, split.categories, masks=masks, world=world, between=between
        )


def with_validation(splits: dict[str, CocoSplit], config: DetectConfig) -> dict[str, CocoSplit]:
    """With images held out where no validation images are."""
    train = splits["train"]
    if "val" in splits or config.val_fraction == 0:
        return splits
    kept, held = hold_out(train.images, config.val_fraction, config.seed)
    return {**splits, "train": train.part(kept), "val": train.part(held)}


def _notes(opened: Opened, train: CocoSplit, *, terms: bool, canvas: tuple[int, int]) -> tuple[str, ...]:
    notes = [opened.note] if opened.note else []
    if not train.masks:
        missing = train.counts["objects without a mask"]
        notes.append(f"boxes alone: {missing} objects have no mask")
    if terms or opened.fixed:
        why = "tasks need one grid" if terms else f"{opened.architecture} takes one image size"
        notes.append(f"images are padded to {canvas[0]}x{canvas[1]} pixels: {why}")
    return tuple(notes)


def canvas_of(config: DetectConfig) -> tuple[int, int]:
    """The size that holds every image."""
    return padded_size(config.long_side, config.long_side, 32)


def make_head(config: DetectConfig, levels: Levels, classes: int, *, masks: bool) -> DetectionHead:
    """The detector's head as the settings say."""
    stages: Literal["last", "all"] | None = config.cascade_masks if masks else None
    return DetectionHead(
        levels, classes, kind=config.head, masks=stages, channels=config.head_width, width=config.box_width
    )


def make_resizing(
    config: DetectConfig, divisor: int, canvas: tuple[int, int] | None, mean: Sequence[float], std: Sequence[float]
) -> Resizing:
    """How images come to the network."""
    normalize = Preprocess((1, 1), crop_pct=1.0, mean=mean, std=std)
    return Resizing(make_sides(config.min_side, config.max_side), config.long_side, divisor, canvas, normalize)


def describe(
    opened: Opened, divisor: int, canvas: tuple[int, int] | None, categories: Categories, *, masks: bool
) -> str:
    """What beside the weights and the settings it takes to use the detector."""
    mean, std = opened.statistics()
    return json.dumps(
        {
            "job": DetectConfig.JOB,
            "architecture": opened.architecture,
            "model_args": dict(opened.arguments),
            "fixed": opened.fixed,
            "canvas": canvas,
            "divisor": divisor,
            "mean": mean,
            "std": std,
            "categories": list(categories),
            "masks": masks,
        },
        indent=2,
        ensure_ascii=False,
    )


def detect(network: Network, resizing: Resizing, path: Path) -> Mapping[str, Tensor]:
    """What is found in one file, in its own pixels."""
    batch, size, original = evaluation_image(path, resizing)
    device = next(network.parameters()).device
    head: Any = network.head
    found: Mapping[str, Tensor] = head.at_size(network(batch.to(device), [size])[0], size, original)
    return found


@torch.inference_mode()
def evaluate_detector(
    network: Network,
    resizing: Resizing,
    images: Sequence[CocoImage],
    categories: Categories,
    *,
    masks: bool,
    world: World = World(),
    between: Callable[[], None] = nothing,
) -> DetectionScores:
    """COCO's numbers; each image goes through the network by itself, so that they do not depend on the batch."""
    numbers = [number for number, _ in categories]
    mine = [
        (index, detections(images[index], detect(network, resizing, images[index].path), numbers))
        for index in shared_out(len(images), world, between)
    ]
    everyone = sorted((pair for process in world.gather(mine) for pair in process), key=lambda pair: pair[0])
    results = [each for _, found in everyone for each in found]
    return average_precision(images, categories, results, masks=masks)
