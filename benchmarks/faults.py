"""Start real training processes, kill them at a random moment or inside a phase, and compare what they end with.

Every process notes in shared memory what it is doing, so that the phase in which it died is known, not guessed. The
tests use this, and `fault_matrix.py`, which is what ``make faults`` runs.
"""

from __future__ import annotations

import functools
import gc
import mmap
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from vitlet.config import RunConfig, TaskConfig
from vitlet.errors import VitletError
from vitlet.processes import LAUNCHER
from vitlet.training import loop as engine
from vitlet.training.checkpoint import Checkpoints
from vitlet.training.run_folder import read_rows
from vitlet.training.saver import Saver
from vitlet.training.state import State

PHASES = ("loading", "step", "save", "rename", "evaluation")
GRACE = 5.0
VIT = {"patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}
SWIN = {"patch_size": 2, "embed_dim": 12, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
ALL_TASKS = {
    "drloc": TaskConfig(0.5, options={"hidden": 16, "pairs": 8}),
    "sprel": TaskConfig(0.3, view="shuffle"),
    "distance": TaskConfig(0.1),
    "angle": TaskConfig(0.1),
    "position": TaskConfig(0.1, patch_augment=True),
    "attention-distance": TaskConfig(0.1),
    "attention-similarity": TaskConfig(0.1),
    "rotation": TaskConfig(0.2),
    "jigsaw": TaskConfig(0.1),
    "reconstruction": TaskConfig(0.1, options={"width": 16, "share": 0.5}),
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"amp": True},
    "2 workers": {"workers": 2},
    "EMA": {"model_ema": True},
    "accumulation": {"grad_accum_steps": 2},
    "mixup, cutmix, RandAugment, drop path": {"aug": "drloc", "drop_path": 0.2},
    "every task": {"tasks": ALL_TASKS},
    "pre-training": {"pretrain": True},
    "balanced classes": {"balance": "sampler"},
    "Swin": {"model": "swin_tiny_patch4_window7_224", "model_kwargs": SWIN},
    "gradient checkpointing": {"grad_checkpointing": True},
    "2 processes": {"processes": 2},
    "2 processes, 2 workers, bf16, EMA, accumulation": {
        "processes": 2,
        "workers": 2,
        "amp": True,
        "model_ema": True,
        "grad_accum_steps": 2,
    },
    "2 processes, batch norm": {
        "processes": 2,
        "model": "resnet10t",
        "model_kwargs": {},
        "tasks": {"drloc": TaskConfig(0.5, options={"hidden": 16, "pairs": 8, "pool": "none"})},
        "img_size": (64, 64),
    },
    "2 processes, sharded": {"processes": 2, "fsdp": True, "model_ema": True},
}


@dataclass
class Death:
    """When a process is to kill itself: at the n-th entry into a phase, after so many seconds."""

    phase: str
    entry: int
    delay: float


class Watch:
    """What a process is doing, in memory that outlives it."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 2)
        self.entries: Counter[str] = Counter()
        self.death: Death | None = None
        self.store: Any = None  # the meeting place, which is gone with its last owner

    @property
    def phase(self) -> str:
        """The phase that was entered last and not left."""
        return PHASES[self.memory[0]]

    def enter(self, phase: str) -> int:
        """Note a phase; die in it if that is wanted. Returns the phase before."""
        before = self.memory[0]
        self.memory[0] = PHASES.index(phase)
        self.entries[phase] += 1
        death = self.death
        if death is not None and (death.phase, death.entry) == (phase, self.entries[phase]):
            if death.delay == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(death.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return before

    def during(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, noted as this phase."""

        @functools.wraps(function)
        def noted(*positional: Any, **named: Any) -> Any:
            before = self.enter(phase)
            try:
                return function(*positional, **named)
            finally:
                self.memory[0] = before

        return noted

    def install(self) -> None:
        """Watch the loop of this process."""
        engine.Trainer._step = self.during("step", engine.Trainer._step)  # type: ignore[method-assign]
        Saver._write_weights = self.during("save", Saver._write_weights)  # type: ignore[method-assign]
        State.write = self.during("save", State.write)  # type: ignore[method-assign]
        Checkpoints.finish = self.during("save", Checkpoints.finish)  # type: ignore[method-assign]
        Path.rename = self.during("rename", Path.rename)  # type: ignore[method-assign]
        Path.replace = self.during("rename", Path.replace)  # type: ignore[method-assign]
        engine.Trainer._validate = self.during("evaluation", engine.Trainer._validate)  # type: ignore[method-assign]
        engine.finish = self.during("evaluation", engine.finish)  # type: ignore[attr-defined]


def renew_threads() -> None:
    """Call first in a forked process: torch makes its pool of threads anew at its next use.

    Two threads that use it first, at once, find none ("Invalid thread pool!").
    """
    torch.set_num_threads(torch.get_num_threads())


def start(
    config: Any,
    processes: int,
    log: Path,
    *,
    death: Death | None = None,
    victim: int = 0,
    before: Callable[[int], None] = lambda rank: None,
    work: Callable[[Any], object] = engine.train,
) -> tuple[list[int], Watch]:
    """Fork the processes of one run; one of them, the victim, is watched and may have to die.

    ``before`` is called in each process, with its rank, before it does its ``work``.
    """
    watch, ports, found = Watch(), os.pipe(), []
    for rank in range(processes):
        child = os.fork()
        if child:
            found.append(child)
            continue
        code = 1
        try:
            gc.freeze()  # what the parent has left is never collected here: its threads are not there to be joined
            renew_threads()
            os.close(ports[1])
            os.environ[LAUNCHER] = str(os.getppid())
            if processes > 1:
                port = str(int.from_bytes(os.read(ports[0], 4), "big"))
                place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank)}
                os.environ.update(place, WORLD_SIZE=str(processes), LOCAL_RANK=str(rank))
                os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout = sys.stderr = os.fdopen(out, "w")
            if rank == victim:
                watch.death = death
                watch.install()
            before(rank)
            work(config)
            code = 0
        except VitletError as problem:
            print(problem, flush=True)
            code = problem.code
        except Exception:  # a fault of the program itself, to be seen
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(ports[0])
    if processes > 1:  # its thread must not run while a process is forked
        watch.store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        os.write(ports[1], watch.store.port.to_bytes(4, "big") * processes)
    os.close(ports[1])
    return found, watch


