"""The objective: parts, weights, views, labels or none; and the doors that lead to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import timm
import torch
from torch import Tensor, nn

import vitlet
from vitlet.tasks.task import Task, TaskResult, ask
from vitlet.testing import token_grid
from vitlet.tokens.features import Features, Shapes
from vitlet.tokens.views import PlainView, View


def small_vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=(16, 24), patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=5
    )


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 16, 24), torch.tensor([0, 1, 2, 3])


@dataclass(frozen=True)
class Mirrored:
    """A view of another kind."""

    def __call__(self, images: Tensor) -> View:
        return View(images.flip(-1))


class Probe(Task):
    """Remembers what it saw; its loss is the mean token."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self.seen: list[Features] = []

    def build(self, shapes: Shapes) -> None:
        self.shapes = shapes

    def forward(self, features: Features) -> TaskResult:
        self.seen.append(features)
        return TaskResult(features.last.tokens.square().mean(), {"count": 1.0})


def test_total_is_the_weighted_sum() -> None:
    objective = vitlet.Objective(
        vitlet.TimmBackbone(small_vit()), [vitlet.Term(vitlet.DRLoc(hidden=16), 0.5), vitlet.Term(Probe("probe"), 2.0)]
    )
    outcome = objective(*batch())
    parts = outcome.parts
    assert list(parts) == ["criterion", "drloc", "probe"]
    expected = parts["criterion"] + 0.5 * parts["drloc"] + 2.0 * parts["probe"]
    assert outcome.loss.item() == pytest.approx(expected.item())
    assert set(outcome.metrics) == {"drloc/error_cells", "drloc/chance_cells", "probe/count"}
    assert not any(part.requires_grad for part in parts.values())


def test_the_classifier_is_untouched() -> None:
    model = small_vit().eval()
    images, labels = batch()
    plain = vitlet.Objective(vitlet.TimmBackbone(model))
    joined = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(vitlet.DRLoc(hidden=16), 0.5)]).eval()
    assert torch.allclose(joined(images, labels).logits, model(images), atol=1e-6)
    assert plain(images, labels).loss.item() == pytest.approx(
        nn.functional.cross_entropy(model(images), labels).item(), abs=1e-6
    )
    fresh = set(small_vit().state_dict())
    assert set(joined.backbone.model.state_dict()) == fresh  # no head in what is exported


def test_terms_with_equal_views_share_a_forward() -> None:
    model = small_vit()
    calls: list[int] = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr, index]
    first, second, third = Probe("first"), Probe("second"), Probe("third")
    objective = vitlet.Objective(
        vitlet.TimmBackbone(model),
        [vitlet.Term(first), vitlet.Term(second, view=Mirrored()), vitlet.Term(third, view=Mirrored())],
    )
    calls.clear()
    images, labels = batch()
    objective(images, labels)
    assert len(calls) == 2  # the plain view with the classifier, and the mirrored one
    assert torch.equal(first.seen[-1].images, images)
    assert torch.equal(second.seen[-1].images, images.flip(-1))
    assert second.seen[-1].last is third.seen[-1].last
    assert PlainView() == PlainView()


def test_without_labels_it_is_pretraining() -> None:
    objective = vitlet.Objective(vitlet.TimmBackbone(small_vit()), [vitlet.Term(vitlet.DRLoc(hidden=16), 1.0)])
    outcome = objective(batch()[0])
    assert list(outcome.parts) == ["drloc"]
    outcome.loss.backward()
    with pytest.raises(vitlet.VitletError, match="nothing to train"):
        vitlet.Objective(vitlet.TimmBackbone(small_vit()))(batch()[0])


