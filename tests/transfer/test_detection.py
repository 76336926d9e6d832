"""Detection: COCO's layout and what can be wrong with it, the detectors against torchvision's, AP, whole runs."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.models.detection import roi_heads, transform
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.roi_heads import RoIHeads

from builders.shapes import annotation, read_json, runs, write_coco, write_json
from vitlet.cli import main
from vitlet.config import TaskConfig
from vitlet.errors import InterruptedRunError, VitletError
from vitlet.training.distributed import World
from vitlet.training.loop import train_job
from vitlet.training.run_folder import RunFolder
from vitlet.transfer.common.backbone import build
from vitlet.transfer.common.job import TransferJob
from vitlet.transfer.common.objective import DenseModel, TransferObjective
from vitlet.transfer.common.pyramid import Levels, scaled_size
from vitlet.transfer.detection.cascade import CascadeHeads
from vitlet.transfer.detection.coco import open_coco
from vitlet.transfer.detection.detector import DetectionHead
from vitlet.transfer.detection.job import DetectionJob
from vitlet.transfer.detection.masks import as_rle, decode, encode
from vitlet.transfer.detection.metrics import DetectionScores, average_precision, detections, ground_truth
from vitlet.transfer.detection.samples import DetectionSamples, corners, make_sides
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.recipes import DETECTION_RECIPES

SMALL: dict[str, Any] = {
    "backbone": "test_resnet",
    "min_side": 32,
    "max_side": 48,
    "long_side": 64,
    "head_width": 16,
    "box_width": 32,
    "epochs": 2,
    "batch_size": 2,
    "lr": 1e-3,
    "device": "cpu",
}


def config(data: Path, output: Path, **changes: Any) -> DetectConfig:
    return DetectConfig(**{**SMALL, "data": str(data), "output": str(output), **changes})


def train(settings: DetectConfig) -> Any:
    return train_job(settings, lambda _: DetectionJob, title="detect")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coco(tmp_path_factory.mktemp("detection") / "coco")


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A fault made by changing what the training file says."""

    def make(root: Path) -> None:
        content = read_json(root)
        change(content)
        write_json(root, "train", content)

    return make


def cut_file(root: Path) -> None:
    file = root / "annotations" / "instances_train.json"
    text = json.dumps(read_json(root), indent=1)
    file.write_text(text[: text.index('"annotations"') + 40])


