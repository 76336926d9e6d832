"""Guidance: tokens against a teacher's maps, soft labels, and a teacher that is never trained nor saved."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor

import vitlet
from builders.runs import config
from builders.teachers import NARROW, residual
from vitlet import Guidance, VitletError
from vitlet.config import RunConfig, TaskConfig
from vitlet.errors import InterruptedRunError
from vitlet.tasks.guidance import soft_label_loss, teacher_targets
from vitlet.tasks.teacher import Teacher
from vitlet.tokens.features import Needs
from vitlet.training.run_folder import RunFolder, read_config, read_rows
from vitlet.training.teachers import find_teacher

SIZE = (24, 40)


def vit(**options: Any) -> torch.nn.Module:
    sizes = {"img_size": SIZE, "patch_size": 8, "embed_dim": 12, "depth": 5, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options})


def triangle(values: list[float], size: int) -> list[float]:
    """A line of values resized: weights fall linearly with the distance from a cell's centre, over a cell of either."""
    step = len(values) / size
    reach = max(1.0, step)
    found = []
    for cell in range(size):
        centre = (cell + 0.5) * step - 0.5
        weights = [max(0.0, 1 - abs(index - centre) / reach) for index in range(len(values))]
        found.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
    return found


def slow_targets(one: Tensor, size: tuple[int, int], normalised: bool) -> list[list[float]]:
    """Of one image ``(C, h, w)``: the channels of each token of the student's grid."""
    channels = []
    for channel in one.tolist():
        rows = [triangle(row, size[1]) for row in channel]
        columns = [triangle(list(column), size[0]) for column in zip(*rows, strict=True)]
        channels.append([columns[right][down] for down in range(size[0]) for right in range(size[1])])
    tokens = [list(token) for token in zip(*channels, strict=True)]
    if normalised:
        for token in tokens:
            mean = sum(token) / len(token)
            spread = math.sqrt(sum((value - mean) ** 2 for value in token) / len(token) + 1e-5)
            token[:] = [(value - mean) / spread for value in token]
    return tokens


@pytest.mark.parametrize(
    ("options", "pairs"),
    [({}, [(1, 2), (3, 3), (4, 4)]), ({"normalise": False, "levels": 2}, [(2, 3), (4, 4)]), ({"levels": 1}, [(0, 0)])],
)
def test_equals_a_slow_loop(options: dict[str, Any], pairs: list[tuple[int, int]]) -> None:
    """A ViT of 3 x 5 tokens; the teacher's last three stages have 12 x 20, 6 x 10 and 3 x 5."""
    task = Guidance(teacher=residual(SIZE), **options)
    objective = vitlet.Objective(vitlet.TimmBackbone(vit()), [task]).eval()
    assert task.pairs == pairs
    images = torch.randn(2, 3, *SIZE)
    outcome = objective(images)
    needs = Needs(every_grid=True)
    with torch.no_grad():
        features = objective.backbone(vitlet.tokens.views.View(images), needs)
        stages = task.teacher(images, needs).every
        student = [features.last] if options.get("levels") == 1 else features.every
        stages = stages[-1:] if options.get("levels") == 1 else stages
        total = 0.0
        for head, (own, its) in zip(task.heads, pairs, strict=True):
            squares = []
            for image in range(2):
                wanted = slow_targets(stages[its].tokens[image], (3, 5), options.get("normalise", True))
                said = [head(token).tolist() for token in student[own].tokens[image].flatten(1).T]
                for one, two in zip(said, wanted, strict=True):
                    squares += [(s - w) ** 2 for s, w in zip(one, two, strict=True)]
            total += sum(squares) / len(squares) / len(pairs)
    assert outcome.parts["guidance"].item() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("size", [(3, 5), (2, 7), (6, 3), (9, 11)])
def test_maps_are_resized_as_by_loops(size: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, 6, 10)
    found = teacher_targets(maps, size, normalised=False)
    expected = torch.tensor([slow_targets(one, size, False) for one in maps])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_soft_labels_equal_a_slow_loop() -> None:
    student, teacher, temperature = torch.randn(3, 4), torch.randn(3, 4), 2.5
    total = 0.0
    for said, wanted in zip(student.tolist(), teacher.tolist(), strict=True):
        p, q = ([math.exp(value / temperature) for value in row] for row in (wanted, said))
        p, q = ([value / sum(row) for value in row] for row in (p, q))
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) * temperature**2 / 3
    assert soft_label_loss(student, teacher, temperature).item() == pytest.approx(total, rel=1e-5)


