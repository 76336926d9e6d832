"""Segmentation: masks and what can be wrong with them, mIoU against a slow loop, crops, UPerNet, whole runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from safetensors.torch import load_file

from builders.shapes import classes, write_masks
from vitlet.cli import main
from vitlet.config import TaskConfig
from vitlet.errors import VitletError
from vitlet.training.distributed import World
from vitlet.training.loop import train_job
from vitlet.training.run_folder import RunFolder
from vitlet.transfer.recipes import ADE20K_STEPS, SEGMENTATION_RECIPES
from vitlet.transfer.segmentation.job import SegmentationJob
from vitlet.transfer.segmentation.masks import IGNORED, open_masks
from vitlet.transfer.segmentation.metrics import SegmentationScores, pixel_confusion, segmentation_scores
from vitlet.transfer.segmentation.settings import SegmentConfig
from vitlet.transfer.segmentation.upernet import pixel_loss

SMALL: dict[str, Any] = {
    "backbone": "test_vit",
    "model_kwargs": {"patch_size": 8},
    "img_size": (32, 64),
    "decoder_channels": 8,
    "ignore_index": 3,
    "epochs": 2,
    "batch_size": 2,
    "lr": 1e-3,
    "device": "cpu",
}


def config(data: Path, output: Path, **changes: Any) -> SegmentConfig:
    return SegmentConfig(**{**SMALL, "data": str(data), "output": str(output), **changes})


def train(settings: SegmentConfig) -> Any:
    return train_job(settings, lambda _: SegmentationJob, title="segment")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masks(tmp_path_factory.mktemp("segmentation") / "shapes")


def save_mask(values: np.ndarray, path: Path) -> None:
    Image.fromarray(values).save(path)


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no mask": (lambda root: (root / "train/masks/1.png").unlink(), "1 files .* have no counterpart .*images/1.png"),
    "no image": (lambda root: (root / "val/images/1.png").unlink(), "1 files .* have no counterpart .*masks/1.png"),
    "size": (
        lambda root: [save_mask(np.zeros((9, 9), np.uint8), root / f"train/masks/{n}.png") for n in (0, 2)],
        "2 masks have another size than their images, the first: .*0.png has 9x9 pixels, its image 48x64",
    ),
    "value": (
        lambda root: save_mask(np.full((48, 64), 9, np.uint8), root / "train/masks/0.png"),
        "1 masks contain values that are not classes, the first: .*0.png holds 9, the classes end at 2",
    ),
    "colours": (
        lambda root: Image.new("RGB", (64, 48)).save(root / "train/masks/0.png"),
        "is stored as RGB; it needs one number per pixel",
    ),
    "broken": (lambda root: (root / "train/masks/0.png").write_bytes(b"x"), "cannot read the mask .*0.png"),
    "all ignored": (
        lambda root: [save_mask(np.full((48, 64), 3, np.uint8), path) for path in root.rglob("masks/*.png")],
        "every pixel of the masks .* is ignored",
    ),
    "names": (lambda root: (root / "classes.txt").write_text("a\nb\nc\nd\ne\nf\n"), "a class in the middle of"),
    "nothing": (
        lambda root: [(root / split).rename(root / f"x{split}") for split in ("train", "val")],
        "holds no images",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_masks_are_one_sentence(name: str, tmp_path: Path) -> None:
    root = write_masks(tmp_path / "shapes")
    make, message = FAULTS[name]
    make(root)
    with pytest.raises(VitletError, match=message) as caught:
        SegmentationJob.build(config(root, tmp_path / "run"))
    assert "\n" not in str(caught.value)


def test_masks_of_every_kind_are_read_and_counted(tmp_path: Path) -> None:
    root = write_masks(tmp_path / "shapes")
    values = classes(0)
    palette = Image.fromarray(values).convert("P")
    palette.putpalette([200, 10, 10, 10, 200, 10, 10, 10, 200, 0, 0, 0])
    palette.save(root / "train/masks/0.png")
    Image.fromarray(classes(1).astype(np.uint16)).save(root / "train/masks/1.png")
    Image.fromarray(np.full((48, 64), 3, np.uint8)).save(root / "train/masks/2.png")
    found = open_masks(root, 3)
    assert found["train"].classes == ("background", "rectangle", "disc")
    share = 100 * (3 * 4 / 64 + 1) / 4
    assert found["train"].note() == (
        f"4 images (1 palette masks, 1 16-bit masks, {share:.1f} % of the pixels ignored, 1 images ignored entirely)"
    )
    for index in (0, 1):
        expected = np.where(classes(index) == 3, IGNORED, classes(index))
        assert np.array_equal(found["train"].read(index).numpy(), expected)
    (root / "classes.txt").unlink()
    assert open_masks(root, 3)["val"].classes == ("class 0", "class 1", "class 2")


def test_the_layout_of_ade20k(tmp_path: Path) -> None:
    for split in ("training", "validation"):
        for kind in ("images", "annotations"):
            (tmp_path / kind / split).mkdir(parents=True)
        Image.new("RGB", (6, 5)).save(tmp_path / "images" / split / "ADE_1.jpg")
        save_mask(np.array([[0, 1, 150, 2, 2, 2]] * 5, np.uint8), tmp_path / "annotations" / split / "ADE_1.png")
    found = open_masks(tmp_path, 255)
    assert len(found["val"].classes) == 150
    assert found.keys() == {"train", "val"}
    assert found["train"].read(0)[0].tolist() == [IGNORED, 0, 149, 1, 1, 1]
    for kind in ("images", "annotations"):
        shutil.rmtree(tmp_path / kind / "training")
    alone = open_masks(tmp_path, 255, names=[f"thing {index}" for index in range(150)])["val"]
    assert (alone.shift, alone.classes[0]) == (1, "thing 0")
    assert open_masks(tmp_path, 255, ade=False)["val"].shift == 0


def slow(answers: list[np.ndarray], masks: list[np.ndarray], count: int) -> tuple[float, float, float]:
    """mIoU, mAcc and pixel accuracy, pixel by pixel."""
    right, truth, said = [0] * count, [0] * count, [0] * count
    for answer, mask in zip(answers, masks, strict=True):
        for guess, label in zip(answer.flat, mask.flat, strict=True):
            if label != IGNORED:
                right[label] += int(guess == label)
                truth[label] += 1
                said[guess] += 1
    unions = [truth[k] + said[k] - right[k] for k in range(count)]
    overlaps = [right[k] / unions[k] for k in range(count) if unions[k]]
    shares = [right[k] / truth[k] for k in range(count) if truth[k]]
    return (
        100 * sum(overlaps) / len(overlaps),
        100 * sum(shares) / len(shares),
        100 * sum(right) / sum(truth),
    )


def test_numbers_are_those_of_a_slow_loop() -> None:
    random = np.random.default_rng(0)
    answers = [random.integers(0, 4, (7, 9)) for _ in range(5)]
    masks = [np.where(random.random((7, 9)) < 0.2, IGNORED, random.integers(0, 3, (7, 9))) for _ in range(5)]
    pairs = [(torch.from_numpy(answer), torch.from_numpy(mask)) for answer, mask in zip(answers, masks, strict=True)]
    matrix = torch.stack([pixel_confusion(answer, mask, 6) for answer, mask in pairs]).sum(0)
    found = segmentation_scores(matrix, 5)
    assert (found.miou, found.macc, found.accuracy) == pytest.approx(slow(answers, masks, 6), abs=1e-9)
    assert found.per_class[4] is None  # neither in a mask nor in an answer
    assert found.per_class[3] == 0.0  # only in answers
    assert SegmentationScores.from_dict(found.to_dict()) == replace(found, per_class=())


def _share(rank: int, root: str, place: str) -> None:
    """One of two processes that evaluate together."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    world = World(rank, 2, rank)
    job = SegmentationJob.build(config(Path(root), Path(place) / "run", batch_size=4))
    job.model.eval()
    calls: list[int] = []
    numbers = job.predictor.measure(job.splits["val"], world, lambda: calls.append(1)).to_dict()
    Path(place, f"{rank}.json").write_text(json.dumps(numbers | {"calls": len(calls)}))
    dist.destroy_process_group()
    os._exit(0)


