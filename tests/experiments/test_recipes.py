"""Every published setting builds; at full size each takes two real steps."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitlet.cli import main
from vitlet.cli.commands.plan import parse_plan
from vitlet.cli.commands.train import run_config
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.images import Arrays, Dataset
from vitlet.data.named.official import OFFICIAL
from vitlet.errors import VitletError
from vitlet.experiments.recipes import PAPER_TABLES, Recipe, all_recipes, find_recipe, find_table
from vitlet.tasks.drloc import DRLoc
from vitlet.tasks.offset_targets import OffsetTarget
from vitlet.training.jobs import build_job
from vitlet.training.optim import make_optimizer

RECIPES = all_recipes()


def test_every_table_has_rows_and_every_row_a_dataset() -> None:
    assert {row.table for row in RECIPES.values()} == set(PAPER_TABLES)
    for row in RECIPES.values():
        for config in (row.config(), row.first_config()):
            assert config is None or config.data in OFFICIAL, row.name


@pytest.mark.parametrize(
    ("name", "paper"),
    [  # read off the papers' tables once more, by hand
        ("drloc_table2a/cifar100/swin_t/m-128", 65.16),
        ("drloc_table2b/cifar100/t2t_vit_14/lambda-0.5", 67.03),
        ("drloc_table3/imagenet100/cvt_13/drloc-300", 90.28),
        ("drloc_table4/quickdraw/swin_t/drloc", 69.41),
        ("drloc_table4/sketch/resnet_50/drloc", 59.62),
        ("drloc_table5/infograph/t2t_vit_14/drloc", 45.69),
        ("drloc_table6/imagenet100/swin_t/all", 81.88),
        ("drloc_table7/imagenet1k/swin_t/drloc", 81.33),
        ("drloc_table8/infograph/resnet_50/baseline", 29.34),
        ("drloc_table9/cifar100/vit_b_16/drloc", 61.42),
        ("drloc_table14/cifar100/t2t_vit_14/drloc", 0.6046),
        ("drloc_table16/cifar100/swin_t/hidden-1024", 64.33),
        ("drloc_release/cifar10/swin_t/drloc", 88.29),
        ("arvit_table1/imagewoof/arvit/similarity-4", 82.93),
        ("arvit_table1/cifar10/arvit/vit-tiny", 73.30),
    ],
)
def test_published_numbers(name: str, paper: float) -> None:
    assert find_recipe(name).paper == paper


def test_settings_are_the_papers() -> None:
    swin = find_recipe("drloc_table4/cifar10/swin_t/drloc").config()
    assert (swin.epochs, swin.warmup_epochs, swin.batch_size, swin.lr, swin.weight_decay) == (100, 20, 1024, 1e-3, 0.05)
    assert (swin.img_size, swin.drop_path, swin.tasks["drloc"].weight) == ((224, 224), 0.2, 0.5)
    assert find_recipe("drloc_table4/cifar10/cvt_13/drloc").config().tasks["drloc"].weight == 0.1
    tuned = find_recipe("drloc_table5/cifar10/swin_t/baseline").config()
    assert (tuned.lr, tuned.warmup_epochs, tuned.pretrained, dict(tuned.tasks)) == (5e-4, 10, True, {})
    relvit = find_recipe("relvit_training/cifar10/vit_s/pretrained")
    first = relvit.first_config()
    assert first is not None
    assert (first.pretrain, sorted(first.tasks), first.lr, first.weight_decay) == (
        True,
        ["position", "sprel"],
        5e-4,
        0.1,
    )
    arvit = find_recipe("arvit_table1/cifar10/arvit/distance-3").first_config()
    assert arvit is not None
    assert arvit.tasks["rotation"].options == {"head": "tokens"}


def test_the_released_protocol_of_drloc() -> None:
    row = find_recipe("drloc_release/cifar10/swin_t/drloc")
    config = row.config()
    assert (config.epochs, config.stop_epoch, config.warmup_epochs) == (300, 101, 20)
    assert (config.batch_size, config.lr, config.min_lr) == (128, 1.25e-4, 1.25e-6)
    assert config.tasks["drloc"] == TaskConfig(0.5, options={"preset": "reference"})
    task = DRLoc(**config.tasks["drloc"].options)
    assert isinstance(task.target, OffsetTarget)
    assert (task.target.unit, task.suggested_schedule) == ("cells", "ramp")


def test_relvit_has_the_settings_of_the_release() -> None:
    mega = find_recipe("relvit_training/imagenet100/vit_s/pretrained-mega").first_config()
    assert mega is not None
    assert all(task.patch_augment and task.mega_side == 6 for task in mega.tasks.values())
    assert (mega.sched, mega.min_lr, mega.warmup_epochs, mega.batch_size) == ("quarter-cosine", 1.25e-6, 10, 256)
    joint = find_recipe("relvit_networks/cifar10/t2t_vit_14/joint").config()
    assert (joint.img_size, joint.batch_size, joint.model) == ((224, 224), 64, "t2t_vit_14")
    assert all(task.options == {"pool": "3x3/2"} for task in joint.tasks.values())
    assert not find_recipe("relvit_networks/cifar10/swin_t/baseline").config().tasks


def test_table_7_has_t2t_by_its_own_code_and_table_3_five_seeds() -> None:
    t2t, swin = (find_recipe(f"drloc_table7/imagenet1k/{model}/drloc").config() for model in ("t2t_vit_14", "swin_t"))
    assert (t2t.batch_size, t2t.lr, t2t.warmup_epochs, t2t.clip_grad, t2t.model_ema) == (512, 5e-4, 10, None, True)
    assert (swin.batch_size, swin.epochs, swin.model_ema) == (1024, 300, False)
    assert PAPER_TABLES["drloc_table3"].seeds == 5


def test_test_images_are_watched_in_figure_3_alone() -> None:
    for row in RECIPES.values():
        assert row.config().eval_on_test == (row.table == "drloc_figure3"), row.name
        assert not row.config("small").eval_on_test  # it has validation images


def test_arvit_has_the_settings_of_the_release() -> None:
    row = find_recipe("arvit_table1/cifar10/arvit/distance-3")
    tuned, first = row.config(), row.first_config()
    assert first is not None
    penalty = first.tasks["attention-distance"]
    assert (penalty.weight, penalty.options) == (0.01, {"preset": "reference", "layers": "3"})
    assert (first.epochs, first.lr, first.batch_size) == (90, 5e-5, 80)
    assert (tuned.epochs, tuned.lr, tuned.smoothing) == (60, 5e-4, 0.0)
    assert first.model == tuned.model == "arvit_reference_patch16_256"
    assert find_recipe("arvit_table1/cifar10/arvit/similarity-5").config().model == "arvit_gram_reference_patch16_256"


def test_no_colour_jitter_beside_randaugment() -> None:
    for row in RECIPES.values():  # timm, and so the releases, leave it out then
        for config in (row.config(), row.first_config()):
            settings = None if config is None else config.resolved()
            assert settings is None or settings.aa == "off" or not settings.color_jitter, row.name


@pytest.mark.parametrize("scale", ["full", "small"])
def test_values_make_the_same_settings(scale: Any) -> None:
    for row in RECIPES.values():
        values = row.values(scale)
        first = values.pop("first", None)
        assert RunConfig.from_dict(values) == row.config(scale), row.name
        assert (None if first is None else RunConfig.from_dict(first)) == row.first_config(scale), row.name


def test_small_keeps_the_question() -> None:
    full = find_recipe("drloc_table6/imagenet100/swin_t/ce")
    config = full.config("small")
    assert (config.model, config.img_size, config.epochs, config.data) == ("swin_for_32px", (32, 32), 40, "imagenette")
    assert config.fraction * OFFICIAL["imagenette"].train == pytest.approx(2000, abs=1)
    assert config.tasks == full.config().tasks
    assert config.aug == full.config().aug


@pytest.mark.parametrize("table", PAPER_TABLES)
def test_every_small_arm_asks_its_question_on_data_that_can_be_had(table: str) -> None:
    groups: dict[tuple[str, str], list[Recipe]] = {}
    for row in PAPER_TABLES[table].recipes:
        groups.setdefault((row.dataset, row.model), []).append(row)
        for config in filter(None, (row.config("small"), row.first_config("small"))):
            assert config.data in ("cifar10", "imagenette", "flowers102", "flowers102-split")
            assert config.fraction * OFFICIAL[config.data].train <= 2040
    for first, *others in groups.values():
        for other in others:  # differs from the first arm in the very settings in which it does at full size
            full, small = (_changes(first, other, size) for size in ("full", "small"))
            assert small, other.name
            assert small - {"model"} == full - {"model"}, other.name  # ARViT has one small model


def _changes(one: Recipe, other: Recipe, size: Any) -> set[str]:
    """The settings in which two recipes differ, of the run and of the pre-training."""
    found = set()
    for a, b in ((one.config(size), other.config(size)), (one.first_config(size), other.first_config(size))):
        if a is None or b is None:
            found |= set() if a is b else {"first"}
            continue
        x, y = a.to_dict(), b.to_dict()
        found |= {key.removesuffix("_kwargs") for key in x.keys() | y.keys() if x.get(key) != y.get(key)}
    return found


def test_small_arms_of_arvit_and_table5() -> None:
    tiny, base = (find_recipe(f"arvit_table1/cifar10/arvit/{arm}").config("small") for arm in ("vit-tiny", "base"))
    assert tiny.model != base.model
    for arm in ("baseline", "drloc"):
        row = find_recipe(f"drloc_table5/quickdraw/t2t_vit_14/{arm}")
        first, tuned = row.first_config("small"), row.config("small")
        assert first is not None
        assert (first.pretrain, dict(first.tasks), first.data, tuned.data) == (False, {}, "cifar10", "imagenette")
        assert first.model == tuned.model


@pytest.mark.parametrize("size", ["full", "small"])
def test_warm_up_scales_with_the_epochs(size: str) -> None:
    words = ["--recipe", "drloc_release/cifar10/swin_t/drloc", "--recipe-size", size]
    config, _, _ = run_config("vitlet train", "", [*words, "--epochs", "3"])
    assert (config.warmup_epochs, config.stop_epoch) == (pytest.approx(0.2), 1)
    config, _, _ = run_config("vitlet train", "", [*words, "--epochs", "3", "--warmup-epochs", "1"])
    assert config.warmup_epochs == 1
    for name, row in RECIPES.items():
        begun = [] if row.first_config(size) is None and not row.needs else ["--init", "FIRST"]  # type: ignore[arg-type]
        run_config("vitlet train", "", ["--recipe", name, "--recipe-size", size, "--epochs", "1", *begun])


def test_small_sizes_are_those_of_the_data_that_is_used() -> None:
    words = ["--recipe", "arvit_table1/imagenette/arvit/similarity-5", "--recipe-size", "small"]
    config, _, _ = run_config("vitlet pretrain", "", ["flowers102", *words], pretrain=True)
    assert (config.data, config.fraction, config.pretrain) == ("flowers102", pytest.approx(2000 / 2040, abs=1e-4), True)
    config, _, _ = run_config("vitlet pretrain", "", ["imagenette", *words, "--per-class", "6"], pretrain=True)
    assert (config.fraction, config.per_class) == (1.0, 6)
    config, _, _ = run_config("vitlet train", "", ["my/folder", *words, "--init", "FIRST"])
    assert (config.data, config.fraction, config.per_class) == ("my/folder", 1.0, None)


def test_recipe_size_has_a_flag_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--recipe", "drloc_table4/cifar10/swin_t/drloc"]
    new, _, _ = run_config("vitlet train", "", [*words, "--recipe-size", "small", "--scale", "0.5"])
    assert (new.img_size, new.scale) == ((32, 32), 0.5)
    assert capsys.readouterr().err == ""
    old, _, _ = run_config("vitlet train", "", [*words, "--scale", "small"])
    assert old == replace(new, scale=None)
    assert "--recipe-size small" in capsys.readouterr().err
    for size in ("--recipe-size", "--scale"):
        assert main(["recipes", words[1], size, "small"]) == 0
        assert "swin_for_32px" in capsys.readouterr().out


def test_plan_takes_recipes() -> None:
    config, *_ = parse_plan(["--recipe", "arvit_table1/cifar10/arvit/base", "--epochs", "6"])
    assert (config.model, config.epochs, config.warmup_epochs) == ("arvit_reference_patch16_256", 6, pytest.approx(1.8))
    config, *_ = parse_plan(["--recipe", "drloc_table4/cifar10/swin_t/drloc", "--recipe-size", "small"])
    assert config.model == "swin_for_32px"


def test_listing_is_quick_and_needs_no_torch() -> None:
    command = "import sys; from vitlet.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", command, "recipes"], capture_output=True, text=True, check=True)
    assert "drloc_table4" in done.stdout
    assert "80 rows" in done.stdout
    assert "drloc_table12" in done.stdout


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "drloc_table6"]) == 0
    assert "drloc_table6/imagenet100/swin_t/reg" in capsys.readouterr().out
    assert main(["recipes", "drloc_table6/imagenet100/swin_t/reg"]) == 0
    printed = capsys.readouterr().out
    assert "vitlet train --recipe drloc_table6/imagenet100/swin_t/reg" in printed
    assert "83.24" in printed
    assert main(["recipes", "relvit_training/cifar10/vit_s/pretrained", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["first"]["pretrain"] is True
    assert main(["recipes", "drloc_table10_cascade"]) == 0
    printed = capsys.readouterr().out
    assert "vitlet detect train coco --recipe drloc_table10_cascade" in printed
    assert "head: cascade" in printed


def test_a_card_says_what_is_needed_and_what_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "drloc_table5/cifar10/t2t_vit_14/drloc"]) == 0
    printed = capsys.readouterr().out
    assert "81.5_T2T_ViT_14.pth.tar" in printed
    assert "vitlet train --recipe drloc_table5/cifar10/t2t_vit_14/drloc --init FILE" in printed
    assert main(["recipes", "arvit_table1/cifar10/arvit/base"]) == 0
    printed = capsys.readouterr().out
    assert "vitlet pretrain --recipe arvit_table1/cifar10/arvit/base --output FIRST" in printed
    assert "Ours: official splits" in printed


@pytest.mark.parametrize("model", ["swin_t", "t2t_vit_14"])
def test_given_weights_win_over_pretrained_ones(model: str) -> None:
    words = ["--recipe", f"drloc_table5/cifar10/{model}/drloc", "--init", "weights.pth"]
    config, _, _ = run_config("vitlet train", "", words)
    assert (config.init, config.pretrained) == ("weights.pth", False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["recipes", "drloc_table44"], "Did you mean"),
        (["recipes", "drloc_table10_cascade", "--scale", "small"], "drloc_table10_cascade has no small size"),
        (["train", "--recipe", "drloc_table4"], "is a table: add a row"),
        (["train", "--recipe", "relvit_training/cifar10/vit_s/pretrained"], "vitlet pretrain --recipe"),
        (["pretrain", "--recipe", "drloc_table4/cifar10/swin_t/drloc"], "has no pre-training"),
        (["train", "--recipe", "drloc_table5/svhn/t2t_vit_14/drloc"], "81.5_T2T_ViT_14.pth.tar"),
        (["train", "--scale", "small"], "name one with --recipe"),
        (["train", "--recipe", "drloc_table4/svhn/swin_t/drloc", "--data-dir", "nowhere"], "found no svhn in nowhere"),
    ],
)
def test_bad_input(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert expected in capsys.readouterr().err


def test_unknown_table() -> None:
    with pytest.raises(VitletError, match="Did you mean 'drloc_table4'"):
        find_table("drloc_tabel4")


def _distinct() -> list[Any]:
    """A phase of every recipe, once for each model, image size and set of tasks."""
    found: dict[str, tuple[str, RunConfig]] = {}
    for row in RECIPES.values():
        for config in (row.config(), row.first_config()):
            if config is not None:
                tasks = {name: replace(task, weight=1.0) for name, task in config.tasks.items()}
                key = f"{config.model} {config.model_kwargs} {config.img_size} {config.positions} {tasks}"
                found.setdefault(key, (row.name, config))
    mega = find_recipe("relvit_training/cifar10/vit_s/pretrained-mega").first_config("small")
    assert mega is not None
    return [*(pytest.param(config, id=name) for name, config in found.values()), pytest.param(mega, id="mega, small")]


@pytest.mark.heavy
@pytest.mark.parametrize("config", _distinct())
def test_two_real_steps_at_full_size(config: RunConfig, tmp_path: Path) -> None:
    height, width = config.img_size or (224, 224)
    random = np.random.default_rng(0)
    images = Arrays.of(random.integers(0, 256, (4, height, width, 3)).astype(np.uint8), [0, 1, 2, 3])
    classes = OFFICIAL[config.data].classes
    names = tuple(f"{index:04d}" for index in range(classes))
    dataset = Dataset(names, images, None, None, "random pixels")
    # weights of the hub cannot be had offline; precision and processes are those of this machine
    here = replace(config, pretrained=False, amp=False, batch_size=2, device="cpu", workers=0)
    prepared = build_job(here, dataset)
    optimizer = make_optimizer(prepared.objective, prepared.config)
    prepared.objective.train()
    before = [parameter.detach().clone() for parameter in prepared.objective.parameters()]
    for step in range(2):
        pixels = torch.stack([prepared.preprocess(images.image(2 * step + place, 3)) for place in range(2)])
        labels = None if config.pretrain else torch.tensor([2 * step, 2 * step + 1])
        outcome = prepared.objective(pixels, labels, prepared.objective.weights(config.epochs / 2))
        assert outcome.loss.isfinite()
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
    after = list(prepared.objective.parameters())
    changed = sum(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert changed > 0.9 * len(after)


def test_a_recipe_knows_its_name() -> None:
    row = Recipe("table", "data", "model", "arm", RunConfig)
    assert row.name == "table/data/model/arm"
    assert row.values() == {}