def other_image(root: Path) -> None:
    Image.new("RGB", (30, 20)).save(root / "train" / "1.png")


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut file": (cut_file, r"instances_train.json is not valid JSON: .* in line 3\d, column"),
    "no list": (edit(lambda c: c.pop("categories")), "needs a list 'categories'"),
    "missing images": (
        lambda root: (root / "train" / "2.png").unlink(),
        "1 of 4 images are not there, the first: .*2.png",
    ),
    "image not listed": (edit(lambda c: c["annotations"][0].update(image_id=99)), "1 annotations name images .* 99"),
    "category": (
        edit(lambda c: [a.update(category_id=80) for a in c["annotations"][:3]]),
        "3 annotations .* categories .* 80",
    ),
    "same category twice": (
        edit(lambda c: c["categories"].append({"id": 3, "name": "x"})),
        "two categories have the id 3",
    ),
    "same image twice": (edit(lambda c: c["images"].append(c["images"][0])), "two images have the id 1"),
    "box": (edit(lambda c: c["annotations"][0].update(bbox=[1, 2, "x", 3])), "annotation 1 must have a box"),
    "box not finite": (
        edit(lambda c: c["annotations"][0].update(bbox=[1, 2, float("nan"), 3])),
        "annotation 1 must have a box",
    ),
    "mask of another size": (
        edit(lambda c: c["annotations"][1].update(segmentation={"size": [9, 9], "counts": [81]})),
        r"annotation 2 has a mask of size \[9, 9\], but its image has 48x64",
    ),
    "run lengths beyond": (
        edit(lambda c: c["annotations"][1].update(segmentation={"size": [48, 64], "counts": [5, 99999999]})),
        "annotation 2 has run lengths that do not fill",
    ),
    "compressed nonsense": (
        edit(lambda c: c["annotations"][1].update(segmentation={"size": [48, 64], "counts": "\u00ff~~~"})),
        "annotation 2 has run lengths that do not fill",
    ),
    "polygon": (
        edit(lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4, 5, "x"]])),
        "annotation 1 has a polygon",
    ),
    "image's number": (edit(lambda c: c["annotations"][0].update(image_id=[1])), "1 annotations name images .*1"),
    "category's number": (edit(lambda c: c["annotations"][0].update(category_id={})), "1 annotations .* categories"),
    "huge box": (edit(lambda c: c["annotations"][0].update(bbox=[1, 2, 10**400, 3])), "annotation 1 must have a box"),
    "huge area": (
        edit(lambda c: c["annotations"][0].update(area=10**400)),
        "annotation 1 must have an area in pixels, or none, got 1000",
    ),
    "huge polygon": (
        edit(lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4, 5, 10**400]])),
        "annotation 1 has a polygon",
    ),
    "flat polygon": (
        edit(lambda c: c["annotations"][0].update(segmentation=[1, 1, 9, 1, 9, 9])),
        "annotation 1 has a segmentation that is not a list of polygons",
    ),
    "mask of no size": (
        edit(lambda c: c["annotations"][0].update(segmentation={"size": 5})),
        "annotation 1 has a mask of size 5, but its image has 48x64",
    ),
    "crowd": (edit(lambda c: c["annotations"][0].update(iscrowd="0")), "iscrowd 0 or 1, got '0'"),
    "huge image": (
        edit(lambda c: c["images"][0].update(height=2_000_000, width=2_000_000)),
        "1 images have another size than stated, the first: .*its entry 2000000x2000000",
    ),
    "huge number": (
        lambda root: (root / "annotations" / "instances_train.json").write_text('{"images": ' + "9" * 5000 + "}"),
        "cannot read .*instances_train.json: Exceeds the limit",
    ),
    "no training images": (
        lambda root: (root / "annotations" / "instances_train.json").unlink(),
        "has no training annotations; found .*instances_val.json",
    ),
    "segmentation": (edit(lambda c: c["annotations"][0].update(segmentation="all of it")), "neither polygons nor run"),
    "way out": (edit(lambda c: c["images"][0].update(file_name="../secret.png")), "points outside of the folder"),
    "image of another size": (other_image, "1 images have another size than stated, the first: .*20x30"),
    "broken image": (lambda root: (root / "train" / "0.png").write_bytes(b"no image"), "cannot read the image .*0.png"),
    "no objects": (edit(lambda c: c.update(annotations=[])), "contains no objects to learn from"),
    "other categories in val": (
        edit(lambda c: c["categories"].append({"id": 9, "name": "x"})),
        "lists other categories",
    ),
    "nothing": (lambda root: [file.unlink() for file in (root / "annotations").iterdir()], "holds no COCO annotations"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_annotations_are_one_sentence(name: str, tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco")
    make, message = FAULTS[name]
    make(root)
    with pytest.raises(VitletError, match=message) as caught:
        DetectionJob.build(config(root, tmp_path / "run"))
    assert "\n" not in str(caught.value)


def test_odd_annotations_are_counted_and_training_goes_on(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco")

    def change(content: dict[str, Any]) -> None:
        things = content["annotations"]
        things[0]["bbox"] = [5, 5, 0, 7]  # no area
        things[1]["segmentation"] = [[1, 1, 2, 2]]  # too few corners for any area
        things[2]["iscrowd"] = 1
        things[3]["bbox"] = [50.5, 40, 100, 100]  # reaches beyond the image
        content["annotations"] = things[:4]  # images 3 and 4 have no objects

    edit(change)(root)
    split = open_coco(root)["train"]
    assert [len(image.trained) for image in split.images] == [0, 1, 0, 0]
    assert split.note() == (
        "4 images with 1 objects (3 images without objects, 1 crowd regions, which only evaluation sees,"
        " 2 objects without area left out of training)"
    )
    assert sum(thing.crowd for image in split.images for thing in image.things) == 1
    boxes = corners([thing.box for thing in split.images[1].trained], (48, 64))
    assert boxes.tolist() == [[50.5, 40, 64, 48]]
    result = train(config(root, tmp_path / "run", epochs=1))
    assert "3 images without objects" in result.note


def test_boxes_without_masks_make_a_detector_without_masks(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco")
    edit(lambda content: content["annotations"][0].pop("segmentation"))(root)
    job = DetectionJob.build(config(root, tmp_path / "run", head="cascade"))
    assert "boxes only: 1 objects have no mask" in job.notes
    assert not any("mask" in name for name, _ in job.objective.named_parameters())
    job.model.eval()
    found = job.predictor.measure(job.splits["val"], World(), lambda: None).to_dict()
    assert not any(key.startswith("mask") for key in found)


def test_masks_of_every_kind_are_read_as_they_are() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        mask = (random.random((13, 9)) > random.random()).astype(np.uint8)
        whole = encode(torch.from_numpy(mask))
        kinds = [{"size": [13, 9], "counts": runs(mask)}, {"size": [13, 9], "counts": whole["counts"].decode()}]
        for kind in kinds:
            assert np.array_equal(decode(as_rle(kind, 13, 9, "here")).numpy(), mask)
    square = as_rle([[2, 1, 6, 1, 6, 4, 2, 4]], 8, 9, "here")
    expected = np.zeros((8, 9), np.uint8)
    expected[1:4, 2:6] = 1
    assert np.array_equal(decode(square).numpy(), expected)


def official(truth: dict[str, Any], results: list[dict[str, Any]], kind: str) -> list[float]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = copy.deepcopy(truth)
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(copy.deepcopy(results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(100 * each) if each >= 0 else -1.0 for each in evaluation.stats[:6]]


def test_average_precision_is_that_of_pycocotools(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco", images=6)
    content = read_json(root, "val")
    content["annotations"][4]["iscrowd"] = 1
    content["annotations"][6]["bbox"][2] = 0
    write_json(root, "val", content)
    split = open_coco(root)["val"]
    results = []
    for image in split.images:
        things = [*image.things, *image.things]  # each found twice: better and worse
        boxes = corners([thing.box for thing in things], (48, 64)) + torch.randn(len(things), 4)
        masks = torch.stack([decode(thing.segmentation) for thing in things])[:, None].float().roll(1, -1)
        labels = torch.tensor([thing.label + 1 for thing in things])
        found = {"boxes": boxes, "labels": labels, "scores": torch.rand(len(things)), "masks": masks}
        results += detections(image, found, [3, 7])
    scores = average_precision(split, results, masks=True)
    truth = ground_truth(split)
    assert 10 < scores.box["AP"] < 90
    assert list(scores.box.values()) == pytest.approx(official(truth, results, "bbox"), abs=1e-9)
    assert list(scores.mask.values()) == pytest.approx(official(truth, results, "segm"), abs=1e-9)
    assert np.mean([each for each in scores.per_class if each is not None]) == pytest.approx(scores.box["AP"])
    assert scores.box["AP_large"] == scores.box["AP_medium"] == -1  # no object is so large: left out below
    present = {name: scores.box[name] for name in ("AP", "AP50", "AP75", "AP_small")}
    read = DetectionScores.from_dict(scores.to_dict())
    assert (read.count, read.box, set(read.mask)) == (len(split.images), present, set(present))


def test_nothing_found_is_nothing_right(tmp_path: Path) -> None:
    root = write_coco(tmp_path / "coco", images=2)
    content = read_json(root, "val")
    content["annotations"] = [each for each in content["annotations"] if each["category_id"] == 7]
    write_json(root, "val", content)
    split = open_coco(root)["val"]
    scores = average_precision(split, [], masks=True)
    assert (scores.box["AP"], scores.mask["AP"], scores.per_class) == (0.0, 0.0, (None, 0.0))
    empty = replace(split, images=tuple(replace(image, things=()) for image in split.images))
    assert average_precision(empty, [], masks=False).box["AP"] == -1.0


def test_the_private_parts_of_torchvision_are_as_we_use_them() -> None:
    def arguments(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert arguments(RoIHeads.select_training_samples) == ["self", "proposals", "targets"]
    assert arguments(RoIHeads.postprocess_detections) == [
        *("self", "class_logits", "box_regression", "proposals", "image_shapes")
    ]
    assert arguments(roi_heads.fastrcnn_loss) == ["class_logits", "box_regression", "labels", "regression_targets"]
    assert arguments(roi_heads.maskrcnn_loss) == [
        "mask_logits",
        "proposals",
        "gt_masks",
        "gt_labels",
        "mask_matched_idxs",
    ]
    assert arguments(roi_heads.maskrcnn_inference) == ["x", "labels"]
    assert arguments(transform.GeneralizedRCNNTransform.postprocess)[1:] == [
        *("result", "image_shapes", "original_image_sizes")
    ]
    heads = CascadeHeads([4], 8, 16, 3, "all")
    for stage, precision in zip(heads.stages, ((10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15)), strict=True):
        assert tuple(stage.box_coder.weights) == precision
    assert [stage.proposal_matcher.high_threshold for stage in heads.stages] == [0.5, 0.6, 0.7]


def make_head(**options: Any) -> tuple[Any, DetectionHead]:
    opened = build("test_resnet", {}, (64, 64))
    return opened, DetectionHead(Levels(opened), 2, channels=16, width=32, **options)


def example(count: int = 2) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    images = torch.randn(count, 3, 64, 64)
    mask = torch.zeros(1, 60, 64, dtype=torch.uint8)
    mask[:, 10:40, 5:30] = 1
    target = {"boxes": torch.tensor([[5.0, 10, 30, 40]]), "labels": torch.tensor([1]), "masks": mask, "size": (60, 64)}
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "size": (64, 64)}
    return images, [target, {**empty, "masks": torch.zeros(0, 64, 64, dtype=torch.uint8)}]


def test_mask_rcnn_is_that_of_torchvision() -> None:
    opened, head = make_head()
    images, targets = example()
    objective = TransferObjective(opened.backbone, head).train()
    torch.manual_seed(1)
    found = objective(images, targets, {}).parts

    class Body(torch.nn.Module):
        def forward(self, batch: torch.Tensor) -> Any:
            maps = opened.backbone.model.forward_intermediates(batch, norm=False, output_fmt="NCHW")[1]
            return head.neck(maps)

    resize = transform.GeneralizedRCNNTransform(64, 64, [0.0] * 3, [1.0] * 3, fixed_size=(64, 64), _skip_resize=True)
    theirs = GeneralizedRCNN(Body(), head.rpn, head.roi_heads, resize).train()
    fill = torch.nn.functional.pad
    whole = [each | {"masks": fill(each["masks"], (0, 0, 0, 64 - each["size"][0]))} for each in targets]
    objective.zero_grad()
    sizes = [{**target, "size": (64, 64)} for target in whole]
    torch.manual_seed(1)
    ours = objective(images, sizes, {}).parts
    torch.manual_seed(1)
    for name, loss in theirs(list(images), whole).items():
        assert ours[name.removeprefix("loss_")] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert found.keys() == ours.keys()
    network = DenseModel(opened.backbone, head).eval()
    theirs.eval()
    with torch.no_grad():
        mine = network(images, [(64, 64)] * 2)
        expected = theirs(list(images))
    for one, other in zip(mine, expected, strict=True):
        assert len(one["boxes"]) > 0
        assert torch.allclose(head.at_size(one, (64, 64), (64, 64))["masks"], other["masks"], atol=1e-5)
        assert torch.allclose(one["scores"], other["scores"], atol=1e-6)


@pytest.mark.parametrize("masks", ["last", "all", None])
def test_the_cascade_learns_in_three_stages(masks: Any) -> None:
    opened, head = make_head(kind="cascade", masks=masks)
    images, targets = example()
    outcome = TransferObjective(opened.backbone, head).train()(images, targets, {})
    outcome.loss.backward()
    with_mask = {name for name in outcome.parts if name.startswith("mask")}
    assert with_mask == {"last": {"mask_3"}, "all": {"mask_1", "mask_2", "mask_3"}, None: set()}[masks]
    assert {"class_1", "class_2", "class_3", "box_1", "box_2", "box_3"} <= outcome.parts.keys()
    assert all(parameter.grad is not None for parameter in head.parameters())
    network = DenseModel(opened.backbone, head).eval()
    with torch.no_grad():
        found = network(images, [(60, 64), (64, 64)])[0]
    assert ("masks" in found) == (masks is not None)
    assert found["boxes"][:, 3].max() <= 60  # cut at the image's border, not at that of the padding


def test_scores_of_a_cascade_are_the_mean_of_its_stages() -> None:
    heads = CascadeHeads([4], 8, 16, 3, None).eval()
    maps, boxes = {"0": torch.randn(1, 8, 16, 16)}, [torch.tensor([[4.0, 4, 40, 50]])]
    shares = []
    for index, stage in enumerate(heads.stages):
        torch.nn.init.zeros_(stage.box_predictor.bbox_pred.weight)
        torch.nn.init.zeros_(stage.box_predictor.bbox_pred.bias)  # so that every stage sees the same box
        torch.nn.init.normal_(stage.box_predictor.cls_score.weight, std=0.5 * index + 0.5)
        pooled = stage.box_roi_pool(maps, boxes, [(64, 64)])
        shares.append(stage.box_predictor(stage.box_head(pooled))[0].softmax(-1))
    found = heads(maps, boxes, [(64, 64)])[0][0]
    mean = torch.stack(shares).mean(0)[0, 1:]
    kept = mean[mean > 0.05].sort(descending=True).values
    assert torch.allclose(found["scores"], kept, atol=1e-6)
    assert torch.allclose(found["boxes"], boxes[0].expand(len(kept), 4), atol=1e-4)


def test_images_come_to_the_sizes_of_multi_scale_training(data: Path) -> None:
    assert scaled_size(480, 640, 800, 1333) == (800, 1067)
    assert scaled_size(400, 1000, 800, 1333) == (533, 1333)
    assert make_sides(480, 800) == (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    job = DetectionJob.build(config(data, data / "never"))
    samples: Any = job.samples
    assert isinstance(samples, DetectionSamples)
    plain, target = samples.augmented(0, [0.99, 0.99])
    assert plain.shape[1:] == (48, 64)
    assert target["boxes"].tolist() == [list(map(float, box)) for box in corner_lists(data)]
    for box, mask in zip(target["boxes"].long().tolist(), target["masks"], strict=True):
        rows, columns = mask.nonzero().unbind(1)
        assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == box
    small, less = samples.augmented(0, [0.0, 0.99])
    assert small.shape[1:] == (32, 43)
    assert less["masks"].shape[1:] == (32, 43)
    assert torch.allclose(less["boxes"][:, 1::2], target["boxes"][:, 1::2] * 32 / 48)
    flipped, turned = samples.augmented(0, [0.99, 0.0])
    assert torch.equal(flipped, plain.flip(-1))
    assert torch.equal(turned["masks"], target["masks"].flip(-1))
    assert torch.equal(turned["boxes"][:, 0], 64 - target["boxes"][:, 2])


def corner_lists(root: Path) -> list[list[int]]:
    boxes = [each["bbox"] for each in read_json(root)["annotations"] if each["image_id"] == 1]
    return [[x, y, x + width, y + height] for x, y, width, height in boxes]


def test_a_whole_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    flags = [word for key, value in SMALL.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    assert main(["detect", "train", str(data), *flags, "--output", str(run)]) == 0
    assert "box_AP50" in capsys.readouterr().out
    assert main(["detect", "train", "--resume", str(run)]) == 0  # finished: says so and trains nothing
    assert "finished already" in capsys.readouterr().out
    assert main(["detect", "evaluate", str(run), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["box_AP"] == pytest.approx(json.loads((run / "result.json").read_text())["val"]["box_AP"])
    images = [str(data / "val" / "0.png"), str(data / "train" / "0.png")]
    assert (
        main(["detect", "predict", str(run), *images, "--score", "0", "--json", "--output", str(tmp_path / "p")]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [Path(each["picture"]).name for each in found] == ["0.png", "0-2.png"]
    for each in found:
        with Image.open(each["picture"]) as picture:
            assert picture.height > 48  # below the picture, how many are left out
        assert each["drawn"] == 30 < len(each["objects"])
    monkeypatch.setattr("vitlet.transfer.detection.predict.MOST_DRAWN", len(found[0]["objects"]))
    whole = ["detect", "predict", str(run), images[0], "--score", "0", "--output", str(tmp_path / "whole")]
    assert main(whole) == 0
    assert "drawn" not in capsys.readouterr().out
    with Image.open(tmp_path / "whole" / "0.png") as picture:
        assert picture.size == (64, 48)
    monkeypatch.setattr("vitlet.transfer.detection.predict.MOST_DRAWN", 2)
    assert main(whole) == 0
    assert f"(2 most confident of {len(found[0]['objects'])} drawn)" in capsys.readouterr().out
    own = tmp_path / "own" / "0.png"
    own.parent.mkdir()
    own.write_bytes(Path(images[0]).read_bytes())
    capsys.readouterr()
    assert main(["detect", "predict", str(run), str(own), "--output", str(own.parent)]) == 0
    assert own.read_bytes() == Path(images[0]).read_bytes()
    assert {path.name for path in own.parent.iterdir()} == {"0.png", "0-2.png"}
    for words, sentence in (
        (["--output", str(own)], "0.png cannot be a folder of pictures: it is a file"),
        (["--score", "2"], "--score must be between 0 and 1, got 2"),
        (["--score", "nan"], "--score must be between 0 and 1, got nan"),
    ):
        assert main(["detect", "predict", str(run), images[0], *words]) == 2
        assert sentence in capsys.readouterr().err
    first = found[0]["objects"][0]
    assert {"class", "score", "box", "mask"} == first.keys()
    assert first["class"] in ("rectangle", "disc")
    alone = write_coco(tmp_path / "alone", splits=("val",))
    assert main(["detect", "evaluate", str(run), str(alone), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == f"{alone} (val)"
    assert main(["predict", str(run), images[0]]) == 2
    assert "holds settings of `vitlet detect train`; needed are settings of `vitlet train`" in capsys.readouterr().err
    assert main(["detect", "evaluate", str(run), "--split", "test"]) == 2
    assert "has no test images; there are train, val" in capsys.readouterr().err
    assert main(["detect", "train", "-c", str(run / "config.yaml"), "--output", str(run)]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.parametrize("head", ["mask-rcnn", "cascade"])
def test_resume_is_exact(head: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {"drloc": TaskConfig(0.5, options={"hidden": 8, "pairs": 4})}
    whole = config(data, tmp_path / "whole", head=head, tasks=tasks)
    train(whole)
    log = RunFolder.log

    def die(self: RunFolder, rows: list[dict[str, Any]]) -> None:
        log(self, rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "log", die)
    with pytest.raises(KeyboardInterrupt):
        train(replace(whole, output=str(tmp_path / "broken")))
    monkeypatch.setattr(RunFolder, "log", log)
    train(DetectConfig(resume=str(tmp_path / "broken")))
    one, other = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "broken"))
    assert not any("drloc" in name for name in one)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def low_validation_images(root: Path) -> None:
    """Images of 20 x 64 pixels: padded to 32 x 64, they look like maps of half the stride."""
    content = read_json(root, "val")
    for image in content["images"]:
        file = root / "val" / image["file_name"]
        with Image.open(file) as picture:
            picture.crop((0, 0, 64, 20)).save(file)
        image["height"] = 20
    write_json(root, "val", {**content, "annotations": []})


@pytest.mark.parametrize("kind", ["mask-rcnn", "cascade"])
def test_objects_do_not_depend_on_the_images_before(kind: Any) -> None:
    opened, head = make_head(kind=kind)
    images = torch.randn(1, 3, 64, 64)
    shapes = [(20, 64), (64, 20), (64, 64)]
    with torch.no_grad():
        alone = [DenseModel(opened.backbone, copy.deepcopy(head)).eval()(images, [shape])[0] for shape in shapes]
        network = DenseModel(opened.backbone, head).eval()
        in_turn = [network(images, [shape])[0] for shape in shapes]
    for one, other in zip(alone, in_turn, strict=True):
        assert len(one["boxes"]) > 0
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_that_was_stopped_before_an_evaluation_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_coco(tmp_path / "coco")
    low_validation_images(root)
    train(config(root, tmp_path / "whole"))

    def stop(*given: Any) -> Any:
        raise InterruptedRunError

    with monkeypatch.context() as patch, pytest.raises(InterruptedRunError):
        patch.setattr(TransferJob, "validate", stop)
        train(config(root, tmp_path / "broken"))
    train(DetectConfig(resume=str(tmp_path / "broken")))  # the first that it does is to evaluate
    one, other = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_tasks_see_one_grid_whatever_the_images(data: Path, tmp_path: Path) -> None:
    tasks = {"drloc": TaskConfig(0.5), "position": TaskConfig(0.1)}
    job = DetectionJob.build(config(data, tmp_path / "run", tasks=tasks))
    _, loader = job.batches(World())
    for batch in loader:
        images, targets = job.inputs(batch)
        assert images.shape == (2, 3, 64, 64)
        outcome = job.objective.train()(images, targets, job.objective.weights(0.0))
        assert {"drloc", "position", "criterion", "mask"} <= outcome.parts.keys()
        main_loss = sum(outcome.parts[name] for name in ("classifier", "box_reg", "mask", "objectness", "rpn_box_reg"))
        assert outcome.parts["criterion"] == pytest.approx(float(main_loss), rel=1e-5)
        total = main_loss + 0.5 * outcome.parts["drloc"] + 0.1 * outcome.parts["position"]
        assert outcome.loss.item() == pytest.approx(float(total), rel=1e-5)
    assert any("tasks need one grid" in note for note in job.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_side": 60}, "min_side, max_side and long_side must not decrease, got 60, 48 and 64"),
        ({"cascade_masks": "all"}, "Add --head cascade"),
        ({"decay_milestones": "8;11"}, "numbers greater than 0 separated by commas"),
        ({"backbone": "no_such_net"}, "unknown model 'no_such_net'"),
        ({"backbone": "dla46_c"}, "has no forward_intermediates"),
        ({"data": "nowhere"}, "no such folder: nowhere"),
        ({"batch_size": 3, "grad_accum_steps": 2}, "batch_size (3) must be divisible by"),
    ],
)
def test_bad_settings_are_one_sentence(changes: dict[str, Any], message: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(VitletError, match=re.escape(message)):
        train(config(**{"data": data, "output": tmp_path / "run", **changes}))
    assert not (tmp_path / "run").exists()


def test_settings_of_classifiers_are_no_flags_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "train", "coco", "--mixup", "0.8"]) == 2
    assert "unknown flag --mixup" in capsys.readouterr().err
    assert main(["detect", "trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err
    settings = DetectConfig(data="coco", head="cascade", tasks={"drloc": TaskConfig(0.5)})
    assert DetectConfig.from_dict(settings.to_dict()) == settings
    assert "mixup" not in settings.to_dict()


def test_the_recipes_are_those_of_the_publication() -> None:
    for name, recipe in DETECTION_RECIPES.items():
        settings = recipe()
        assert (settings.min_side, settings.max_side, settings.long_side) == (480, 800, 1333)
        assert (settings.lr, settings.weight_decay, settings.batch_size, settings.epochs) == (1e-4, 0.05, 16, 12)
        assert (settings.head == "cascade") == ("cascade" in name)
        assert "Paper: box AP" in (recipe.__doc__ or "")
        assert "not measured" in (recipe.__doc__ or "")
    from vitlet.objective.schedules import WarmupSteps

    rate = WarmupSteps(1e-4, (8, 11), 0.1, 0.5)
    assert [rate(epoch) for epoch in (0, 0.25, 0.5, 7.99, 8, 11)] == pytest.approx([0, 5e-5, 1e-4, 1e-4, 1e-5, 1e-6])


def test_a_mask_that_is_annotated_is_what_is_drawn() -> None:
    mask = np.zeros((6, 5), bool)
    mask[2:4, 1:3] = True
    made = annotation(1, 1, 3, mask, polygon=False)
    assert made["bbox"] == [1, 2, 2, 2]
    assert np.array_equal(decode(as_rle(made["segmentation"], 6, 5, "here")).numpy(), mask)
