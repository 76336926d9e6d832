"""WebDataset shards: written, indexed, streamed from disk and over http, with keyed order and augmentation."""

from __future__ import annotations

import gzip
import http.server
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import faults
from vitlet.config import RunConfig
from vitlet.data.augment import Augmentation, Augmenter
from vitlet.data.images import Arrays, Dataset, Subset
from vitlet.data.preprocess import Preprocess
from vitlet.data.shards import ShardBatches, ShardStream, read_shards, stream, write_shards
from vitlet.data.sources import Request, load_dataset, load_unlabelled
from vitlet.errors import VitletError
from vitlet.training.loop import train


@pytest.fixture
def shards(shared_folder: Path, tmp_path: Path) -> Path:
    write_shards(load_dataset(Request(str(shared_folder))), tmp_path / "shards", per_shard=5)
    return tmp_path / "shards"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address(shards: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(shards.parent)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/shards/"
    server.shutdown()
    thread.join()
    server.server_close()


def stream_of(shards: str, **options: Any) -> ShardBatches:
    dataset = read_shards(shards)
    assert isinstance(dataset.train, ShardStream)
    preprocess = Preprocess((16, 16), crop_pct=1.0, mean=[0.5] * 3, std=[0.5] * 3)
    augment = Augmenter(Augmentation(scale=0.5), preprocess)
    return ShardBatches(dataset.train, augment, classes=3, channels=3, seed=0, **options)


def batches(
    shards: str, *, epoch: int = 0, workers: int = 0, batch_size: int = 4
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = stream_of(shards, batch_size=batch_size)
    made.epoch = epoch
    return list(made.loader(workers=workers, device="cpu"))


def test_shards_hold_the_same_images(shared_folder: Path, shards: Path) -> None:
    plain, packed = load_dataset(Request(str(shared_folder))), load_dataset(Request(str(shards)))
    assert packed.classes == plain.classes
    assert len(packed.train) == 24
    for split in ("val", "test"):
        one, other = plain.splits()[split], packed.splits()[split]
        assert list(one.labels) == list(other.labels)
        assert all(torch.equal(one.image(i, 3), other.image(i, 3)) for i in range(len(one)))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_arrays_become_images_that_are_read_back(channels: int, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 5, 7, channels), np.uint8)
    arrays = Arrays.of(pixels, [0, 1] * 3)
    part = Subset(arrays, (4, 1))
    write_shards(Dataset(("a", "b"), arrays, part, None, ""), tmp_path / "shards")
    val = read_shards(str(tmp_path / "shards")).val
    assert val is not None
    assert all(torch.equal(val.image(index, channels), part.image(index, channels)) for index in range(2))
    assert len(list(stream([str(tmp_path / "shards" / "train-000000.tar")], 2))) == 6


@pytest.mark.parametrize("kind", ["gzip", "sparse", "truncated"])
def test_shards_that_would_grow_are_refused(kind: str, shards: Path) -> None:
    shard = sorted(shards.glob("val-*.tar"))[0]
    if kind == "gzip":
        shard.write_bytes(gzip.compress(shard.read_bytes()))
    elif kind == "truncated":
        shard.write_bytes(shard.read_bytes()[:700])
    else:
        header = tarfile.TarInfo("a.png")
        header.type = tarfile.GNUTYPE_SPARSE
        shard.write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(VitletError, match=r"cannot read the shards .*uncompressed tar files are required"):
        read_shards(str(shards))


def test_a_stream_is_whole_and_keyed(shards: Path, address: str) -> None:
    first = batches(str(shards))
    assert len(first) == 6
    labels = torch.cat([labels for _, labels in first])
    assert labels.bincount().tolist() == [8, 8, 8]
    assert labels.tolist() != sorted(labels.tolist())
    again, remote, other = batches(str(shards)), batches(address), batches(str(shards), epoch=1)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, remote, strict=True))
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(first, other, strict=True))


