"""Settings: the same keys as flags, YAML and fields; wrong ones refused in a sentence."""

from __future__ import annotations

import inspect
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from vitlet.cli.flags import Parser, add_run_flags, run_settings
from vitlet.cli.parser import help_text
from vitlet.config import BaseConfig, RunConfig, TaskConfig
from vitlet.config.setting import Group, Settings
from vitlet.errors import VitletError
from vitlet.tasks import TASKS
from vitlet.tasks.declared import declared_options, declared_weight, load_task, textual
from vitlet.transfer.detection.settings import DetectConfig
from vitlet.transfer.segmentation.settings import SegmentConfig

KINDS = (RunConfig, DetectConfig, SegmentConfig)


def parse(*words: str) -> RunConfig:
    parser = Parser(prog="vitlet train")
    add_run_flags(parser)
    return RunConfig.from_dict(run_settings(parser.parse_all(list(words))), source="flags")


def parse_line(line: str) -> RunConfig:
    return parse(*shlex.split(line))


@pytest.mark.parametrize("name", TASKS)
def test_declared_options_are_the_constructor(name: str) -> None:
    """What is read from the source is what Python sees."""
    constructor = load_task(name).__init__
    hints = get_type_hints(constructor)
    real = {
        key: (textual(hints[key]), parameter.default)
        for key, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    declared = declared_options(name)
    assert {key: (option.hint, option.default) for key, option in declared.items()} == real
    assert all(option.help for option in declared.values())
    assert load_task(name).name == name


def test_flags_that_timm_users_know() -> None:
    config = parse_line(
        "DATA --model resnet18 --img-size 64x96 --epochs 3 -b 32 --lr 1e-4 --weight-decay 0.1"
        " --warmup-epochs 1 --mixup 0.8 --cutmix 1.0 --smoothing 0 --drop-path 0.1 --seed 7"
        " --output out -j 4 --device cpu --amp --amp-dtype float16 --clip-grad none"
        " --model-kwargs depth=3 name=x depths=2,2,6 heads=(2,4) --task drloc=0.5 --drloc.variant ce"
        " --drloc.preset reference --no-drloc.extra-linear --drloc.warmup-epochs 0.5 --drloc.pool none"
    )
    assert config.data == "DATA"
    assert config.img_size == (64, 96)
    assert (config.batch_size, config.workers, config.lr, config.clip_grad) == (32, 4, 1e-4, None)
    assert (config.amp, config.amp_dtype, config.device) == (True, "float16", "cpu")
    assert config.model_kwargs == {"depth": 3, "name": "x", "depths": [2, 2, 6], "heads": [2, 4]}
    options = {"variant": "ce", "preset": "reference", "extra_linear": False, "pool": "none"}
    assert config.tasks == {"drloc": TaskConfig(0.5, warmup_epochs=0.5, options=options)}


def test_the_resolved_file_makes_the_same_settings(tmp_path: Path) -> None:
    config = parse_line("DATA --img-size 32 --task drloc=0.25 --drloc.variant reg --drloc.schedule ramp -b 8")
    file = tmp_path / "config.yaml"
    file.write_text(config.dump(), encoding="utf-8")
    assert RunConfig.from_dict(RunConfig.read(file)) == config
    assert parse("-c", str(file)) == config


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("epochs: 5\nlr: 1e-3\ntask: {drloc: 0.5}\ndrloc: {variant: ce, pairs: 32}\n", encoding="utf-8")
    config = parse("-c", str(file), "--epochs", "7", "--drloc.variant", "l1", "--task", "drloc=0.1")
    assert (config.epochs, config.lr) == (7, 1e-3)
    assert config.tasks["drloc"] == TaskConfig(0.1, options={"variant": "l1", "pairs": 32})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epoch": 3}, "unknown key 'epoch'. Did you mean 'epochs'"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"epochs": 2.5}, "must be a whole number, got 2.5"),
        ({"epochs": True}, "must be a whole number, got True"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"lr": "fast"}, "must be a number, got 'fast'"),
        (
            {"pretrain": True, "balance": "sampler"},
            "balance 'sampler' requires labels, which pre-training does not use",
        ),
        ({"freeze": True}, "requires trained weights. Add --init RUN"),
        ({"init": "run", "pretrained": True}, "both set the initial weights"),
        ({"class_weights": "1,2"}, "class_weights requires balance weights"),
        ({"lr": -1}, "lr must be greater than 0, got -1"),
        ({"lr": float("nan")}, "must be greater than 0, got nan"),
        ({"amp": "maybe"}, "must be true or false, got 'maybe'"),
        ({"amp_dtype": "int8"}, "one of bfloat16, float16"),
        ({"img_size": "0x4"}, "HEIGHTxWIDTH such as 64x96"),
        ({"img_size": [1, 2, 3]}, "HEIGHTxWIDTH"),
        ({"smoothing": 1.5}, "between 0 and 1"),
        ({"crop_pct": 0}, "crop_pct must be greater than 0 and at most 1, got 0"),
        ({"warmup_epochs": 5, "epochs": 5}, "must be less than epochs"),
        ({"classes": "cat"}, "a list of names"),
        ({"class_weights": "1,2"}, "Add --balance weights"),
        ({"fraction": 0}, "fraction must be greater than 0 and at most 1, got 0"),
        ({"model_kwargs": 3}, "NAME: VALUE pairs"),
        ({"task": ["drloc"]}, "map task names to weights"),
        ({"task": {"drlok": 1}}, "unknown task 'drlok'. Did you mean 'drloc'"),
        ({"task": {"drloc": -1}}, "weight of task 'drloc' must be at least 0, got -1"),
        ({"task": {"drloc": "x"}}, "must be a number, got 'x'"),
        ({"task": {"drloc": 1}, "drloc": {"varaint": "ce"}}, "no option 'varaint'. Did you mean 'variant'"),
        ({"task": {"drloc": 1}, "drloc": {"variant": "l2"}}, "one of l1, signed, ce, reg, all"),
        ({"task": {"drloc": 1}, "drloc": 3}, "must map options to values, got 3"),
        ({"drloc": {"variant": "ce"}}, "no weight. Add the task: --task drloc=0.5"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(VitletError) as caught:
        RunConfig.from_dict(values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--modle", "x"], "unknown flag --modle. Did you mean '--model'"),
        (["--drloc.varaint", "ce"], "Did you mean '--drloc.variant'"),
        (["--task", "drloc="], "needs a weight, such as --task drloc=0.5"),
        (["a", "b"], "unexpected argument 'b'"),
        (["--model-kwargs", "depth"], "needs NAME=VALUE"),
        (["--model-kwargs", "depth=[2"], "lists are written 2,2,6"),
        (["--epochs"], "expected one argument"),
    ],
)
def test_wrong_flags_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(VitletError) as caught:
        parse(*words)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("!!python/object/apply:os.system ['touch pwned']", "not a plain YAML file"),
        ("a: [1", "not a plain YAML file"),
        ("- 1", "'key: value' lines"),
    ],
)
def test_files_that_are_no_settings(text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(VitletError, match=sentence):
        RunConfig.read(file)
    assert not (tmp_path / "pwned").exists()
    with pytest.raises(VitletError, match="cannot read the configuration"):
        RunConfig.read(tmp_path / "absent.yaml")


def test_a_task_without_a_weight_has_the_one_it_suggests() -> None:
    config = parse_line("--task drloc --task sprel --task attention-distance --task angle=0.25")
    weights = {name: task.weight for name, task in config.tasks.items()}
    assert weights == {"drloc": 0.5, "sprel": 1.0, "attention-distance": 0.3, "angle": 0.25}
    for name in TASKS:
        assert declared_weight(name) == load_task(name).suggested_weight


def test_a_preset_on_top_of_a_run_s_own_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RunConfig(data="a", aug="light", num_classes=7).resolved().dump())
    drloc, light = RunConfig(aug="drloc").resolved(), RunConfig(aug="light").resolved()
    chosen = parse("-c", str(tmp_path / "run.yaml"), "--aug", "drloc", "--mixup", "0.5").resolved()
    assert (chosen.aa, chosen.cutmix, chosen.mixup) == (drloc.aa, drloc.cutmix, 0.5)
    same = parse("-c", str(tmp_path / "run.yaml")).resolved()
    assert (same.aa, same.cutmix, same.num_classes) == (light.aa, light.cutmix, 7)
    assert parse("b", "-c", str(tmp_path / "run.yaml")).num_classes is None  # of other data