def await_end(processes: list[int], kill: tuple[float, int] | None = None) -> list[int]:
    """Exit codes; with ``kill``, that process gets SIGKILL after so many seconds.

    As a launcher does, it ends the others if they have not ended by themselves a while after one has failed.
    """
    codes: dict[int, int] = {}
    failed = float("inf")
    deadline = time.monotonic() + (kill[0] if kill else 0.0)
    while len(codes) < len(processes):
        if kill is not None and time.monotonic() > deadline and processes[kill[1]] not in codes:
            os.kill(processes[kill[1]], signal.SIGKILL)
            kill = None
        for process in processes:
            if process not in codes:
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    codes[process] = os.waitstatus_to_exitcode(status)
                    failed = min(failed, time.monotonic()) if codes[process] else failed
        if time.monotonic() - failed > GRACE:
            for process in set(processes) - codes.keys():
                os.kill(process, signal.SIGKILL)
        time.sleep(0.002)
    return [codes[process] for process in processes]


def make_config(data: Path, output: Path, **changes: Any) -> RunConfig:
    """A run of three epochs of four steps, saved every third step and after every epoch."""
    settings: dict[str, Any] = {
        "data": str(data),
        "model_kwargs": VIT,
        "img_size": (16, 16),
        "epochs": 3,
        "batch_size": 8,
        "workers": 0,
        "device": "cpu",
        "tasks": {"drloc": TaskConfig(0.5, options={"hidden": 16, "pairs": 8})},
        "checkpoint_steps": 3,
        "output": str(output),
        "resume": "auto",
    }
    settings |= changes
    settings.pop("processes", None)
    if settings.get("pretrain"):
        settings["tasks"] = {}
    return RunConfig(**settings)


def has_saved(config: Any) -> bool:
    """Whether a run has a checkpoint to lose."""
    return any(Path(config.output, "checkpoints").glob("step-*"))


