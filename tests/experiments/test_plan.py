"""Plans: counts against hand counts and real tensors, formulas, sentences for bad input, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from builders.released import mobile_sam
from vitlet.cli import main
from vitlet.cli.commands.plan import parse_plan
from vitlet.config import RunConfig, TaskConfig
from vitlet.errors import VitletError
from vitlet.experiments.planning.counting import Counting, SavedBytes, Work
from vitlet.experiments.planning.devices import DEVICES, LAUNCH_SECONDS, Roofline, all_reduce_seconds
from vitlet.experiments.planning.measure import MachineSpeed, rate_at
from vitlet.experiments.planning.plan import GIB, Machine, Plan, plan, predict
from vitlet.experiments.planning.request import PlanRequest
from vitlet.experiments.planning.step import StepCount, count_step, plan_objective, without_content
from vitlet.experiments.planning.supply import Supply, find_supply
from vitlet.experiments.planning.workouts import workouts
from vitlet.training.optim import make_optimizer

SMALL = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
CONFIG = RunConfig(model="vit_tiny_patch16_224", model_kwargs=SMALL, img_size=(16, 16), batch_size=8, epochs=10)
WORDS = "--model vit_tiny_patch16_224 --model-kwargs patch_size=4 embed_dim=32 depth=1 num_heads=2 --img-size 16"
QUICK = ["plan", "--images", "640", "--num-classes", "10", *WORDS.split(), "-b", "64", "--epochs", "3"]


@pytest.fixture(scope="module")
def counted() -> StepCount:
    return count_step(CONFIG, classes=10, images=8)


def machine(memory: float = 80.0) -> Machine:
    device = DEVICES["a100"]
    return Machine(device.name, Roofline(device), int(memory * GIB), device.link, is_gpu=True)


def planned(count: StepCount, config: RunConfig = CONFIG, memory: float = 80.0, **wishes: float) -> Plan:
    request = PlanRequest(**wishes)  # type: ignore[arg-type]
    return predict(config, request, Supply(800, 80, 10, "made up"), machine(memory), count)


def test_flops_equal_a_hand_count() -> None:
    def step() -> None:
        network(torch.zeros(2, 3, 8, 8)).sum().backward()

    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Flatten(), nn.Linear(384, 5)
    )
    pixels = 2 * 8 * 8
    dense, depthwise, linear = 2 * pixels * 6 * 3 * 9, 2 * pixels * 6 * 9, 2 * 2 * 384 * 5
    with Counting() as counting:
        step()
    by_kind = {work.kind: work.flops * count for work, count in counting.work.items() if work.flops}
    assert by_kind.pop("convolution") == dense
    assert by_kind.pop("convolution_backward") == dense  # the images need no gradient
    assert by_kind.pop("small_depthwise_convolution") == depthwise
    assert by_kind.pop("small_depthwise_convolution_backward") == 2 * depthwise
    assert sum(by_kind.values()) == 3 * linear


def test_flops_of_a_vit(counted: StepCount) -> None:
    tokens, width = 17, 32  # a class token and 4 x 4 patches
    linears = 2 * tokens * (3 + 1 + 4 + 4) * width * width
    attention = 2 * 2 * tokens * tokens * width
    patches, head = 2 * 16 * 3 * 16 * width, 2 * width * 10
    forward = 2 * (linears + attention) + patches + head
    # backward: twice the forward, but for the pixels, and half more in attention, which is computed again
    assert counted.flops == 3 * forward + 2 * attention // 2 - patches


def test_bytes_moved_are_those_read_and_written() -> None:
    with Counting() as counting:
        first, second = torch.ones(1000), torch.ones(1000)
        counting.take()
        first + second
        first.view(10, 100).t()
        first.add_(second)
        first.bfloat16()
    found = sorted((work.kind, work.bytes) for work in counting.work.elements())
    assert found == [("_to_copy", 6000), ("add", 12000), ("add", 12000)]


def test_state_is_exact(counted: StepCount) -> None:
    objective = plan_objective(CONFIG, 10)
    optimizer = make_optimizer(objective, CONFIG)
    objective(torch.randn(2, 3, 16, 16), torch.tensor([0, 1])).loss.backward()
    optimizer.step()
    parameters = list(objective.parameters())
    assert counted.parameters == sum(each.numel() for each in parameters)
    assert counted.memory.weights == 4 * counted.parameters  # a ViT has no buffers
    assert counted.memory.gradients == sum(each.grad.nbytes for each in parameters if each.grad is not None)
    state = [value for each in optimizer.state.values() for value in each.values()]
    assert counted.memory.optimizer == sum(value.nbytes for value in state)
    averaged = count_step(replace(CONFIG, model_ema=True), classes=10, images=8)
    assert (counted.memory.average, averaged.memory.average) == (0, counted.memory.weights)
    assert averaged.memory.total == counted.memory.total + counted.memory.weights


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, tasks={"drloc": TaskConfig(0.5), "attention-distance": TaskConfig(1.0)}),
        replace(CONFIG, amp=True),
        replace(CONFIG, model="resnet18", model_kwargs={}, img_size=(64, 64)),
    ],
    ids=["vit", "tasks", "bfloat16", "resnet"],
)
def test_activations_are_those_of_a_real_step(config: RunConfig) -> None:
    objective = plan_objective(config, 10)
    images, labels = torch.randn(8, 3, *objective.backbone.img_size), torch.randint(10, (8,))
    found = SavedBytes([*objective.parameters(), *objective.buffers()])
    with found, torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(config.amp)):
        objective(images, labels, objective.weights(5))
    assert found.total > 0
    assert count_step(config, classes=10, images=8).memory.activations == pytest.approx(found.total, rel=0.01)


def test_peak_counts_what_is_alive() -> None:
    with Counting() as counting:
        one = torch.empty(1000)
        two = one + 1
        del one
        three = two + 1
        del two, three
    assert (counting.peak, counting.live) == (8000, 0)


def test_nothing_stays_alive_after_the_backward_pass() -> None:
    network = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    found = SavedBytes(network.parameters())
    with Counting() as counting:
        weights = counting.hold(network.parameters())
        with found:
            loss = network(torch.ones(16, 64)).sum()
        assert found.total == 3 * 16 * 64 * 4  # the input, and what goes into and comes out of the activation
        assert counting.live >= found.total
        loss.backward()
        del loss
    assert counting.live == 2 * weights  # and their gradients


def test_memory_falls_by_checkpointing_and_parts(counted: StepCount) -> None:
    again = count_step(replace(CONFIG, grad_checkpointing=True), classes=10, images=8)
    assert again.memory.activations < counted.memory.activations / 2
    assert again.flops > counted.flops
    parts = count_step(replace(CONFIG, grad_accum_steps=2), classes=10, images=4)
    assert parts.memory.activations == pytest.approx(counted.memory.activations / 2, rel=0.1)
    assert sum(parts.further.values()) > sum(parts.part.values())  # gradients are added


def test_shared_parameters_stay_shared() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    without_content(network, FakeTensorMode())
    assert network[1].weight is network[0].weight
    assert len(list(network.parameters())) == 3


def test_roofline_takes_the_longer_of_arithmetic_and_traffic() -> None:
    speed = Roofline(DEVICES["a100"], 0.5)
    assert speed.seconds({Work("mm_nn", "bfloat16", 312 * 10**12, 10): 1}) == pytest.approx(2.0)
    assert speed.seconds({Work("mm_nn", "float32", 195 * 10**11, 10): 1}) == pytest.approx(2.0)
    assert speed.seconds({Work("add", "float32", 0, 2039 * 10**9): 2}) == pytest.approx(2 / 0.8)
    assert speed.seconds({Work("add", "float32", 0, 8): 100}) == pytest.approx(100 * LAUNCH_SECONDS)


def test_rates_between_measured_sizes() -> None:
    curve = ((100.0, 1.0), (10_000.0, 4.0))
    assert [rate_at(curve, size) for size in (1, 1000, 10**6)] == pytest.approx([1.0, 2.0, 4.0])
    speed = MachineSpeed({("add", "float32"): curve, ("mm_nn", "float32"): ((1.0, 10.0),)}, 0.5, "a machine")
    assert speed.seconds({Work("add", "float32", 0, 1000): 2}) == pytest.approx(2 * (0.5 + 500))
    assert speed.seconds({Work("never seen", "bfloat16", 0, 100): 1}) == pytest.approx(0.5 + 100)
    assert speed.seconds({Work("bmm_tt", "float32", 100, 7): 1}) == pytest.approx(0.5 + 10)


def test_a_clock_times_each_operation() -> None:
    ticks = iter(range(100))
    with Counting(lambda: float(next(ticks) ** 2)) as watch:
        tensor = torch.ones(4)
        tensor + tensor
    times = {work.kind: taken for work, taken in watch.times.items()}
    assert times["add"] == [5.0]  # 3 squared less 2 squared


def test_all_reduce() -> None:
    assert all_reduce_seconds(1, 10**9, 1.0) == 0
    assert all_reduce_seconds(4, 10**9, 2.0) == pytest.approx(2 * 3 / 4 / 2)


def test_time_and_cost(counted: StepCount) -> None:
    one = planned(counted, price=3.0)
    assert one.steps == 10 * 100
    assert one.cost == pytest.approx(3.0 * one.hours)
    assert planned(counted).cost is None
    double = planned(counted, replace(CONFIG, epochs=20))
    assert double.hours == pytest.approx(2 * one.hours)
    assert one.images_per_second == pytest.approx(8 / one.step_seconds)
    four = planned(counted, devices=4, price=3.0, link=0.001)
    assert four.link_seconds == pytest.approx(2 * 3 / 4 * counted.memory.gradients / 1e6)
    assert four.step_seconds == pytest.approx(one.step_seconds + four.link_seconds)
    assert four.steps == 10 * 25
    assert four.cost == pytest.approx(3.0 * 4 * four.hours)
    assert one.hours > one.steps * one.step_seconds / 3600  # validation


def test_sharding_divides_the_state(counted: StepCount) -> None:
    shared = planned(counted, replace(CONFIG, fsdp=True), devices=4)
    assert shared.memory.weights == counted.memory.weights // 4
    assert shared.memory.optimizer == -(-counted.memory.optimizer // 4)
    assert shared.memory.activations == counted.memory.activations
    assert shared.link_seconds == pytest.approx(1.5 * planned(counted, devices=4).link_seconds)


def test_says_whether_it_fits_and_what_to_do(counted: StepCount) -> None:
    assert planned(counted).fits
    assert planned(counted).advice == ""
    rest = counted.memory.temporary + counted.memory.activations
    large = replace(counted, memory=replace(counted.memory, activations=3 * GIB, temporary=rest), images=8)
    tight = planned(large, memory=3, devices=2)
    assert not tight.fits
    for flag in ("--grad-accum-steps 2 (4 images at a time", "--grad-checkpointing", "--amp", "--fsdp"):
        assert flag in tight.advice
    half = replace(large, images=4, memory=replace(large.memory, activations=3 * GIB // 2))
    assert planned(half, replace(CONFIG, grad_accum_steps=2), memory=3, devices=2).fits
    huge = replace(counted, memory=replace(counted.memory, weights=9 * GIB))
    used_up = replace(CONFIG, grad_checkpointing=True, amp=True, fsdp=True)
    assert "a smaller --model" in planned(huge, used_up, memory=2, devices=2).advice


def test_images_of_a_named_dataset_need_no_disk() -> None:
    named = replace(CONFIG, data="cifar100")
    assert find_supply(named, None) == Supply(
        45_000, 5_000, 100, "cifar100: 50,000 official training images, 5,000 of them for validation"
    )
    assert find_supply(replace(named, val_fraction=0.0, fraction=0.5), None).train == 25_000
    assert find_supply(replace(named, per_class=10), None).train == 1_000
    assert find_supply(replace(CONFIG, data="digits"), None).classes == 10
    with pytest.raises(VitletError, match="Leave --num-classes out"):
        find_supply(replace(named, num_classes=10), None)


def test_every_task_and_pretraining_can_be_planned() -> None:
    tasks = {name: TaskConfig(1.0) for name in ("sprel", "distance", "angle", "position", "rotation")}
    config = replace(CONFIG, model_kwargs={**SMALL, "depth": 1})
    with_tasks = count_step(replace(config, tasks=tasks), classes=10, images=4)
    alone = count_step(config, classes=10, images=4)
    assert with_tasks.flops > 1.9 * alone.flops  # rotation uses its own view of the images
    assert with_tasks.parameters > alone.parameters
    assert count_step(replace(config, pretrain=True), classes=0, images=4).flops > 0


def test_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--device", "a100", "--devices", "4", "--price", "2"]) == 0
    printed = capsys.readouterr().out
    for words in ("predicted, not measured", "4 x a100", "cost", "fits:", "assumed", "exchanging gradients"):
        assert words in printed
    assert main([*QUICK, "--device", "t4", "--memory", "0.01"]) == 0
    printed = capsys.readouterr().out
    assert "does not fit: needs" in printed
    assert "use --amp-dtype float16" in printed


def test_trained_weights_name_the_model_that_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mobile_sam(tmp_path / "mobile_sam.pt")
    words = ["plan", "flowers102", "--init", str(tmp_path / "mobile_sam.pt"), "--device", "a100"]
    assert main([*words, "--json"]) == 0
    chosen = " ".join(json.loads(capsys.readouterr().out)["chosen"])
    assert "tiny_vit_5m_224" in chosen and "MobileSAM" in chosen


def test_command_answers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--tflops", "10", "--bandwidth", "500", "--memory", "16"]
    assert main([*QUICK, *own, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps"] == 30
    assert answer["fits"] is True
    parts = [size for name, size in answer["memory"].items() if name != "total"]
    assert answer["memory"]["total"] == sum(parts)
    assert answer["cost"] is None


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = list(workouts(slow=True))
    monkeypatch.setattr("vitlet.experiments.planning.measure.workouts", lambda slow: pieces)  # the smaller ones
    config, request, *_ = parse_plan([*QUICK[1:], "--device", "this"])
    found = plan(config, request)
    assert "measured just now" in " ".join(found.notes)
    assert 0.0005 < found.step_seconds < 5
    assert found.available > GIB


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--device", "a1000"], "unknown device 'a1000'. Did you mean 'a100'"),
        (["--device", "a100", "--model", "vit_tinny"], "unknown model 'vit_tinny'"),
        (["--device", "a100", "--price", "-1"], "price must be at least 0, got -1"),
        (["--device", "a100", "--devices", "7"], "a batch of 64 images does not divide by 7 devices"),
        (["--device", "a100", "--devices", "32", "--grad-accum-steps", "4"], "by 32 devices x 4 parts"),
        (["--device", "a100", "--efficiency", "1.5"], "efficiency must be greater than 0 and at most 1, got 1.5"),
        (["--images", "0"], "images must be at least 1, got 0"),
        (["--tflops", "10"], "requires both --tflops and --bandwidth"),
        (["--tflops", "10", "--bandwidth", "9"], "requires --memory"),
        (["--device", "cpu", "--efficiency", "0.5"], "--efficiency has no effect on this machine"),
        (["--price", "dear"], "price must be a number, got 'dear'"),
        (["--prize", "1"], "Did you mean '--price'"),
        (["--task", "drlok=1"], "unknown task 'drlok'"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, *words]) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) == 1


def test_a_network_that_cannot_checkpoint_is_refused() -> None:
    config = replace(CONFIG, model="dla46_c", model_kwargs={}, img_size=(64, 64), grad_checkpointing=True)
    with pytest.raises(VitletError, match="dla46_c"):
        count_step(config, classes=10, images=2)
