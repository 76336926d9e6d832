"""Several processes: the same numbers as one, sharded or not, started by --nproc or torchrun, on one machine or two."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import faults
from builders.runs import assert_close, finished, run, said
from vitlet.config import RunConfig, TaskConfig
from vitlet.data.loading import EpochOrder
from vitlet.errors import LostProcessError, VitletError, fail
from vitlet.training import state
from vitlet.training.checkpoint import Checkpoints
from vitlet.training.distributed import World
from vitlet.training.run_folder import read_rows

SMALL = "--model vit_tiny_patch16_224 --model-kwargs patch_size=4 embed_dim=24 depth=1 num_heads=2 --img-size 16"
QUICK = [*SMALL.split(), "-b", "8", "-j", "0", "--device", "cpu", "--val-fraction", "0.1"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults.write_images(tmp_path_factory.mktemp("distributed") / "data")


def test_two_processes_equal_one_that_accumulates(data: Path, tmp_path: Path) -> None:
    """With every task, mixup, cutmix, drop path and RandAugment: a part of a step draws the same wherever it is."""
    changes: dict[str, Any] = {"tasks": faults.ALL_TASKS, "aug": "drloc", "drop_path": 0.2, "model_ema": True}
    one = finished(data, tmp_path / "one", grad_accum_steps=2, **changes)
    two = finished(data, tmp_path / "two", 2, **changes)
    assert_close(one, two, names=tuple(key for key in read_rows(one)[0] if key.startswith(("train/", "val/loss"))))


@pytest.mark.heavy
def test_sharding_changes_nothing_but_where_the_weights_are(data: Path, tmp_path: Path) -> None:
    changes = {"model_kwargs": {**faults.VIT, "embed_dim": 144, "num_heads": 3}, "clip_grad": 0.5}  # blocks are large
    assert_close(
        finished(data, tmp_path / "ddp", 2, **changes), finished(data, tmp_path / "fsdp", 2, fsdp=True, **changes)
    )


@pytest.mark.heavy
def test_a_sharded_checkpoint_of_two_processes_is_continued_by_one(data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"tasks": {"sprel": TaskConfig(0.3)}, "fsdp": True}  # nothing is drawn in the model
    whole = finished(data, tmp_path / "whole", 2, **changes)
    config = faults.make_config(data, tmp_path / "run", **changes)
    assert -signal.SIGKILL in run(config, 2, death=faults.Death("step", 6, 0.0))
    assert run(RunConfig(resume=str(tmp_path / "run"), output=str(tmp_path / "run"))) == [0]
    assert "continued from" in said(config)
    assert_close(whole, tmp_path / "run")


def test_a_checkpoint_of_two_processes_is_continued_by_one(data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"tasks": {"sprel": TaskConfig(0.3)}, "drop_path": 0.0}  # nothing is drawn in the model
    whole = finished(data, tmp_path / "whole", **changes)
    config = faults.make_config(data, tmp_path / "run", **changes)
    assert -signal.SIGKILL in run(config, 2, death=faults.Death("step", 7, 0.0))
    newest, _ = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert newest.about["processes"] == 2
    assert newest.step % 4  # in the middle of an epoch
    assert run(config, 1) == [0]
    assert_close(whole, tmp_path / "run")


@pytest.mark.parametrize("network", [{}, {"model": "test_resnet", "model_kwargs": {}, "tasks": {}}])
def test_metrics_are_exact_over_uneven_shares(network: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """With a batch of 4 images a process, one process has one batch more than the other, and no image counts twice.

    All processes evaluate with the running means of the first one, whose weights are exported.
    """
    config = faults.make_config(data, tmp_path / "run", epochs=1, val_fraction=0.35, model_ema=True, **network)
    assert run(config, 2) == [0, 0]
    row = read_rows(tmp_path / "run")[0]
    assert row["val/count"] == 12
    from vitlet.inference.predict import Predictor

    scores, _ = Predictor.load(tmp_path / "run", device="cpu").evaluate(split="val", batch_size=5)
    assert scores.top1 == row["val/top1"]
    assert scores.loss == pytest.approx(row["val/loss"], abs=1e-6)


@pytest.mark.parametrize(("processes", "accumulated"), [(1, 1), (2, 1), (1, 4), (2, 2), (4, 1)])
def test_parts_make_up_the_same_steps(processes: int, accumulated: int) -> None:
    parts = processes * accumulated
    shares = []
    for rank in range(processes):
        mine = range(rank * accumulated, (rank + 1) * accumulated)
        order = EpochOrder([0] * 19, batch_size=8, seed=3, parts=parts, mine=mine)
        order.epoch = 1
        assert len(order) == 2 * accumulated
        shares.append(list(order))
        order.start = 1
        assert list(order) == shares[-1][accumulated:]
        assert [index for _, index in shares[-1][0]] == order.images(0, mine.start)
    steps = []
    for step in range(2):
        of_step = [shares[r][step * accumulated + a] for r in range(processes) for a in range(accumulated)]
        steps.append([item for part in of_step for item in part])
    whole = EpochOrder([0] * 19, batch_size=8, seed=3)
    whole.epoch = 1
    assert steps == list(whole)


def command(data: Path, output: Path, *words: str) -> list[str]:
    return ["train", str(data), *QUICK, "--task", "drloc=0.5", "--drloc.hidden", "16", "--output", str(output), *words]


@pytest.mark.heavy
def test_nproc(data: Path, tmp_path: Path) -> None:
    words = command(data, tmp_path / "run", "--epochs", "2", "--nproc", "2")
    done = subprocess.run([sys.executable, "-m", "vitlet", *words], env=ONE_THREAD, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8 images per step (processes x micro-batches x images: 2 x 1 x 4)" in done.stdout
    assert done.stdout.count("epoch 2/2") == 1  # one process talks
    newest, _ = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert newest.about["processes"] == 2
    odd = subprocess.run(
        [sys.executable, "-m", "vitlet", *command(data, tmp_path / "odd", "-b", "9", "--nproc", "2")],
        env=ONE_THREAD,
        capture_output=True,
        text=True,
    )
    assert odd.returncode == 2
    assert odd.stderr.count("batch_size (9) must be divisible by processes x grad_accum_steps (2 x 1)") == 1
    assert "Traceback" not in odd.stderr
    assert not (tmp_path / "odd").exists()


@pytest.mark.heavy
def test_the_launcher_passes_a_signal_on(data: Path, tmp_path: Path) -> None:
    words = command(data, tmp_path / "run", "--epochs", "500", "--nproc", "2")
    started = subprocess.Popen(
        [sys.executable, "-m", "vitlet", *words], env=ONE_THREAD, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "run" / "metrics.jsonl").exists() and started.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=90)
    assert started.returncode == 75, errors
    assert errors.count("the state is saved. Continue with: vitlet train --resume") == 1


def family(of: int) -> set[int]:
    """The processes that a process has started, and those that they have, as far as they live."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent, state in map(str.split, table.splitlines()) if state[0] != "Z"}
    found, before = {of}, set[int]()
    while found != before:
        before, found = found, found | {pid for pid, parent in parents.items() if parent in found}
    return found & parents.keys() - {of}