def test_metrics_are_in_plain_units() -> None:
    """A head that says the mean of every channel leaves 100 % unexplained; agreement counts equal answers."""
    task = Guidance(teacher=residual(SIZE), levels=1, soft=1.0)
    objective = vitlet.Objective(vitlet.TimmBackbone(vit()), [task]).eval()
    images = torch.randn(3, 3, *SIZE)
    seen = task.teacher(images, Needs())
    targets = teacher_targets(seen.last.tokens, (3, 5))
    head: Any = task.heads[0]
    head.weight.data.zero_()
    head.bias.data.copy_(targets.mean((0, 1)))
    outcome = objective(images)
    assert float(outcome.metrics["guidance/error"]) == pytest.approx(100, rel=1e-4)
    assert task.verdict({"error": 99.0, "chance": 100.0}) and task.verdict({"error": 80.0, "chance": 100.0}) is None
    same = (objective.backbone.model(images).argmax(1) == seen.logits.argmax(1)).float().mean()
    assert float(outcome.metrics["guidance/agreement"]) == pytest.approx(100 * float(same))
    assert outcome.metrics["guidance/agreement_chance"] == 20


def test_gradients_reach_the_student_and_never_the_teacher() -> None:
    teacher = residual(SIZE)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    objective = vitlet.Objective(vitlet.TimmBackbone(vit()), [Guidance(teacher=teacher, soft=1.0)])
    assert not any("teacher" in name for name in objective.state_dict())
    theirs = {id(parameter) for parameter in teacher.parameters()}
    assert not theirs & {id(parameter) for parameter in objective.parameters()}
    objective.train()(torch.randn(2, 3, *SIZE), torch.tensor([0, 1])).loss.backward()
    assert not teacher.training and not any(module.training for module in teacher.modules())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in teacher.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_the_teacher_goes_where_the_task_goes() -> None:
    task = Guidance(teacher=residual(SIZE))
    vitlet.Objective(vitlet.TimmBackbone(vit()), [task]).to("meta")
    assert {parameter.device.type for parameter in task.teacher.parameters()} == {"meta"}
    half = Guidance(teacher=residual(SIZE), levels=1)
    objective = vitlet.Objective(vitlet.TimmBackbone(vit()), [half]).to(torch.bfloat16)
    loss = objective(torch.randn(2, 3, *SIZE, dtype=torch.bfloat16)).loss
    assert loss.dtype == torch.float32 and loss.isfinite()


def test_other_statistics_are_undone_and_done_again() -> None:
    """The teacher sees what its own preprocessing would have made of the same pixels."""
    backbone = residual(SIZE)
    seen, own = ((0.5, 0.4, 0.3), (0.5, 0.3, 0.2)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    pixels = torch.rand(2, 3, *SIZE)

    def normalised(statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> Tensor:
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in statistics)
        return (pixels - mean) / std

    plain = Teacher(backbone)(normalised(own), Needs()).last.tokens
    again = Teacher(backbone, seen=seen, own=own)(normalised(seen), Needs()).last.tokens
    torch.testing.assert_close(again, plain, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(Teacher(backbone)(normalised(seen), Needs()).last.tokens, plain, atol=1e-3)
    same = Teacher(backbone, seen=own, own=own)(normalised(own), Needs()).last.tokens
    assert torch.equal(same, plain)


def test_one_depth_can_be_attached_to_any_module() -> None:
    model = vit()
    attached = vitlet.attach(model, [Guidance(teacher=residual(SIZE), levels=1)])
    model(torch.randn(2, 3, *SIZE))
    attached.loss().backward()
    assert model.get_parameter("blocks.4.mlp.fc1.weight").grad is not None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Guidance(levels=0), "not both 0"),
        (lambda: Guidance(levels=-1), "0 or more levels"),
        (lambda: Guidance(soft=-1.0), "soft -1"),
        (lambda: Guidance(temperature=0.0), "temperature above 0"),
        (lambda: Guidance(teacher_share=0.0), "teacher_share must be greater than 0, got 0"),
        (lambda: Guidance(teacher=torch.nn.Conv2d(3, 3, 1)), "the teacher is a Conv2d; needed is a backbone"),
        (lambda: vitlet.Objective(vitlet.TimmBackbone(vit()), [Guidance()]), "needs a teacher, found none"),
        (lambda: vitlet.Objective(vitlet.TimmBackbone(vit()), [Guidance(teacher="run")]), "found the text 'run'"),
        (
            lambda: vitlet.Objective(
                vitlet.TimmBackbone(vit()), [Guidance(teacher=residual(SIZE, classes=4), soft=1.0)]
            )(torch.randn(2, 3, *SIZE)),
            "found 5 of the student and 4 of the teacher",
        ),
    ],
)
def test_refusals(make: Callable[[], object], words: str) -> None:
    with pytest.raises(VitletError, match=words):
        make()