@pytest.mark.parametrize(
    ("line", "sentence"),
    [("--fold 2", "fold 2 requires the number of folds"), ("--val-fraction 1", "would leave no training images")],
)
def test_settings_that_would_do_nothing(line: str, sentence: str) -> None:
    with pytest.raises(VitletError, match=sentence):
        parse_line(line)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_belongs_to_one_group(kind: type[BaseConfig]) -> None:
    """It is declared under one heading, whichever classes declare it again with another default."""
    for item in fields(kind):
        assert isinstance(item.metadata["group"], Group)
        declared = [each.__dataclass_fields__.get(item.name) for each in kind.__mro__ if issubclass(each, Settings)]
        assert {each.metadata["group"] for each in declared if each is not None} == {item.metadata["group"]}
    assert {item.name for item in fields(kind)} == {item.name for item in kind.settings()} | {"tasks"}


def test_a_detector_has_no_setting_of_a_classifier() -> None:
    unknown = {item.name for item in RunConfig.settings()} - {item.name for item in DetectConfig.settings()}
    assert {"mixup", "aug", "model", "init", "fold", "lr_base", "balance_tasks", "cache"} <= unknown
    for kind in (DetectConfig, SegmentConfig):
        assert not hasattr(kind, "mixup")
        assert not issubclass(kind, RunConfig)
        with pytest.raises(VitletError, match="unknown key 'mixup'"):
            kind.from_dict({"mixup": 0.5})
    assert not (DetectConfig().fsdp or DetectConfig().compile or DetectConfig().freeze)


