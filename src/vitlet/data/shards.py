"""WebDataset shards: training images streamed from tar files, for sets larger than a node's disk.

A set of shards is a folder, or an http(s) address that ends in a slash, with tar files and an index ``shards.json``:
``{"classes": [...], "splits": {"train": {"train-000000.tar": 1000, ...}, "val": {...}}}``. `write_shards` makes one.
Each sample is an image file and a ``.cls`` file with its label, as the webdataset library reads them.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from vitlet.data.archives import MAX_MEMBER, HostileMemberError, checked_members
from vitlet.data.augment import Augmenter
from vitlet.data.decode import IMAGE_SUFFIXES, decode_image
from vitlet.data.images import Arrays, Dataset, Derived, EncodedImages, ImageSet
from vitlet.data.loading import begin_worker
from vitlet.data.randomness import keyed_uniforms, mix_seed
from vitlet.errors import VitletError, first_line, require_extra

INDEX = "shards.json"
BUFFER = 2048
"""Samples among which a stream is shuffled."""

Sample = tuple[str, bytes, int]  # key, encoded image, label


@dataclass(frozen=True)
class EncodedSamples(EncodedImages):
    """Encoded images in memory."""

    samples: tuple[Sample, ...]
    labels: tuple[int, ...]

    def content(self, index: int) -> bytes:
        return self.samples[index][1]

    def name(self, index: int) -> str:
        return self.samples[index][0]

    def key(self, index: int) -> str:
        return self.samples[index][0]


@dataclass(frozen=True)
class ShardStream:
    """Training images that are only ever met one after another."""

    source: str
    urls: tuple[str, ...]
    count: int
    one_size: bool = False

    def __len__(self) -> int:
        return self.count

    @property
    def labels(self) -> Sequence[int]:
        """Not known before they were all read."""
        raise VitletError(
            f"{self.source} is a stream of shards, whose labels are not known beforehand: fractions, folds, balanced"
            " classes and a held-out validation part are not available. Give val shards, and leave those settings out."
        )

    def image(self, index: int, channels: int) -> Tensor:
        raise VitletError(f"{self.source} is a stream of shards: its images have no number.")

    def content(self, index: int) -> bytes:
        raise VitletError(f"{self.source} is a stream of shards: its images have no number.")

    def name(self, index: int) -> str:
        return f"{self.source}, sample {index}"

    def key(self, index: int) -> str:
        return str(index)


def is_shards(data: str) -> bool:
    """Whether this is a folder or an address with an index of shards."""
    return data.startswith(("http://", "https://")) or (Path(data) / INDEX).is_file()


def read_shards(data: str) -> Dataset:
    """The splits of a set of shards: training images as a stream, the others in memory."""
    remote = data.startswith(("http://", "https://"))
    if remote and not re.fullmatch(r"https?://[\w.:-]+/[\w./%+~-]*/", data):
        raise VitletError(f"{data} is not an address of shards: plain letters, digits and ./_-%+~, ending in a slash.")
    try:
        text = urlopen(data + INDEX, timeout=30).read() if remote else (Path(data) / INDEX).read_bytes()
        index = json.loads(text)
        classes = tuple(str(name) for name in index["classes"])
        splits = {str(split): {str(n): int(c) for n, c in files.items()} for split, files in index["splits"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise VitletError(f"cannot read the index {INDEX} of {data}: {first_line(problem)}.") from problem
    for name in (name for files in splits.values() for name in files):
        if not re.fullmatch(r"[\w-][\w.-]*\.tar", name):
            raise VitletError(f"{data}{INDEX} names the shard {name!r}; a plain name that ends in .tar is needed.")
    if "train" not in splits or len(classes) < 2:
        raise VitletError(f"{data}{INDEX} needs train shards and at least two classes.")
    base = data if remote else f"{Path(data).resolve()}/"
    urls = {split: tuple(base + name for name in files) for split, files in splits.items()}
    sets: dict[str, ImageSet] = {"train": ShardStream(data, urls["train"], sum(splits["train"].values()))}
    for split in ("val", "test"):
        if split in urls:
            samples = tuple(stream(urls[split], len(classes)))
            sets[split] = EncodedSamples(samples, tuple(label for _, _, label in samples))
    note = f"{len(urls['train'])} shards of {data}, streamed"
    return Dataset(classes, sets["train"], sets.get("val"), sets.get("test"), note)


def stream(urls: Sequence[str], classes: int) -> Iterator[Sample]:
    """All samples of these shards, in order."""
    webdataset = require_extra("webdataset", "shards", "streaming shards")
    try:
        for sample in webdataset.tariterators.group_by_keys(_files(urls, webdataset.gopen)):
            kind = next((suffix[1:] for suffix in IMAGE_SUFFIXES if suffix[1:] in sample), None)
            if kind is None or "cls" not in sample:
                raise VitletError(
                    f"the sample {sample['__key__']} of {sample['__url__']} needs an image and a .cls file."
                )
            label = int(sample["cls"])
            if not 0 <= label < classes:
                raise VitletError(f"the sample {sample['__key__']} has the label {label}; there are {classes} classes.")
            yield str(sample["__key__"]), sample[kind], label
    except VitletError:
        raise
    except Exception as problem:  # damaged shards fail in many ways
        raise VitletError(
            f"cannot read the shards {urls[0]} ...: {first_line(problem)}; uncompressed tar files are required."
        ) from problem


def _files(urls: Sequence[str], gopen: Any) -> Iterator[dict[str, Any]]:
    """The files of shards as webdataset groups them; it would unpack compressed and sparse ones without a limit."""
    for url in urls:
        with gopen(url) as opened, tarfile.open(fileobj=opened, mode="r|") as tar:
            for path, size, info in checked_members(tar):
                if size > MAX_MEMBER:
                    raise HostileMemberError(f"{info.name!r} has {size:,} bytes")
                content = tar.extractfile(info)
                if content is not None and not path.name.startswith("__"):
                    yield {"fname": info.name, "data": content.read(), "__url__": url}
                tar.members = []  # type: ignore[attr-defined]  # tarfile keeps them all
        yield {}  # the end of a shard


class ShardBatches(IterableDataset[Any]):
    """Augmented batches of a stream; set ``epoch``, and ``start`` if some steps are done, before iterating.

    The order is a function of (seed, epoch, number of readers), the augmentation of (seed, epoch, the sample's key).
    A reader is a loading process of a process that trains; one whose shards hold too few samples starts over.
    """

    def __init__(
        self,
        stream: ShardStream,
        augment: Augmenter,
        *,
        classes: int,
        channels: int,
        batch_size: int,
        seed: int,
        parts: int = 1,
        mine: range = range(1),
    ) -> None:
        self.stream, self.augment, self.classes, self.channels = stream, augment, classes, channels
        self.batch_size, self.seed, self.epoch, self.start = min(batch_size, len(stream)) // parts * parts, seed, 0, 0
        self.parts, self.mine = parts, mine
        if not self.batch_size:
            raise VitletError(f"{stream.source} has {len(stream)} samples, too few for {parts} micro-batches.")

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return len(self.stream) // self.batch_size

    def __len__(self) -> int:
        return self.steps * len(self.mine)

    def images(self, step: int, part: int) -> list[int]:
        """Samples of a stream have no numbers."""
        return []

    def loader(self, *, workers: int, device: str) -> DataLoader[Any]:
        """Batches by this many processes, each with shards of its own."""
        begin = begin_worker if workers else None
        pinned = device.startswith("cuda")
        return DataLoader(self, batch_size=None, num_workers=workers, pin_memory=pinned, worker_init_fn=begin)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        reader, readers = self.mine.start // len(self.mine) * workers + number, self.parts // len(self.mine) * workers
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch))
        order = torch.randperm(len(self.stream.urls), generator=generator).tolist()
        urls = [self.stream.urls[index] for index in order]
        if readers > len(urls):
            raise VitletError(
                f"{self.stream.source} has {len(urls)} training shards for {readers} readers (processes times workers);"
                " write more shards, or use fewer workers."
            )
        samples = chain.from_iterable(self._shuffled(urls[reader::readers], reader) for _ in repeat(None))  # endless
        done = self.start * len(self.mine)
        for batch in range(number, len(self), workers):
            chosen = [next(samples) for _ in range(self.batch_size // self.parts)]
            if batch >= done:
                yield self._augmented(chosen)

    def _shuffled(self, urls: Sequence[str], worker: int) -> Iterator[Sample]:
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch, worker))
        buffer: list[Sample] = []
        for sample in stream(urls, self.classes):
            buffer.append(sample)
            if len(buffer) >= BUFFER:
                yield buffer.pop(int(torch.randint(len(buffer), (), generator=generator)))
        for place in torch.randperm(len(buffer), generator=generator).tolist():
            yield buffer[place]

    def _augmented(self, batch: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        images = [decode_image(content, self.channels, name=key) for key, content, _ in batch]
        numbers = [int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big") for key, _, _ in batch]
        keys = keyed_uniforms(self.augment.keys, self.seed, [self.epoch] * len(batch), numbers)
        if self.augment.recipe.crop != "resized":
            images = [self.augment.preprocess.pixels(image) for image in images]
        return self.augment(images, keys), torch.tensor([label for _, _, label in batch])


def write_shards(dataset: Dataset, folder: Path, *, per_shard: int = 1000) -> None:
    """Write a dataset as shards with their index; encoded images are copied as they are, arrays become PNG."""
    webdataset = require_extra("webdataset", "shards", "writing shards")
    folder.mkdir(parents=True, exist_ok=True)
    splits: dict[str, dict[str, int]] = {}
    for split, images in dataset.splits().items():
        files = splits[split] = {}
        for start in range(0, len(images), per_shard):
            name = f"{split}-{start // per_shard:06d}.tar"
            members = range(start, min(start + per_shard, len(images)))
            with webdataset.TarWriter(str(folder / name)) as writer:
                for index in members:
                    kind, content = _encoded(images, index)
                    sample = {"__key__": f"{split}-{index:08d}", kind: content}
                    writer.write({**sample, "cls": str(images.labels[index])})
            files[name] = len(members)
    described = {"classes": list(dataset.classes), "splits": splits}
    (folder / INDEX).write_text(json.dumps(described, ensure_ascii=False, indent=1), encoding="utf-8")


def _encoded(images: ImageSet, index: int) -> tuple[str, bytes]:
    """The ending and the bytes of an image file."""
    while isinstance(images, Derived):
        images, index = images.locate(index)
    if not isinstance(images, Arrays):
        suffix = Path(images.name(index)).suffix.lower()
        return (suffix if suffix in IMAGE_SUFFIXES else ".png")[1:], images.content(index)
    pixels = images.images[index].permute(1, 2, 0).numpy()
    if pixels.shape[2] > 4:
        raise VitletError(f"{images.name(index)} has {pixels.shape[2]} channels; image files in shards have 1 to 4.")
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return "png", file.getvalue()