def shared_memory() -> set[str]:
    """The semaphores and shared tensors of this machine, as far as a system shows them."""
    return {path.name for path in Path("/dev/shm").glob("*")}


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["launcher", "process"])
def test_no_process_outlives_a_killed_one(victim: str, data: Path, tmp_path: Path) -> None:
    before = shared_memory()
    words = command(data, tmp_path / "run", "--epochs", "5000", "--nproc", "2", "-j", "2")
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "vitlet", *words], env=ONE_THREAD, stdout=log, stderr=subprocess.STDOUT
        )
    while not read_rows(tmp_path / "run") and started.poll() is None:
        time.sleep(0.1)
    ours = family(started.pid)
    assert len(ours) >= 2 + 4, (tmp_path / "log").read_text()  # two that train, two that load for each
    os.kill(started.pid if victim == "launcher" else min(ours), signal.SIGKILL)
    time.sleep(3.0)  # two seconds, and one for a machine that is busy
    left = {pid for pid in ours if Path(f"/proc/{pid}/stat").exists() and not is_zombie(pid)}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert started.wait(timeout=10) == (-signal.SIGKILL if victim == "launcher" else 128 + signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert {name for name in shared_memory() - before if name.startswith(("sem.", "torch_"))} == set()


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, though nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def torchrun(port: int, log: Path, words: list[str], **options: int) -> subprocess.Popen[bytes]:
    """An agent of torchrun, as on one of several machines."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    place = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={port}", "--local-addr=127.0.0.1"]
    agent = [sys.executable, "-m", "torch.distributed.run", *place, *flags, "-m", "vitlet", *words]
    environment = {**ONE_THREAD, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with log.open("ab") as out:
        return subprocess.Popen(agent, env=environment, stdout=out, stderr=subprocess.STDOUT)


@pytest.mark.heavy
def test_two_agents_of_torchrun_meet(data: Path, tmp_path: Path) -> None:
    words = command(data, tmp_path / "run", "--epochs", "2")
    port = free_port()
    agents = [torchrun(port, tmp_path / f"log{k}", words, nnodes=2, nproc_per_node=1) for k in range(2)]
    codes = [agent.wait(timeout=180) for agent in agents]
    assert codes == [0, 0], (tmp_path / "log0").read_text() + (tmp_path / "log1").read_text()
    newest, _ = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert newest.about["processes"] == 2


@pytest.mark.heavy
def test_an_elastic_restart_ends_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    """kill -9 of a rank: torchrun starts all of them anew, and ``--resume auto`` goes on from the last checkpoint."""
    settings = ["--epochs", "40", "--checkpoint-steps", "3", "--resume", "auto"]
    done = torchrun(free_port(), tmp_path / "log", command(data, tmp_path / "whole", *settings), nproc_per_node=2)
    assert done.wait(timeout=180) == 0, (tmp_path / "log").read_text()
    words = command(data, tmp_path / "run", *settings)
    agent = torchrun(free_port(), tmp_path / "log2", words, nproc_per_node=2, max_restarts=2)
    while not list((tmp_path / "run" / "checkpoints").glob("step-*")) and agent.poll() is None:
        time.sleep(0.02)
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split("\n")
    ranks = [int(line.split()[0]) for line in listed if line.strip() and int(line.split()[1]) == agent.pid]
    os.kill(ranks[-1], signal.SIGKILL)
    assert agent.wait(timeout=240) == 0, (tmp_path / "log2").read_text()
    assert "continued from" in (tmp_path / "log2").read_text()
    assert faults.differences(tmp_path / "whole", tmp_path / "run") == []


def test_pretraining_leaves_parameters_without_gradient(data: Path, tmp_path: Path) -> None:
    """The class token has no part in the tasks; two processes must not wait for its gradient."""
    finished(data, tmp_path / "run", 2, pretrain=True, epochs=1)
    assert read_rows(tmp_path / "run")[0]["val/loss"] > 0


def test_gradients_are_exchanged_once_a_step(data: Path, tmp_path: Path) -> None:
    """However many parts a process takes."""
    config = faults.make_config(data, tmp_path / "run", grad_accum_steps=2, epochs=1, checkpoint_steps=None)

    def count(rank: int) -> None:
        replicate = state.replicate

        def counted(*positional: Any, **named: Any) -> Any:
            wrapped = replicate(*positional, **named)
            exchanged = (tmp_path / f"exchanged-{rank}").open("w")

            def exchange(_, bucket):  # type: ignore[no-untyped-def]  # PyTorch looks at annotations, not at their text
                exchanged.write(f"{bucket.index()} ")
                exchanged.flush()
                work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
                return work.get_future().then(lambda done: done.value()[0])

            wrapped.register_comm_hook(None, exchange)
            return wrapped

        state.replicate = counted

    assert run(config, 2, before=count) == [0, 0], said(config)
    buckets = [int(word) for word in (tmp_path / "exchanged-1").read_text().split()]
    assert buckets.count(0) == 4  # steps; a process took two parts in each


def test_an_error_that_one_process_meets_is_told_by_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    problem = VitletError("an image is gone")
    assert fail(problem) == 2
    assert capsys.readouterr().err == ""
    problem.everywhere = False
    fail(problem)
    assert capsys.readouterr().err == "vitlet, process 1: an image is gone\n"


def test_a_process_that_is_gone_is_no_fault_of_the_checkpoint(tmp_path: Path) -> None:
    """Sharded weights are read by all processes together: one may be gone by then."""

    class Unread:
        path = tmp_path

        def state(self) -> dict[str, Any]:
            raise RuntimeError("[/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer")

    broken: Any = Unread()
    with pytest.raises(LostProcessError, match=r"another process of this run is gone: .*Connection reset"):
        state.State.read(broken, broken, World(size=2))
    with pytest.raises(VitletError, match=r"cannot continue from .*Connection reset") as found:
        state.State.read(broken, broken, World())
    assert not isinstance(found.value, LostProcessError)