def test_workers_share_the_shards(shards: Path) -> None:
    by_two = batches(str(shards), workers=2, batch_size=2)
    single = batches(str(shards), workers=0, batch_size=2)
    assert 9 <= len(by_two) <= 12

    def pictures(found: list[tuple[torch.Tensor, torch.Tensor]]) -> set[float]:
        return {round(float(image.double().sum()), 4) for images, _ in found for image in images}

    assert pictures(by_two) <= pictures(single)  # an image's augmentation does not depend on who loads it


def test_training_on_a_stream(shards: Path, tmp_path: Path) -> None:
    settings = RunConfig(
        data=str(shards),
        model_kwargs={"patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2},
        img_size=(16, 16),
        epochs=2,
        batch_size=8,
        device="cpu",
        output=str(tmp_path / "run"),
    )
    result = train(settings)
    assert result.test is not None
    assert "streamed" in result.note


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_stream_ends_with_the_same_bits(processes: int, shards: Path, tmp_path: Path) -> None:
    whole, broken = (faults.make_config(shards, tmp_path / kind) for kind in ("whole", "broken"))
    log = tmp_path / "log"
    for config, death in ((whole, None), (broken, faults.Death("step", 8, 0.0)), (broken, None)):
        started, _ = faults.start(config, processes, log, death=death)
        codes = faults.await_end(started)
        assert (-9 in codes) if death else codes == [0] * processes, log.read_text()
    assert "continued from" in log.read_text()
    assert faults.differences(tmp_path / "whole", tmp_path / "broken") == []


def test_processes_share_a_stream(shards: Path) -> None:
    seen = []
    for rank in range(2):
        order = stream_of(str(shards), batch_size=8, parts=2, mine=range(rank, rank + 1))
        seen.append([labels for _, labels in order])
        assert len(seen[-1]) == order.steps == 3
        assert all(len(labels) == 4 for labels in seen[-1])
        order.start = 2
        assert torch.equal(next(iter(order))[1], seen[-1][2])
    with pytest.raises(VitletError, match="5 training shards for 6 readers"):
        next(iter(stream_of(str(shards), batch_size=12, parts=6, mine=range(1))))


@pytest.mark.parametrize(
    ("request_", "words"),
    [({"fraction": 0.5}, "stream of shards"), ({"folds": 3}, "stream of shards")],
)
@pytest.mark.parametrize("load", [load_dataset, load_unlabelled])
def test_what_needs_labels_beforehand_is_refused(
    load: Callable[[Request], Dataset], request_: dict[str, Any], words: str, shards: Path
) -> None:
    with pytest.raises(VitletError, match=words):
        load(Request(str(shards), **request_))


@pytest.mark.parametrize("index", ["no json", "{}", '{"classes": ["a", "b"], "splits": {"val": {}}}'])
def test_a_wrong_index_is_named(index: str, tmp_path: Path) -> None:
    (tmp_path / "shards.json").write_text(index)
    with pytest.raises(VitletError, match=r"shards\.json"):
        read_shards(str(tmp_path))


@pytest.mark.parametrize("name", ["../evil.tar", "/etc/x.tar", "pipe:touch pwned.tar", "a;b.tar", "x.zip"])
def test_shard_names_cannot_lead_elsewhere(name: str, shards: Path) -> None:
    index = json.loads((shards / "shards.json").read_text())
    index["splits"]["train"][name] = 1
    (shards / "shards.json").write_text(json.dumps(index))
    with pytest.raises(VitletError, match="a plain name"):
        read_shards(str(shards))


def test_addresses_are_plain(address: str) -> None:
    for bad in ("http://127.0.0.1/$(touch x)/", "http://127.0.0.1/a;b/", "http://127.0.0.1/noslash"):
        with pytest.raises(VitletError, match="not an address of shards"):
            read_shards(bad)
    with pytest.raises(VitletError, match="cannot read the index"):
        read_shards(address + "nothing/")


def test_labels_beyond_the_classes(shards: Path) -> None:
    index = json.loads((shards / "shards.json").read_text())
    index["classes"] = ["a", "b"]
    (shards / "shards.json").write_text(json.dumps(index))
    with pytest.raises(VitletError, match="has the label 2; there are 2 classes"):
        read_shards(str(shards))