SMALL_TEACHER: dict[str, Any] = {"model": "resnet_for_32px", "model_kwargs": NARROW}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Images, and a finished run on them."""
    from builders.digits import write_digits

    root = tmp_path_factory.mktemp("guidance")
    data = write_digits(root / "data")
    vitlet.train(config(data, root / "teacher", **SMALL_TEACHER))
    return data, root / "teacher"


def guided(data: Path, output: Path, teacher: Path, **changes: Any) -> RunConfig:
    options = {"teacher": str(teacher), "soft": 0.5} | changes.pop("options", {})
    return config(data, output, tasks={"guidance": TaskConfig(2.5, options=options)}, **changes)


def weights_of(run: Path) -> dict[str, Tensor]:
    return load_file(run / "last" / "model.safetensors")


@pytest.mark.parametrize("settings", [{}, {"amp": True, "mixup": 0.8, "cutmix": 1.0, "drop_path": 0.1}])
def test_resume_is_exact_and_refuses_another_teacher(
    settings: dict[str, Any], teacher: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = teacher
    own = shutil.copytree(run, tmp_path / "teacher")
    whole = guided(data, tmp_path / "whole", own, epochs=4, **settings)
    result = vitlet.train(whole)
    assert {"guidance/error", "guidance/chance", "guidance/agreement"} <= result.tasks.keys()
    log = RunFolder.log

    def die_after_two(self: RunFolder, rows: list[dict[str, Any]]) -> None:
        log(self, rows)
        if len(rows) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "log", die_after_two)
    with pytest.raises(KeyboardInterrupt):
        vitlet.train(replace(whole, output=str(tmp_path / "broken")))
    monkeypatch.setattr(RunFolder, "log", log)
    newest = sorted((tmp_path / "broken" / "checkpoints").iterdir())[-1]
    assert not any("teacher" in name for name in load_file(newest / "objective.safetensors"))
    file = own / "best" / "model.safetensors"
    kept = file.read_bytes()
    file.write_bytes((run / "last" / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(VitletError, match="the teacher of guidance has other weights than when it began"):
        vitlet.train(RunConfig(resume=str(tmp_path / "broken")))
    file.write_bytes(kept)
    vitlet.train(RunConfig(resume=str(tmp_path / "broken")))
    expected, found = weights_of(tmp_path / "whole"), weights_of(tmp_path / "broken")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    losses = [[row["train/guidance"] for row in read_rows(tmp_path / name)] for name in ("whole", "broken")]
    assert losses[0] == losses[1]
    teachers = json.loads((tmp_path / "whole" / "result.json").read_text())["teachers"]
    assert teachers == {"guidance": vitlet.training.files.checksum(file)}


def rename_class(run: Path) -> None:
    file = run / "best" / "config.json"
    described = json.loads(file.read_text())
    described["label_names"].reverse()
    file.write_text(json.dumps(described))


def other_means(run: Path) -> None:
    file = run / "best" / "config.json"
    described = json.loads(file.read_text())
    described["pretrained_cfg"]["mean"] = [0.5]
    file.write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("spoil", "changes", "words"),
    [
        (lambda run: shutil.rmtree(run), {}, "no such teacher"),
        (lambda run: (run / "result.json").unlink(), {}, "is not finished"),
        (rename_class, {}, "class 1 of .* is 'digit 2', of the run 'digit 0'"),
        (lambda run: None, {"classes": ("digit 0", "digit 1")}, "has 3 classes, the run 2"),
        (lambda run: None, {"in_chans": 1}, r"takes images of 3 channels.*Take a teacher trained with --in-chans 1"),
        (other_means, {}, "3 channels normalised by 1 means"),
        (lambda run: (run / "best" / "config.json").write_text("{"), {}, "cannot load the teacher in"),
        (lambda run: (run / "best" / "model.safetensors").write_bytes(b"x" * 99), {}, "cannot load the teacher in"),
    ],
)
def test_bad_teachers_are_refused_before_anything_is_written(
    spoil: Callable[[Path], Any], changes: dict[str, Any], words: str, teacher: tuple[Path, Path], tmp_path: Path
) -> None:
    data, run = teacher
    own = shutil.copytree(run, tmp_path / "teacher")
    spoil(own)
    with pytest.raises(VitletError, match=words):
        vitlet.train(guided(data, tmp_path / "run", own, **changes))
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_another_image_size_that_it_cannot_take(teacher: tuple[Path, Path], tmp_path: Path) -> None:
    data, _ = teacher
    vitlet.train(config(data, tmp_path / "fixed", epochs=1))
    with pytest.raises(VitletError, match="cannot take 3-channel images of 24x24 pixels"):
        vitlet.train(guided(data, tmp_path / "run", tmp_path / "fixed", img_size=(24, 24)))
    assert not (tmp_path / "run").exists()


def test_maps_alone_may_be_of_other_classes_and_without_labels(teacher: tuple[Path, Path], tmp_path: Path) -> None:
    data, run = teacher
    maps = {"soft": 0.0}
    few = guided(data, tmp_path / "few", run, options=maps, classes=("digit 0", "digit 1"), epochs=1)
    assert vitlet.train(few).tasks["guidance/chance"] == 100
    exported = guided(data, tmp_path / "exported", run / "best", options=maps, pretrain=True, epochs=1)
    assert "guidance/agreement" not in vitlet.train(exported).tasks
    with pytest.raises(VitletError, match="has 3 classes, the run 0"):
        vitlet.train(guided(data, tmp_path / "soft", run, pretrain=True))


def test_a_teacher_is_trained_first_and_gone_on_with(
    teacher: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while the teacher learns, then while the student does: the same as in one go, and as in two commands."""
    data, _ = teacher
    monkeypatch.setattr("vitlet.training.teachers.NETWORKS", {48: "resnet_xs_for_32px"})
    options = {"teacher_share": 0.5}
    whole = guided(data, tmp_path / "whole", Path("auto"), epochs=4, options=options)
    vitlet.train(whole)
    made = read_config(tmp_path / "whole" / "teacher")
    assert (made.epochs, made.tasks, made.model, made.seed) == (2, {}, "resnet_xs_for_32px", whole.seed)
    log = RunFolder.log

    def stop_after(rows_of_run: int) -> None:
        def die(self: RunFolder, rows: list[dict[str, Any]]) -> None:
            log(self, rows)
            if len(rows) == rows_of_run:
                raise InterruptedRunError

        monkeypatch.setattr(RunFolder, "log", die)

    stop_after(1)
    broken = tmp_path / "broken"
    with pytest.raises(InterruptedRunError, match=f"while the teacher was trained.*--resume {broken}$"):
        vitlet.train(replace(whole, output=str(broken)))
    assert len(read_rows(broken / "teacher")) == 1 and not read_rows(broken)
    stop_after(3)
    with pytest.raises(InterruptedRunError, match="stopped in epoch"):
        vitlet.train(RunConfig(resume=str(broken)))
    monkeypatch.setattr(RunFolder, "log", log)
    vitlet.train(replace(whole, output=str(broken), resume="auto"))
    two = guided(data, tmp_path / "two", tmp_path / "whole" / "teacher", epochs=4)
    vitlet.train(two)
    expected = weights_of(tmp_path / "whole")
    for run in (broken, tmp_path / "two"):
        found = weights_of(run)
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    vitlet.train(replace(whole, output=str(broken), overwrite=True, tasks={}))
    assert not (broken / "teacher").exists()


def test_a_teacher_to_be_trained_needs_labels(teacher: tuple[Path, Path], tmp_path: Path) -> None:
    data, _ = teacher
    with pytest.raises(VitletError, match=r"a teacher 'auto' learns from labels .* vitlet pretrain has not"):
        vitlet.train(guided(data, tmp_path / "run", Path("auto"), pretrain=True, options={"soft": 0.0}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("side", [16, 64, 224])
def test_the_network_of_a_teacher_takes_any_images(side: int) -> None:
    student = vitlet.TimmBackbone(timm.create_model("resnet10t", num_classes=7, in_chans=1), img_size=side)
    found = find_teacher("auto", RunConfig(), student, None)
    shapes = found.shapes(Needs(every_grid=True))
    assert len(shapes.every) == 5 and min(shapes.last.height, shapes.last.width) >= 2
    assert found(torch.randn(1, 1, side, side), Needs()).logits.shape == (1, 7)