def kill_and_continue(
    config: Any, processes: int, seed: int, kills: int, seconds: float, work: Callable[[Any], object] = engine.train
) -> Counter[str]:
    """Kill a run so many times; the phases of death of those kills that found a checkpoint."""
    draw = random.Random(seed)
    deaths: Counter[str] = Counter()
    log = Path(f"{config.output}.log")
    for number in range(kills):
        victim = draw.randrange(processes)
        phase = ("any", "rename", "save", "evaluation", "step", "loading")[(seed + number) % 6]
        if fresh := not has_saved(config):
            phase = "step"
        if phase in ("any", "loading"):
            after = draw.uniform(0, seconds if phase == "any" else 0.1 * seconds)
            started, watch = start(config, processes, log, victim=victim, work=work)
            codes = await_end(started, (after, victim))
        else:
            delay = 0.0 if phase == "rename" else draw.uniform(0.0, 0.01)
            least, most = {"rename": (1, 12), "save": (1, 4), "evaluation": (1, 2), "step": (1, 6)}[phase]
            least = 4 if fresh else least  # after the first checkpoint
            first = 0 if phase == "evaluation" or victim == 0 else 1
            victim = 0 if phase in ("rename", "save") else victim
            death = Death(phase, draw.randint(least, most) + first, delay)
            started, watch = start(config, processes, log, death=death, victim=victim, work=work)
            codes = await_end(started)
        if -signal.SIGKILL in codes and has_saved(config):
            deaths[watch.phase] += 1
        if codes[victim] not in (0, -signal.SIGKILL):
            raise SystemExit(f"exit codes {codes} of {config.output}:\n{log.read_text()}")
    return deaths


def let_end(config: Any, processes: int, work: Callable[[Any], object] = engine.train) -> None:
    """Start a run, or go on with it, until its end."""
    log = Path(f"{config.output}.log")
    started, _watch = start(config, processes, log, work=work)  # with its meeting place, kept until they have ended
    codes = await_end(started)
    if any(codes):
        raise SystemExit(f"exit codes {codes} of {config.output}:\n{log.read_text()}")


def differences(first: Path, second: Path) -> list[str]:
    """What two finished runs do not have in common, to the last bit; the speed may differ."""
    found = []
    for name in ("last/model.safetensors", "best/model.safetensors"):
        if (first / name).is_file() or (second / name).is_file():
            found += _compare(name, load_file(first / name), load_file(second / name))
    one, two = (Checkpoints(path / "checkpoints").newest()[0] for path in (first, second))
    assert one is not None
    assert two is not None
    if one.step != two.step:
        found.append(f"steps {one.step} and {two.step}")
    for file in sorted(one.path.glob("*.safetensors")):
        found += _compare(file.name, one.tensors(file.name), two.tensors(file.name))
    found += _compare("state.pt", _flat(one.state()), _flat(two.state()))
    rows = [
        [{k: v for k, v in row.items() if k != "images_per_second"} for row in read_rows(p)] for p in (first, second)
    ]
    if rows[0] != rows[1]:
        found.append("rows of metrics")
    return found


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{name}/{key}").items()}
    if isinstance(value, list):
        return {k: v for key, inner in enumerate(value) for k, v in _flat(inner, f"{name}/{key}").items()}
    return {} if name.endswith("images_per_second") else {name: value}


def _compare(what: str, first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    different = [name for name in first.keys() | second.keys() if not _equal(first.get(name), second.get(name))]
    return [f"{what}: {', '.join(sorted(different)[:3])} ({len(different)})"] if different else []


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    return bool(first == second)


def write_images(root: Path, classes: int = 3, per_class: int = 12) -> Path:
    """Class folders of scanned digits."""
    digits = load_digits()
    for label in range(classes):
        (root / str(label)).mkdir(parents=True)
        for number, scan in enumerate(digits.images[digits.target == label][:per_class]):
            picture = Image.fromarray(np.clip(scan * 16, 0, 255).astype(np.uint8)).convert("RGB").resize((16, 16))
            picture.save(root / str(label) / f"{number}.png")
    return root


def trial(name: str, data: Path, work: Path, kills: int, seed: int) -> tuple[Counter[str], list[str]]:
    """One configuration: undisturbed, then killed; phases of death and differences."""
    changes = CONFIGURATIONS[name]
    processes = changes.get("processes", 1)
    whole, broken = (make_config(data, work / f"{kind}-{seed}", **changes) for kind in ("whole", "broken"))
    began = time.monotonic()
    let_end(whole, processes)
    deaths = kill_and_continue(broken, processes, seed, kills, time.monotonic() - began)
    let_end(broken, processes)
    return deaths, differences(Path(str(whole.output)), Path(str(broken.output)))
