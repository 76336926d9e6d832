"""Teachers of a run: trained models that guide it, never part of what is trained or saved.

One is found by the folder of its run, or is trained first, in the folder `FOLDER` of the run that it guides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from vitlet.backbones import Backbone, TimmBackbone
from vitlet.config import BaseConfig, RunConfig
from vitlet.errors import InterruptedRunError, VitletError, first_line
from vitlet.models.factory import build_model, data_statistics, load_exported
from vitlet.objective import Objective
from vitlet.tasks.teacher import Teacher
from vitlet.training.files import checksum
from vitlet.training.run_folder import run_weights

AUTO = "auto"
"""In place of a folder: train a small residual network first."""
FOLDER = "teacher"
"""Where that run lies, in the folder of the run that it guides."""
NETWORKS: Mapping[int, str] = {48: "resnet_s_for_32px", 112: "resnet_s_for_64px", 176: "resnet_s_for_128px"}
LARGE = "resnet_s_for_224px"
"""Of images up to so many pixels a side, and of larger ones: four residual stages of one block each."""


def find_teacher(place: str, config: BaseConfig, student: Backbone, classes: Sequence[str] | None) -> Teacher:
    """The teacher that an option names; drawing nothing from the generator that the student's heads draw from.

    Args:
        place: a folder, as in `load_teacher`, or ``auto``: one that `train_teachers` trains later.
        config: the settings of the run.
        student, classes: as in `load_teacher`.
    """
    with torch.random.fork_rng(devices=[]):
        return _untrained(config, student) if place == AUTO else load_teacher(Path(place), student, classes)


def load_teacher(place: Path, student: Backbone, classes: Sequence[str] | None) -> Teacher:
    """The model of a finished run, or of a folder in timm's local-dir layout, for the images of a student.

    Args:
        place: the folder.
        student: the model that it will guide.
        classes: names of the student's classes; None: not known, and not compared.
    """
    if not place.is_dir():
        raise VitletError(f"no such teacher: {place}. It must be the folder of a finished run on the same images.")
    if (place / "config.yaml").is_file() and not (place / "result.json").is_file():
        raise VitletError(f"the teacher {place} is not finished. Run vitlet train --resume {place} first.")
    weights = run_weights(place)
    try:
        described: Mapping[str, Any] = json.loads(weights.with_name("config.json").read_text(encoding="utf-8"))
        settings = described["pretrained_cfg"]
        own = tuple(map(float, settings["mean"])), tuple(map(float, settings["std"]))
        model = load_exported(weights.parent)
    except Exception as problem:  # damaged files fail in many ways
        raise VitletError(f"cannot load the teacher in {weights.parent}: {first_line(problem)}.") from problem
    channels = int(getattr(model, "in_chans", len(own[0])))
    if (channels, len(own[0]), len(own[1])) != (student.in_chans,) * 3:
        raise VitletError(
            f"the teacher {place} takes images of {channels} channels normalised by {len(own[0])} means and"
            f" {len(own[1])} deviations; the run's have {student.in_chans}. Take a teacher trained with --in-chans"
            f" {student.in_chans}."
        )
    backbone = TimmBackbone(model, img_size=student.img_size, in_chans=channels)
    unlike = "" if classes is None else _unlike(place, described.get("label_names") or (), classes)
    return Teacher(backbone, seen=statistics_of(student), own=own, unlike=unlike, sha256=checksum(weights))


def statistics_of(student: Backbone) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Channel means and standard deviations of a run."""
    mean, std = data_statistics(student.model, student.in_chans)
    return tuple(mean), tuple(std)


def _untrained(config: BaseConfig, student: Backbone) -> Teacher:
    """Untrained small residual network for the images and classes of a student."""
    if not isinstance(config, RunConfig) or config.pretrain:
        what = "pretrain" if isinstance(config, RunConfig) else config.JOB
        raise VitletError(
            f"a teacher 'auto' learns from labels of images, which vitlet {what} has not. Give it a finished run."
        )
    classes = int(getattr(student.model, "num_classes", 0))
    model, _ = build_model(_network(student.img_size), num_classes=classes, in_chans=student.in_chans, model_kwargs={})
    mean, std = data_statistics(model, student.in_chans)
    backbone = TimmBackbone(model, img_size=student.img_size, in_chans=student.in_chans)
    return Teacher(backbone, seen=statistics_of(student), own=(tuple(mean), tuple(std)))