def test_schedules_need_the_epoch() -> None:
    ramp = vitlet.Ramp(0.5, epochs=10, warmup_epochs=2)
    objective = vitlet.Objective(vitlet.TimmBackbone(small_vit()), [vitlet.Term(vitlet.DRLoc(hidden=16), ramp)])
    with pytest.raises(vitlet.VitletError, match="follows a schedule"):
        objective(*batch())
    weights: Mapping[str, float] = objective.weights(1)
    assert weights == {"drloc": 0.25}
    assert objective.weights(0) == {"drloc": 0.0}  # the first epoch is one, too
    outcome = objective(*batch(), weights)
    assert outcome.loss.item() == pytest.approx((outcome.parts["criterion"] + 0.25 * outcome.parts["drloc"]).item())
    task = vitlet.TimmTrainingTask(objective)
    with pytest.raises(vitlet.VitletError, match=r"'drloc' follows a schedule.*epoch of a TimmTrainingTask"):
        task(*batch())
    task.epoch = 1.0
    result = task(*batch())
    assert result["loss"].item() == pytest.approx((result["criterion"] + 0.25 * result["drloc"]).item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet10t"])
def test_a_network_in_any_precision(name: str, dtype: torch.dtype) -> None:
    """Heads keep their own; where they follow the model, tokens do too."""
    small = {
        "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2},
        "swin_tiny_patch4_window7_224": {"img_size": 64, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1)},
    }
    model = timm.create_model(name, num_classes=5, **small.get(name, {})).to(dtype)
    size = 64 if name == "resnet10t" else None
    terms = [vitlet.Term(task) for task in (vitlet.DRLoc(hidden=8), vitlet.SpatialRelations(), vitlet.Position())]
    objective = vitlet.Objective(vitlet.TimmBackbone(model, img_size=size), terms)
    images = torch.randn(2, 3, *objective.backbone.img_size, dtype=dtype)
    outcome = objective(images, torch.tensor([0, 1]))
    outcome.loss.backward()
    assert all(part.isfinite() for part in outcome.parts.values())
    assert next(objective.tasks.parameters()).dtype == torch.float32
    objective.to(dtype)(images, torch.tensor([0, 1])).loss.backward()


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (lambda: [vitlet.Term(vitlet.DRLoc(), -0.5)], "weight of 'drloc' must be at least 0, got -0.5"),
        (lambda: [vitlet.Term(vitlet.DRLoc()), vitlet.Term(vitlet.DRLoc())], "different names"),
        (lambda: [vitlet.Term(Probe("criterion"))], "different names"),
    ],
)
def test_refused_terms(terms: object, words: str) -> None:
    with pytest.raises(vitlet.VitletError, match=words):
        vitlet.Objective(vitlet.TimmBackbone(small_vit()), terms())  # type: ignore[operator]


def test_training_mode_and_statistics_survive_the_probe() -> None:
    model = timm.create_model("resnet18", num_classes=5)
    model.layer1.eval()
    before = model.bn1.running_mean.clone()
    vitlet.Objective(vitlet.TimmBackbone(model, img_size=64), [vitlet.Term(vitlet.DRLoc(), 1.0)])
    assert model.training
    assert not model.layer1.training
    assert torch.equal(model.bn1.running_mean, before)


def test_door_timm_task() -> None:
    objective = vitlet.Objective(vitlet.TimmBackbone(small_vit()), [vitlet.Term(vitlet.DRLoc(hidden=16), 0.5)])
    task = vitlet.TimmTrainingTask(objective)
    result = task(*batch())
    assert {"loss", "output", "criterion", "drloc"} <= set(result)
    result["loss"].backward()
    state = task.get_checkpoint_state()
    assert set(state["state_dict"]) == set(small_vit().state_dict())
    assert all(key.startswith("drloc.") for key in state["task_state"])
    task.setup_ema(decay=0.5)
    task.update_ema()
    other = vitlet.TimmTrainingTask(
        vitlet.Objective(vitlet.TimmBackbone(small_vit()), [vitlet.Term(vitlet.DRLoc(hidden=16), 0.5)])
    )
    other.load_checkpoint_state(state["state_dict"], state["task_state"])
    for mine, theirs in zip(
        task.get_trainable_module().parameters(), other.get_trainable_module().parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
    assert task.get_eval_model()(batch()[0]).shape == (4, 5)
    assert task.get_eval_model(ema=True)(batch()[0]).shape == (4, 5)


def test_one_step_with_bfloat16_and_compile() -> None:
    objective = vitlet.Objective(vitlet.TimmBackbone(small_vit()), [vitlet.Term(vitlet.DRLoc(hidden=16), 0.5)])
    torch.compiler.reset()  # batch sizes of other tests would make it dynamic
    compiled = torch.compile(objective, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = compiled(*batch())
    outcome.loss.backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_learning_the_task_on_real_scans() -> None:
    """A few steps on real images bring the error below chance: the signal reaches the tokens."""
    from sklearn.datasets import load_digits

    scans = torch.from_numpy(load_digits().images[:64]).float()[:, None] / 8 - 1
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, embed_dim=64, depth=2, num_heads=2, num_classes=10
    )
    objective = vitlet.Objective(vitlet.TimmBackbone(model), [vitlet.Term(vitlet.DRLoc(hidden=64), 1.0)])
    optimizer = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    for _ in range(160):
        outcome = objective(scans)
        optimizer.zero_grad()
        outcome.loss.backward()
        optimizer.step()
    assert float(outcome.metrics["drloc/error_cells"]) < 0.5 * float(outcome.metrics["drloc/chance_cells"])


def test_heads_get_tokens_in_their_own_precision_outside_autocast() -> None:
    task = vitlet.Position()
    features = token_grid()
    task.build(Shapes(features.last.shape, features.last.shape))
    double = features.in_precision(torch.float64)
    assert ask(task, double).loss.isfinite()
    probe = Probe("probe")
    probe.head = nn.Linear(1, 1)
    ask(probe, double)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ask(probe, double)
    assert [seen.last.tokens.dtype for seen in probe.seen] == [torch.float32, torch.float64]