@pytest.mark.parametrize("kind", KINDS)
def test_help_shows_the_groups(kind: type[BaseConfig]) -> None:
    parser = Parser(prog="vitlet")
    add_run_flags(parser, kind)
    headings = re.findall(r"^(\w[\w ]*):$", help_text(parser, lambda _: True), flags=re.MULTILINE)
    groups = ["data", "model", "optimisation", "augmentation", "tasks", "hardware", "checkpoints and logging", "run"]
    assert headings == ["arguments", *groups, "help"]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_older_runs(kind: type[BaseConfig]) -> None:
    """Keys, values and order are as they were before the settings had groups."""
    stored = yaml.safe_load(OLDER[kind])
    config = kind.from_dict(stored)
    written = config.to_dict()
    newer = {key: value for key, value in kind().to_dict().items() if key not in stored}  # as if they were not there
    assert [(key, value) for key, value in written.items() if key in stored] == list(stored.items())
    assert written == yaml.safe_load(config.dump()) == {**stored, **newer}
    assert replace(config, seed=3).to_dict() == {**stored, **newer, "seed": 3}


OLDER: dict[type[BaseConfig], str] = {
    RunConfig: """
{data: digits, data_dir: null, download: false, class_list: null, partial: false, classes: null,
  val_fraction: 0.1, folds: null, fold: 1, group_by: null, fraction: 1.0, per_class: null, skip_unreadable: false,
  model: vit_tiny_patch16_224, model_kwargs: {}, pretrain: false, positions: auto, init: null,
  freeze: false, layer_decay: null, pretrained: false, img_size: [32, 48], in_chans: 3, num_classes: 7,
  drop_path: 0.0, epochs: 100, batch_size: 128, grad_accum_steps: 1, lr: 0.001, lr_base: null,
  lr_base_size: 256, lr_base_scale: linear, min_lr: 1.0e-05, weight_decay: 0.05, warmup_epochs: null,
  clip_grad: 5.0, model_ema: false, model_ema_decay: 0.9998, patience: null, aug: light, crop: auto,
  scale: 0.35, hflip: 0.5, aa: 'off', color_jitter: 0.0, reprob: 0.0, smoothing: 0.1, mixup: 0.0,
  cutmix: 0.0, balance: none, class_weights: null, crop_pct: null, seed: 0, balance_tasks: fixed,
  device: auto, amp: false, amp_dtype: bfloat16, compile: false, grad_checkpointing: false,
  fsdp: false, workers: null, cache: auto, cache_dir: null, checkpoint_epochs: 1, checkpoint_steps: null,
  checkpoint_minutes: 10.0, checkpoint_hist: 2, log_wandb: false, log_mlflow: false, log_trackio: false,
  task: {drloc: 0.5, sprel: 1.0}, drloc: {schedule: ramp, variant: ce}, sprel: {view: mega,
    mega_side: 4}}
""",
    DetectConfig: """
{job: detect train, data: coco, val_fraction: 0.1, model_kwargs: {}, layer_decay: null, pretrained: false,
  drop_path: 0.0, epochs: 12, batch_size: 16, grad_accum_steps: 1, lr: 0.0001, min_lr: 0.0,
  weight_decay: 0.05, warmup_epochs: null, clip_grad: null, model_ema: false, model_ema_decay: 0.9998,
  patience: null, hflip: 0.5, seed: 0, device: auto, amp: false, amp_dtype: bfloat16, grad_checkpointing: false,
  workers: null, checkpoint_epochs: 1, checkpoint_steps: null, checkpoint_minutes: 10.0, checkpoint_hist: 2,
  log_wandb: false, log_mlflow: false, log_trackio: false, backbone: resnet50, sched: step,
  decay_milestones: '8,11', decay_rate: 0.1, head: mask-rcnn, cascade_masks: last, min_side: 480,
  max_side: 800, long_side: 1333, head_width: 256, box_width: 1024, task: {drloc: 0.5, sprel: 1.0},
  drloc: {schedule: ramp, variant: ce}, sprel: {view: mega, mega_side: 4}}
""",
    SegmentConfig: """
{job: segment train, data: ade20k, val_fraction: 0.1, model_kwargs: {}, layer_decay: null, pretrained: false,
  img_size: [512, 512], drop_path: 0.0, epochs: 100, batch_size: 16, grad_accum_steps: 1, lr: 6.0e-05,
  min_lr: 0.0, weight_decay: 0.01, warmup_epochs: null, clip_grad: null, model_ema: false, model_ema_decay: 0.9998,
  patience: null, hflip: 0.5, seed: 0, device: auto, amp: false, amp_dtype: bfloat16, grad_checkpointing: false,
  workers: null, checkpoint_epochs: 1, checkpoint_steps: null, checkpoint_minutes: 10.0, checkpoint_hist: 2,
  log_wandb: false, log_mlflow: false, log_trackio: false, backbone: resnet50, sched: linear,
  decay_milestones: '8,11', decay_rate: 0.1, short_side: null, rescale_min: 0.5, rescale_max: 2.0,
  photometric: true, test_scales: '1', ignore_index: 255, decoder_channels: 512, auxiliary: 0.4,
  task: {drloc: 0.5, sprel: 1.0}, drloc: {schedule: ramp, variant: ce}, sprel: {view: mega,
    mega_side: 4}}
""",
}