def _network(size: tuple[int, int]) -> str:
    return next((found for side, found in NETWORKS.items() if max(size) <= side), LARGE)


def _teacher_config(config: RunConfig, share: float, path: Path) -> RunConfig:
    """The run of a teacher: the student's data and augmentation, without all that is the student's own.

    It takes its share of the student's epochs beside them, or its share of the student's budget out of it.
    """
    usual = RunConfig()
    length: dict[str, Any] = {"epochs": max(1, round(share * config.epochs))}
    if config.mixup_off_epoch:
        length["mixup_off_epoch"] = share * config.mixup_off_epoch
    if config.minutes is not None or config.cpu_minutes is not None:
        unplanned = ("planned_steps", "epoch_repeats", "val_interval", "mixup_off_epoch")
        length |= {key: getattr(usual, key) for key in unplanned}
        length |= {key: share * value for key in ("minutes", "cpu_minutes") if (value := getattr(config, key))}
    own = (
        "positions",
        "init",
        "freeze",
        "head",
        "layer_decay",
        "pretrained",
        "drop_path",
        "warmup_epochs",
        "stop_epoch",
    )
    ways = (
        "stop_epoch",
        "patience",
        "balance_tasks",
        "compile",
        "fsdp",
        "grad_checkpointing",
        "eval_on_test",
        "overwrite",
    )
    logs = ("log_wandb", "log_mlflow", "log_trackio")
    return replace(
        config,
        **{key: getattr(usual, key) for key in (*own, *ways, *logs)},
        **length,
        model=_network(config.img_size or (0, 0)),
        model_kwargs={},
        tasks={},
        output=str(path / FOLDER),
        resume="auto",
    )


def teacher_share(objective: Objective, config: BaseConfig) -> float:
    """The share of a budget that goes to a teacher which is trained first; 0 without one."""
    asked = [name for name in teachers_of(objective) if config.tasks[name].options.get("teacher") == AUTO]
    return max((float(getattr(objective.tasks[name], "teacher_share", 0.0)) for name in asked), default=0.0)


def train_teachers(objective: Objective, config: BaseConfig, path: Path, train: Callable[..., object]) -> None:
    """Train, or continue to train, the teacher ``auto`` of a run; one for all tasks.

    Args:
        objective: objective of the run; its teachers get the trained weights.
        config: the settings of the run.
        path: its folder.
        train: `vitlet.training.loop.train` on the data of the run.
    """
    for name, teacher in teachers_of(objective).items():
        if config.tasks[name].options.get("teacher") != AUTO:
            continue
        assert isinstance(config, RunConfig)
        task: Any = objective.tasks[name]
        run = _teacher_config(config, task.teacher_share, path)
        try:
            train(run, title="teacher", given={})
        except InterruptedRunError:
            raise InterruptedRunError(
                f"stopped while the teacher was trained. Nothing is lost; continue with: vitlet train --resume {path}"
            ) from None
        weights = run_weights(path / FOLDER)
        network: Any = teacher.backbone
        network.model.load_state_dict(load_file(weights))
        teacher.sha256 = checksum(weights)


def _unlike(place: Path, names: Sequence[str], classes: Sequence[str]) -> str:
    """How a teacher's classes differ from a run's, as the start of an error message."""
    if list(names) == list(classes):
        return ""
    if len(names) != len(classes):
        return f"{place} has {len(names)} classes, the run {len(classes)}"
    index = next(index for index, name in enumerate(names) if name != classes[index])
    return f"class {index + 1} of {place} is {names[index]!r}, of the run {classes[index]!r}"


def teachers_of(objective: Objective) -> dict[str, Teacher]:
    """The teachers of an objective's tasks, by task."""
    found = {term.task.name: getattr(term.task, "teacher", None) for term in objective.terms}
    return {name: teacher for name, teacher in found.items() if isinstance(teacher, Teacher)}
