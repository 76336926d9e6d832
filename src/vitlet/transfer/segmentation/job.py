"""From the settings of a segmenter to everything its training needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as V

from vitlet.data.decode import read_image
from vitlet.data.preprocess import Preprocess
from vitlet.data.randomness import mix_seed
from vitlet.errors import VitletError
from vitlet.training.classifier import make_autocast
from vitlet.training.distributed import World
from vitlet.training.evaluate import nothing
from vitlet.training.loaders import Batches
from vitlet.transfer.common.backbone import Opened, open_backbone
from vitlet.transfer.common.job import TransferJob, hold_out, resolved, terms_on
from vitlet.transfer.common.loading import TrainingSamples, shared_out, training_batches
from vitlet.transfer.common.objective import Network, TransferObjective
from vitlet.transfer.common.pyramid import Levels, pad_to, padded_size
from vitlet.transfer.common.settings import numbers
from vitlet.transfer.segmentation.masks import MaskedData, MaskedSplit, open_masks
from vitlet.transfer.segmentation.metrics import SegmentationScores, pixel_confusion, scores
from vitlet.transfer.segmentation.samples import SegmentationSamples, collate, make_cropping, scaled_size
from vitlet.transfer.segmentation.settings import SegmentConfig
from vitlet.transfer.segmentation.upernet import SegmentationHead


@dataclass(frozen=True)
class Segmenting:
    """How whole images are segmented.

    Attributes:
        base: shorter side at scale 1.
        scales: whose answers are averaged.
        divisor: sides are padded to multiples of it.
        fixed: the one image size that the network takes, if there is one: images are fitted into it.
        normalize: from pixels to what the network expects.
    """

    base: int
    scales: tuple[float, ...]
    divisor: int
    fixed: tuple[int, int] | None
    normalize: Preprocess

    def __call__(self, network: Network, pixels: Tensor) -> Tensor:
        """uint8 ``(3, h, w)`` -> probabilities ``(classes, h, w)``."""
        total: Tensor | None = None
        for scale in self.scales:
            height, width = pixels.shape[1], pixels.shape[2]
            size = scaled_size(height, width, self.base * scale)
            if self.fixed is not None:
                factor = min(self.fixed[0] / height, self.fixed[1] / width)
                size = (max(1, int(height * factor)), max(1, int(width * factor)))
            image = self.normalize.normalize(V.resize(pixels, list(size), antialias=True))
            image = pad_to(image, self.fixed or padded_size(*size, self.divisor))
            batch = image[None].to(next(network.parameters()).device)
            logits = network(batch, [size])[0][None].float()
            found = F.interpolate(logits, (height, width), mode="bilinear", align_corners=False)[0].softmax(0)
            total = found if total is None else total + found
        assert total is not None
        return total / len(self.scales)


def prepare_segmentation(config: SegmentConfig, world: World) -> tuple[TransferJob, Batches]:
    """Find the data, build the network, resolve the settings; nothing is written yet."""
    config, device = resolved(config)
    if config.batch_size // (world.size * config.grad_accum_steps) < 2:
        raise VitletError("the decoder normalises over a batch: each part of a step needs 2 images or more. Raise -b.")
    data = open_masks(Path(config.data), config.ignore_index)
    if "train" not in data.splits:
        raise VitletError(f"{config.data} has no training images; found {', '.join(data.splits)}.")
    data = with_validation(data, config)
    torch.manual_seed(mix_seed(config.seed))
    opened = open_backbone(config, config.crop_size)
    levels = Levels(opened)
    check_crop(config, levels)
    head = make_head(config, levels, len(data.classes))
    terms = terms_on(opened, config, config.crop_size)
    objective = TransferObjective(opened.backbone, head, terms).to(device)
    network = Network(opened.backbone, head)
    mean, std = opened.statistics()
    normalize = Preprocess(config.crop_size, crop_pct=1.0, mean=mean, std=std)
    segmenting = make_segmenting(config, levels.divisor, opened.fixed, normalize)
    images = SegmentationSamples(data, data.splits["train"].pairs, make_cropping(config, normalize))
    samples = TrainingSamples(images, SegmentationSamples.KEYS, config.seed, collate)
    job = TransferJob(
        config,
        objective,
        network,
        device,
        describe(opened, levels.divisor, data.classes, data.shift),
        (opened.note,) if opened.note else (),
        data.classes,
        "; ".join(f"{name}: {split.note()}" for name, split in data.splits.items()),
        samples,
        {
            name: partial(_evaluation, network, segmenting, data, split, make_autocast(config, device))
            for name, split in data.splits.items()
            if name != "train"
        },
    )
    return job, training_batches(config, samples, world, device)


def _evaluation(
    network: Network,
    segmenting: Segmenting,
    data: MaskedData,
    split: MaskedSplit,
    autocast: Callable[[], AbstractContextManager[Any]],
    world: World,
    between: Callable[[], None],
) -> SegmentationScores:
    """The numbers of a split, as the loop asks for them."""
    with autocast():
        return evaluate_segmenter(network, segmenting, data, split, world=world, between=between)


def with_validation(data: MaskedData, config: SegmentConfig) -> MaskedData:
    """With images held out where no validation images are."""
    train = data.splits["train"]
    if "val" in data.splits or config.val_fraction == 0:
        return data
    kept, held = hold_out(train.pairs, config.val_fraction, config.seed)
    parts = {"train": MaskedSplit(tuple(kept), train.counts), "val": MaskedSplit(tuple(held))}
    return MaskedData({**data.splits, **parts}, data.classes, data.shift, data.ignore)


def check_crop(config: SegmentConfig, levels: Levels) -> None:
    """Refuse crops that the strides do not divide."""
    if any(side % levels.divisor for side in config.crop_size):
        height, width = config.crop_size
        raise VitletError(
            f"img_size is {height}x{width}; the coarsest map of this backbone has a stride of {levels.divisor}, which"
            " needs to divide both sides."
        )


def make_head(config: SegmentConfig, levels: Levels, classes: int) -> SegmentationHead:
    """The segmenter's head as the settings say."""
    return SegmentationHead(levels, classes, channels=config.decoder_channels, auxiliary=config.auxiliary)


