"""Images of a run from its settings: source, splits, cache, augmentation, class weights."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

from vitlet.config import RunConfig
from vitlet.data.augment import BATCHED_CROP_SIDE, Augmentation, Crop
from vitlet.data.images import Dataset, ImageSet
from vitlet.data.named import OFFICIAL
from vitlet.data.preprocess import Preprocess
from vitlet.data.randaugment import RandAugment
from vitlet.data.shards import ShardStream
from vitlet.data.sources import Request
from vitlet.data.store import Fit, Shrink, Stored, Storing, Transform, default_cache_folder, keep_images, readable
from vitlet.errors import VitletError

PADDED_CROP_SIDE = 64
"""Up to this many pixels a side, crop ``auto`` moves images by a few pixels instead of cutting parts out."""


def data_request(config: RunConfig) -> Request:
    """Data request of a run, from its settings of the same names."""
    return Request(**{each.name: getattr(config, each.name) for each in fields(Request)})


def other_request(config: RunConfig, data: str, data_dir: str | None) -> Request:
    """Data request for another source with the splits and the data folder of a finished run."""
    if data_dir is None and data in OFFICIAL:
        data_dir = config.data_dir
    return Request(data, data_dir=data_dir, val_fraction=config.val_fraction, seed=config.seed)


def readable_part(config: RunConfig, images: ImageSet) -> ImageSet:
    """Readable images, if the run skips unreadable ones."""
    if not config.skip_unreadable:
        return images
    return readable(images, Storing(config.in_chans, skip_unreadable=True))[0]


def choose_crop(config: RunConfig) -> Crop:
    """The kind of crop that training uses."""
    assert config.img_size is not None
    if config.crop == "auto" or config.crop is None:
        return "padded" if max(config.img_size) <= PADDED_CROP_SIDE else "resized"
    return config.crop


def make_augmentation(config: RunConfig) -> Augmentation:
    """The augmentation of a resolved run."""
    assert config.img_size is not None
    return Augmentation(
        crop=choose_crop(config),
        scale=config.scale or 1.0,
        padding=min(4, max(1, min(config.img_size) // 8)),
        hflip=config.hflip or 0.0,
        rand=RandAugment.parse(config.aa or "off"),
        color_jitter=config.color_jitter or 0.0,
        grayscale_prob=config.grayscale_prob or 0.0,
        reprob=config.reprob or 0.0,
    )


def decode_once(config: RunConfig, dataset: Dataset, preprocess: Preprocess, decoded: dict[str, Dataset]) -> Dataset:
    """Like `decode_splits`, with a cache of the decoded dataset."""
    ways = [_training_transform(config, preprocess).key(), Fit(preprocess).key(), str(config.in_chans)]
    key = "; ".join([*ways, f"cache {config.cache}", f"skip {config.skip_unreadable}"])
    if key not in decoded:
        decoded[key] = decode_splits(config, dataset, preprocess)
    return decoded[key]


def decode_splits(config: RunConfig, dataset: Dataset, preprocess: Preprocess) -> Dataset:
    """Decode every image once and keep it, in memory or in the cache; a broken file stops here, or is counted."""
    folder = Path(config.cache_dir) if config.cache_dir else default_cache_folder()
    storing = Storing(
        config.in_chans, folder if config.cache == "auto" else None, skip_unreadable=config.skip_unreadable
    )
    training = _training_transform(config, preprocess)
    stored = {}
    for split, images in dataset.splits().items():
        transform = training if split == "train" else Fit(preprocess)
        streamed = isinstance(images, ShardStream)
        stored[split] = Stored(images) if streamed else keep_images(images, transform, storing)
    skipped = [reason for part in stored.values() for reason in part.skipped]
    note = dataset.note
    if skipped:
        note += f"; files left out because they could not be read: {len(skipped)}, the first: {skipped[0]}"
    kept = {split: part.images for split, part in stored.items()}
    return replace(dataset, train=kept["train"], val=kept.get("val"), test=kept.get("test"), note=note)


def _training_transform(config: RunConfig, preprocess: Preprocess) -> Transform:
    """Transform of stored training images: small ones get one size, so that a batch is cropped by one call."""
    size = preprocess.size
    if config.head == "logistic":
        return Fit(preprocess)  # what evaluation sees
    if choose_crop(config) == "resized":
        if max(size) > BATCHED_CROP_SIDE:
            return Shrink(-(-max(size) * 8 // 7))  # 256 for 224
        size = (size[0] * 3 // 2, size[1] * 3 // 2)  # room for crops of less than half the area
    return Fit(Preprocess(size, crop_pct=1.0, mean=preprocess.mean, std=preprocess.std))


def class_weights(config: RunConfig, dataset: Dataset, num_classes: int) -> Tensor | None:
    """Weights of the classes in the loss: as given, or inversely to how many training images each has."""
    if config.balance != "weights":
        return None
    if config.class_weights is not None:
        try:
            weights = torch.tensor([float(word) for word in config.class_weights.split(",")])
        except ValueError:
            weights = torch.empty(0)
        if len(weights) != num_classes or not (weights >= 0).all():
            raise VitletError(
                f"class_weights are {config.class_weights!r}; needed are {num_classes} numbers of 0 or more,"
                f" separated by commas, in the order {', '.join(dataset.classes[:5])}..."
            )
        return weights
    counts = torch.bincount(torch.tensor(dataset.train.labels), minlength=num_classes)
    return torch.where(counts > 0, counts.sum() / ((counts > 0).sum() * counts.clamp(min=1)), 0.0)