def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    root = write_masks(tmp_path / "shapes", images=5)
    job = SegmentationJob.build(config(root, tmp_path / "run", batch_size=4))
    job.model.eval()
    alone = job.predictor.measure(job.splits["val"], World(), lambda: None).to_dict()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_share, args=(rank, str(root), str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found.pop("calls") == 3  # as often in the process with fewer images
        assert found == alone


def test_crops_move_pixels_and_masks_together(data: Path, tmp_path: Path) -> None:
    settings = config(data, tmp_path / "run", photometric=False, short_side=48, rescale_min=1.0, rescale_max=1.0)
    job = SegmentationJob.build(settings)
    samples: Any = job.samples
    mask = torch.from_numpy(np.where(classes(0) == 3, IGNORED, classes(0)))
    keys = [0.5] * 13
    image, cropped = samples.augmented(0, [*keys[:1], 0.5, 0.0, 0.99, *keys[4:]])
    assert image.shape == (3, 32, 64)
    assert torch.equal(cropped, mask[8:40])
    turned = samples.augmented(0, [*keys[:1], 0.5, 0.0, 0.0, *keys[4:]])
    assert torch.equal(turned[0], image.flip(-1))
    assert torch.equal(turned[1], cropped.flip(-1))
    samples.config = replace(settings, rescale_min=0.5, rescale_max=0.5)  # 24 x 32: filled up
    padded, filled = samples.augmented(0, [*keys[:3], 0.99, *keys[4:]])
    assert padded.shape == (3, 32, 64)
    assert (filled[24:] == IGNORED).all()
    assert (filled[:, 32:] == IGNORED).all()
    assert (padded[:, 24:] == 0).all()
    samples.config = replace(samples.config, photometric=True)
    seen = [samples.augmented(0, torch.rand(13).tolist())[0] for _ in range(8)]
    assert all(image.isfinite().all() for image in seen)


def test_pixels_that_do_not_count_do_not_count() -> None:
    logits, masks = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randint(3, (2, 8, 8))
    masks[0] = IGNORED
    alone = pixel_loss(logits[1:], masks[1:])
    assert pixel_loss(logits, masks).item() == pytest.approx(alone.item(), rel=1e-5)
    empty = pixel_loss(logits, torch.full((2, 8, 8), IGNORED))
    empty.backward()
    assert empty.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_answers_at_several_scales_are_averaged(data: Path, tmp_path: Path) -> None:
    job = SegmentationJob.build(config(data, tmp_path / "run", test_scales="0.5,1,1.75"))
    segmenter: Any = job.predictor
    segmenter.model.eval()
    pixels = torch.randint(256, (3, 48, 50), dtype=torch.uint8)

    def answer(*scales: float, fixed: tuple[int, int] | None = None) -> torch.Tensor:
        segmenter.scales, segmenter.fixed = scales, fixed
        return segmenter.probabilities(pixels)

    assert segmenter.scales == (0.5, 1.0, 1.75)
    with torch.no_grad():
        many, each, fixed = answer(0.5, 1.75), [answer(0.5), answer(1.75)], answer(1.0, fixed=(32, 64))
    assert torch.allclose(many, (each[0] + each[1]) / 2, atol=1e-6)
    assert not torch.allclose(each[0], each[1], atol=1e-4)
    assert many.shape == fixed.shape == (3, 48, 50)
    assert torch.allclose(many.sum(0), torch.ones(48, 50), atol=1e-5)


def test_a_whole_run(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    settings = config(data, run, tasks={"drloc": TaskConfig(0.5, options={"hidden": 8})}, decay_milestones="1")
    (tmp_path / "run.yaml").write_text(settings.dump())
    assert main(["segment", "train", "-c", str(tmp_path / "run.yaml"), "--output", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "mIoU" in printed
    assert "drloc/error_cells" in printed
    assert main(["segment", "evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mIoU"] == pytest.approx(json.loads((run / "result.json").read_text())["val"]["mIoU"])
    assert found["IoU_per_class"].keys() == {"background", "rectangle", "disc"}
    picture = tmp_path / "drawn" / "0.png"
    image = str(data / "val/images/0.png")
    assert main(["segment", "predict", str(run), image, "--output", str(picture.parent)]) == 0
    with Image.open(picture) as drawn, Image.open(picture.with_name("0-mask.png")) as mask:
        factor = 4  # small images are enlarged, so that the words have room
        assert drawn.width == 2 * factor * 64 + 4  # the image itself, and beside it the classes
        assert factor * 48 < drawn.height <= factor * 48 * 4 / 3 + 6  # the names are below
        with Image.open(image) as original:
            shown = np.asarray(drawn)[: factor * 48 : factor, : factor * 64 : factor]
            assert np.array_equal(shown, np.asarray(original.convert("RGB")))
        beside = np.asarray(drawn)[: factor * 48 : factor, factor * 64 + 4 :: factor]
        assert not np.array_equal(shown, beside)
        assert mask.mode == "P"
        assert mask.size == (64, 48)
        assert np.asarray(mask).max() < 3
    own = tmp_path / "own" / "0.png"
    own.parent.mkdir()
    own.write_bytes(Path(image).read_bytes())
    assert main(["segment", "predict", str(run), str(own), "--output", str(own.parent)]) == 0
    assert own.read_bytes() == Path(image).read_bytes()
    assert {path.name for path in own.parent.iterdir()} == {"0.png", "0-2.png", "0-2-mask.png"}
    assert main(["segment", "predict", str(run), "nowhere.png"]) == 2
    assert "no such image file: nowhere.png" in capsys.readouterr().err
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert f"{found['mIoU']:.2f}" in page
    assert "drloc" in page
    alone = write_masks(tmp_path / "alone", splits=("val",))
    (alone / "classes.txt").unlink()
    for index, path in enumerate(sorted((alone / "val" / "masks").iterdir())):
        save_mask(np.where(classes(index) == 2, 0, classes(index)), path)  # no disc, the highest class
    capsys.readouterr()
    measured = []
    for _ in range(2):
        assert main(["segment", "evaluate", str(run), str(alone), "--json"]) == 0
        measured.append(json.loads(capsys.readouterr().out))
        if (alone / "val").exists():  # then as ADE20K's validation images lie, but the run's masks count from 0
            for kind, name in (("images", "images"), ("masks", "annotations")):
                (alone / name).mkdir()
                (alone / "val" / kind).rename(alone / name / "validation")
            (alone / "val").rmdir()
    assert measured[0] == measured[1]
    assert measured[0]["data"] == f"{alone} (val)"
    assert measured[0]["IoU_per_class"].keys() == found["IoU_per_class"].keys()
    assert main(["segment", "train", str(alone), "--output", str(tmp_path / "never")]) == 2
    assert "has no training images; found val" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("job: detect train\n")
    assert main(["report", str(run), str(other)]) == 2
    assert "`vitlet detect train` and of `vitlet segment train` need separate reports" in capsys.readouterr().err


def test_resume_is_exact(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config(data, tmp_path / "whole", model_ema=True)
    train(whole)
    log = RunFolder.log

    def die(self: RunFolder, rows: list[dict[str, Any]]) -> None:
        log(self, rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "log", die)
    with pytest.raises(KeyboardInterrupt):
        train(replace(whole, output=str(tmp_path / "broken")))
    monkeypatch.setattr(RunFolder, "log", log)
    train(SegmentConfig(resume=str(tmp_path / "broken")))
    one, other = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.heavy
def test_two_processes_train_as_one_that_accumulates(tmp_path: Path) -> None:
    root = write_masks(tmp_path / "shapes", images=8)
    flags = ["--backbone", "test_vit", "--model-kwargs", "patch_size=8", "--img-size", "32x64", "--ignore-index", "3"]
    flags += ["--decoder-channels", "8", "--epochs", "1", "-b", "4", "--lr", "1e-3", "--device", "cpu"]
    import subprocess
    import sys

    command = [sys.executable, "-m", "vitlet", "segment", "train", str(root), *flags]
    one = [*command, "--grad-accum-steps", "2", "--output", str(tmp_path / "one")]
    two = [*command, "--nproc", "2", "--output", str(tmp_path / "two")]
    for words in (one, two):
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
    first, second = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("one", "two"))
    for name, tensor in first.items():
        if "running" not in name and "num_batches" not in name:  # each process keeps statistics of its own batches
            assert torch.allclose(tensor, second[name], atol=1e-5), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size": (30, 64)}, "img_size is 30x64"),
        ({"rescale_min": 3.0}, "rescale_min must be greater than 0 and at most rescale_max, got 3 and 2"),
        (
            {"test_scales": "0.5,x"},
            "test_scales must be numbers greater than 0 separated by commas, such as 8,11, got '0.5,x'",
        ),
        ({"batch_size": 1}, "each part of a step needs 2 images or more"),
        ({"auxiliary": -1.0}, "auxiliary must be at least 0, got -1"),
        ({"model_kwargs": {"patch_size": 12}, "img_size": (48, 96)}, "has no usable grid"),
    ],
)
def test_bad_settings_are_one_sentence(changes: dict[str, Any], message: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(VitletError, match=re.escape(message)):
        train(config(data, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_the_recipes_are_those_of_the_publication() -> None:
    for recipe in SEGMENTATION_RECIPES.values():
        settings = recipe()
        assert (settings.lr, settings.weight_decay, settings.batch_size) == (6e-5, 0.01, 16)
        assert (settings.img_size, settings.drop_path, settings.sched) == ((512, 512), 0.2, "linear")
        assert settings.epochs * ADE20K_STEPS - 160_000 in range(ADE20K_STEPS)
        assert (settings.warmup_epochs or 0) * ADE20K_STEPS == pytest.approx(1500)
        assert settings.test_scales == "0.5,0.75,1.0,1.25,1.5,1.75"
        assert (settings.decoder_channels, settings.auxiliary) == (512, 0.4)
        assert "not measured" in (recipe.__doc__ or "")
    from vitlet.objective.schedules import WarmupLinear

    rate = WarmupLinear(1.0, 11, 1.0, 0.2)
    assert [rate(epoch) for epoch in (0, 0.5, 1, 6, 11)] == pytest.approx([0, 0.5, 1, 0.6, 0.2])