def make_segmenting(
    config: SegmentConfig, divisor: int, fixed: tuple[int, int] | None, normalize: Preprocess
) -> Segmenting:
    """How whole images are segmented, as the settings say."""
    return Segmenting(config.base, numbers("test_scales", config.test_scales), divisor, fixed, normalize)


def describe(opened: Opened, divisor: int, classes: Sequence[str], shift: int) -> str:
    """What beside the weights and the settings it takes to use the segmenter."""
    mean, std = opened.statistics()
    described = {
        "job": SegmentConfig.JOB,
        "architecture": opened.architecture,
        "model_args": dict(opened.arguments),
        "fixed": opened.fixed,
        "divisor": divisor,
        "mean": mean,
        "std": std,
        "classes": list(classes),
        "shift": shift,
    }
    return json.dumps(described, indent=2, ensure_ascii=False)


@torch.inference_mode()
def evaluate_segmenter(
    network: Network,
    segmenting: Segmenting,
    data: MaskedData,
    split: MaskedSplit,
    *,
    world: World = World(),
    between: Callable[[], None] = nothing,
) -> SegmentationScores:
    """Exact over all pixels; each image goes through the network by itself, at its own size."""
    classes = len(data.classes)
    matrix = torch.zeros(classes, classes, dtype=torch.long)
    for index in shared_out(len(split.pairs), world, between):
        pair = split.pairs[index]
        answer = segmenting(network, read_image(pair.image, 3)).argmax(0).cpu()
        matrix += pixel_confusion(answer, data.read(pair), classes)
    return scores(world.sums(matrix), len(split.pairs))
