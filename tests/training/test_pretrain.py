"""Pre-training without labels, starting from it, freezing, layer-wise decay, and probing frozen features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import vitlet
from builders.runs import VIT, config
from vitlet.analysis import probes
from vitlet.analysis.probes import knn_accuracy, linear_accuracy, parse_fractions, probe
from vitlet.cli import main
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.images import ImageSet
from vitlet.data.sources import load_dataset, load_unlabelled
from vitlet.errors import VitletError
from vitlet.models.initialise import layer_decay_groups, load_weights, position_names, switch_positions_off
from vitlet.training.inputs import data_request
from vitlet.training.jobs import build_job
from vitlet.training.loop import train


@pytest.fixture
def pretrained(folder: Path, tmp_path: Path) -> Path:
    train(config(folder, tmp_path / "pretrained", pretrain=True))
    return tmp_path / "pretrained"


@pytest.fixture
def flat(folder: Path, tmp_path: Path) -> Path:
    """The images of all classes side by side."""
    (tmp_path / "flat").mkdir()
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        shutil.copy(file, tmp_path / "flat" / f"{number}.png")
    return tmp_path / "flat"


def test_a_flat_folder_will_do(flat: Path, tmp_path: Path) -> None:
    result = train(config(flat, tmp_path / "run", pretrain=True))
    assert result.val is None
    assert result.test is None
    assert "24 images without labels" in result.note
    assert {"sprel/accuracy", "position/accuracy"} <= set(result.tasks)
    exported = load_file(tmp_path / "run" / "last" / "model.safetensors")
    assert not any(name.startswith("head") for name in exported)
    assert exported["pos_embed"].abs().max() == 0  # off: it would give the answers away
    assert "positional embedding off: pos_embed" in result.warnings


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fraction": 0.5},
        {"per_class": 3},
        {"classes": ("digit 0", "digit 2")},
        {"folds": 2},
        {"group_by": r"(\d)\.png"},
    ],
)
def test_images_with_classes_are_split_as_for_a_training_with_labels(folder: Path, changes: dict[str, Any]) -> None:
    settings = config(folder, folder, **changes)
    labelled, bare = load_dataset(data_request(settings)), load_unlabelled(data_request(settings))
    assert labelled.val is not None
    assert bare.val is not None
    for known, found in ((labelled.train, bare.train), (labelled.val, bare.val)):
        assert [known.key(index) for index in range(len(known))] == [found.key(index) for index in range(len(found))]
    assert set(bare.train.labels) == {0}
    assert "labels are not looked at" in bare.note


def test_images_beside_the_class_folders_are_not_lost(folder: Path) -> None:
    shutil.copy(folder / "digit 0" / "000.png", folder / "loose.png")
    found = load_unlabelled(data_request(config(folder, folder, val_fraction=0.0)))
    assert len(found.train) == 25


def test_a_flat_folder_has_no_classes_to_choose_by(flat: Path, tmp_path: Path) -> None:
    with pytest.raises(VitletError, match="class"):
        load_unlabelled(data_request(config(flat, tmp_path, per_class=3)))


def test_positions_stay_on_where_patches_are_shuffled(folder: Path, tmp_path: Path) -> None:
    shuffled = {"sprel": TaskConfig(1.0, view="shuffle")}
    result = train(config(folder, tmp_path / "run", pretrain=True, tasks=shuffled))
    assert load_file(tmp_path / "run" / "last" / "model.safetensors")["pos_embed"].abs().max() > 0
    assert not any("positional embedding off" in warning for warning in result.warnings)
    insisted = train(config(folder, tmp_path / "insisted", pretrain=True, positions="on"))
    assert any("reveals the targets" in warning for warning in insisted.warnings)


def test_resume_of_pretraining_is_exact(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = config(folder, tmp_path / "whole", pretrain=True, epochs=3)
    train(whole)
    from vitlet.training.run_folder import RunFolder

    log = RunFolder.log

    def die(self: RunFolder, rows: list[dict[str, Any]]) -> None:
        log(self, rows)
        if len(rows) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "log", die)
    with pytest.raises(KeyboardInterrupt):
        train(config(folder, tmp_path / "broken", pretrain=True, epochs=3))
    monkeypatch.setattr(RunFolder, "log", log)
    train(RunConfig(resume=str(tmp_path / "broken")))
    first, second = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_fine_tuning_starts_from_all_but_head_and_positions(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    source = load_file(pretrained / "last" / "model.safetensors")
    prepared = build_job(config(folder, tmp_path / "x", init=str(pretrained)))
    state = prepared.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in source.items() if name != "pos_embed")
    assert state["pos_embed"].abs().max() > 0
    assert any("3 fresh (pos_embed, head.weight, head.bias)" in note for note in prepared.notes)
    result = train(config(folder, tmp_path / "tuned", init=str(pretrained)))
    assert result.val is not None
    assert any("weights loaded" in warning for warning in result.warnings)


def test_weights_load_at_another_image_size(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    train(config(folder, tmp_path / "larger", init=str(pretrained), img_size=(24, 32), epochs=1))


def test_freezing_trains_the_classifier_alone(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    train(config(folder, tmp_path / "frozen", init=str(pretrained), freeze=True, lr=0.1))
    before, after = (load_file(run / "last" / "model.safetensors") for run in (pretrained, tmp_path / "frozen"))
    assert all(torch.equal(before[name], after[name]) for name in before if name != "pos_embed")
    fresh = build_job(config(folder, tmp_path / "x", init=str(pretrained))).model.state_dict()
    assert not torch.equal(fresh["head.weight"], after["head.weight"])


def test_layer_decay_scales_by_depth(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, num_classes=3, **VIT)
    groups = layer_decay_groups(model, weight_decay=0.1, layer_decay=0.5)
    scale = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    assert len(scale) == len(list(model.parameters()))
    first, second = scale[id(model.blocks[0].attn.qkv.weight)], scale[id(model.blocks[1].attn.qkv.weight)]
    assert second == pytest.approx(2 * first)
    assert scale[id(model.head.weight)] == 1.0
    train(config(folder, tmp_path / "run", init=str(pretrained), layer_decay=0.75, epochs=1))


def test_joint_training_with_tasks_of_both_papers(folder: Path, tmp_path: Path) -> None:
    tasks = {"drloc": TaskConfig(0.1), "sprel": TaskConfig(1.0), "position": TaskConfig(1.0)}
    result = train(config(folder, tmp_path / "run", tasks=tasks))
    assert {"drloc/error_cells", "sprel/accuracy", "position/accuracy"} <= set(result.tasks)
    assert result.val is not None


def test_swin_windows_of_another_size_are_resampled(folder: Path, tmp_path: Path) -> None:
    def swin(window: int) -> dict[str, Any]:
        return {
            "model": "swin_tiny_patch4_window7_224",
            "model_kwargs": {
                "patch_size": 2,
                "embed_dim": 12,
                "depths": [1, 1],
                "num_heads": [1, 2],
                "window_size": window,
            },
        }

    train(config(folder, tmp_path / "source", pretrain=True, epochs=1, **swin(4)))
    result = train(config(folder, tmp_path / "run", init=str(tmp_path / "source"), epochs=1, **swin(2)))
    assert any("resampled" in warning for warning in result.warnings)


def test_other_networks_are_refused_with_keys_and_shapes(folder: Path, pretrained: Path, tmp_path: Path) -> None:
    for kwargs, words in [
        ({**VIT, "depth": 3}, r"blocks\.2\.norm1\.weight is missing"),
        ({**VIT, "embed_dim": 24}, r"blocks\.0\.attn\.proj\.weight is \(36, 36\), needed \(24, 24\)"),
    ]:
        with pytest.raises(VitletError, match=words):
            train(config(folder, tmp_path / "run", init=str(pretrained), model_kwargs=kwargs))
    with pytest.raises(vitlet.VitletError, match=r"is unknown|is missing"):
        train(
            config(
                folder, tmp_path / "run", init=str(pretrained), model="resnet10t", model_kwargs={}, img_size=(64, 64)
            )
        )
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\x80\x04nonsense")
    with pytest.raises(vitlet.VitletError, match="cannot read the weights"):
        train(config(folder, tmp_path / "run", init=str(broken)))
    with pytest.raises(vitlet.VitletError, match="no such run folder"):
        train(config(folder, tmp_path / "run", init="absent"))
    assert not (tmp_path / "run").exists()


def test_a_hostile_pickle_as_weights_runs_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, ("pwned",))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.safetensors").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(vitlet.VitletError, match="cannot read the weights"):
        train(config(folder, tmp_path / "run", init=str(tmp_path / "evil.safetensors")))
    assert not (tmp_path / "pwned").exists()


def test_a_pretraining_run_cannot_be_evaluated(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(pretrained)]) == 2
    assert "has no classifier" in capsys.readouterr().err


def test_probe_command(pretrained: Path, shared_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["probe", str(pretrained), str(shared_folder), "--fractions", "0.5,1", "-k", "3", "--baselines"]
    assert main([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [(r["features"], r["fraction"]) for r in results] == [
        (kind, share) for kind in ("run", "random weights", "raw pixels") for share in (0.5, 1.0)
    ]
    assert all(0 <= r["knn"] <= 100 and 0 <= r["linear"] <= 100 for r in results)
    assert results[0]["labels"] == 12
    assert [bool(r["layer"]) for r in results] == [True] * 4 + [False] * 2  # a block was chosen, where there are blocks
    assert results[1]["labels"] == 24
    assert main(words) == 0
    assert "kNN %" in capsys.readouterr().out
    assert main([*words, "--layer", "99"]) == 2
    assert "layer must be between 1 and" in capsys.readouterr().err
    assert main([*words[:3], "--fractions", "2"]) == 2
    assert "must be greater than 0 and at most 1" in capsys.readouterr().err


def test_probe_of_a_supervised_run(shared_folder: Path, tmp_path: Path) -> None:
    train(config(shared_folder, tmp_path / "run", epochs=1))
    results = probe(tmp_path / "run", fractions=(1.0,), neighbours=3, device="cpu")
    assert len(results) == 1


def test_probes_on_features_that_are_known_to_be_good() -> None:
    labels = torch.arange(60) % 3
    features = torch.nn.functional.normalize(torch.eye(3)[labels] + 0.05 * torch.randn(60, 3), dim=1)
    assert knn_accuracy(features, labels, features, labels, 5) == 100
    assert linear_accuracy(features, labels, features, labels) == 100
    shuffled = labels[torch.randperm(60)]
    assert knn_accuracy(features, shuffled, features, labels, 20) < 80
    slow = 0
    for query in range(60):
        likeness = [(float(features[query] @ features[other]), int(shuffled[other])) for other in range(60)]
        votes = [0.0, 0.0, 0.0]
        for value, label in sorted(likeness, reverse=True)[:7]:
            votes[label] += torch.tensor(value / 0.07).exp().item()
        slow += votes.index(max(votes)) == int(labels[query])
    assert knn_accuracy(features, shuffled, features, labels, 7) == pytest.approx(100 * slow / 60)
    assert parse_fractions("0.1,1") == (0.1, 1.0)


def test_positions_of_several_networks() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", img_size=16, **VIT)
    assert position_names(vit) == ["pos_embed"]
    switch_positions_off(vit)
    assert vit.pos_embed.abs().max() == 0
    assert not vit.pos_embed.requires_grad
    assert position_names(timm.create_model("resnet10t")) == []


WINDOWED = {"img_size": (8, 16), "patch_size": 2, "depths": (1,), "num_heads": (2,), "embed_dim": 16}
WHOLE = {"img_size": (8, 16), "patch_size": 2, "depth": 1, "num_heads": 2, "embed_dim": 16}


@pytest.mark.parametrize(
    ("name", "sizes", "window"),
    [
        ("swin_tiny_patch4_window7_224", {**WINDOWED, "window_size": 4}, (4, 4)),
        ("swinv2_tiny_window8_256", {**WINDOWED, "window_size": 4}, (4, 4)),
        ("swinv2_cr_tiny_224", {**WINDOWED, "window_size": 4, "drop_path_rate": 0.0}, (4, 4)),
        ("beit_base_patch16_224", WHOLE, (4, 8)),
        ("vit_relpos_small_patch16_224", WHOLE, (4, 8)),
        ("vit_srelpos_small_patch16_224", WHOLE, (4, 8)),
        ("convit_tiny", {**WHOLE, "depth": 2, "local_up_to_layer": 1, "img_size": (16, 16)}, (8, 8)),
    ],
)
def test_without_positions_tokens_may_change_places_in_their_window(
    name: str, sizes: dict[str, Any], window: tuple[int, int]
) -> None:
    """Patches that change places in the same way in every window give the same logits: no table is in use."""
    model = timm.create_model(name, num_classes=5, **sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    (down, right), order = window, torch.randperm(window[0] * window[1])
    images = torch.randn(2, 3, *sizes["img_size"])
    cells = images.view(2, 3, -1, down, 2, sizes["img_size"][1] // right // 2, right, 2).permute(0, 1, 2, 5, 4, 7, 3, 6)
    moved = cells.flatten(6)[..., order].view(cells.shape).permute(0, 1, 2, 6, 4, 3, 7, 5).reshape(images.shape)
    with torch.no_grad():
        assert (model(moved) - model(images)).abs().max() > 1e-3
        done = switch_positions_off(model)
        torch.testing.assert_close(model(moved), model(images), rtol=1e-3, atol=1e-4)
    still = {key for key, parameter in model.named_parameters() if not parameter.requires_grad}
    assert still and any(key in done for key in still)
    assert all(not parameter.any() for key, parameter in model.named_parameters() if key in still)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet10t", "ResNet has no positional embedding known"),
        ("cvt_13", "CvT has no positional embedding known"),
        ("eva02_tiny_patch14_224", "its layer rope is a RotaryEmbeddingCat"),
        ("twins_svt_small", "its layer pos_block.0 is a PosConv"),
    ],
)
def test_positions_that_cannot_be_switched_off_are_refused(name: str, words: str) -> None:
    with pytest.raises(VitletError, match=words):
        switch_positions_off(timm.create_model(name))


def test_relative_positions_that_were_off_start_fresh(tmp_path: Path) -> None:
    sizes = {**WINDOWED, "window_size": 4, "num_classes": 5}
    model, other = (timm.create_model("swin_tiny_patch4_window7_224", **sizes) for _ in range(2))
    table = "layers.0.blocks.0.attn.relative_position_bias_table"
    fresh = other.state_dict()[table].clone()
    switch_positions_off(model)
    save_file(model.state_dict(), tmp_path / "off.safetensors")
    assert table in load_weights(other, tmp_path / "off.safetensors").fresh
    torch.testing.assert_close(other.state_dict()[table], fresh)


def test_loading_reports_what_became_of_each_weight(pretrained: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, num_classes=3, **VIT)
    report = load_weights(model, pretrained / "last" / "model.safetensors")
    assert set(report.loaded) == set(model.state_dict()) - {"head.weight", "head.bias", "pos_embed"}
    assert report.fresh == ("pos_embed", "head.weight", "head.bias")
    assert "weights loaded, 3 fresh (pos_embed, head.weight, head.bias)" in str(report)


def test_what_a_probe_says_of_an_image_depends_on_no_other(shared_folder: Path, tmp_path: Path) -> None:
    train(config(shared_folder, tmp_path / "run", epochs=3, lr=0.003))
    shutil.copytree(shared_folder, tmp_path / "less")
    alone = {}
    for name in ("digit 0", "digit 1", "digit 2"):
        shutil.rmtree(tmp_path / "less" / "test")
        shutil.copytree(shared_folder / "test" / name, tmp_path / "less" / "test" / name)
        (alone[name],) = probe(tmp_path / "run", str(tmp_path / "less"), fractions=(1.0,), neighbours=3, device="cpu")
    (together,) = probe(tmp_path / "run", fractions=(1.0,), neighbours=3, device="cpu")
    assert together.knn == pytest.approx(sum(each.knn for each in alone.values()) / 3)
    assert together.linear == pytest.approx(sum(each.linear or 0.0 for each in alone.values()) / 3)


def test_a_probe_tests_on_what_the_run_held_out(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(folder, tmp_path / "run", seed=7, val_fraction=0.4, classes=("digit 0", "digit 2"), epochs=1)
    train(chosen)
    seen = []
    extract = probes.extract

    def listen(images: ImageSet, *others: Any) -> Any:
        seen.append({images.key(index) for index in range(len(images))})
        return extract(images, *others)

    monkeypatch.setattr(probes, "extract", listen)
    probe(tmp_path / "run", fractions=(1.0,), neighbours=3, seed=1, device="cpu")
    dataset = load_dataset(data_request(chosen))
    assert dataset.val is not None
    assert seen == [{images.key(index) for index in range(len(images))} for images in (dataset.train, dataset.val)]
