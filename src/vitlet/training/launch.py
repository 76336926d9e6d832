"""``--nproc``: the same command in several processes of this machine, as torchrun would start them on many."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from vitlet.processes import LAUNCHER, ORPHANED_SECONDS, usable_cores

GRACE = 60.0
"""Seconds that the other processes have to end by themselves once one has failed or was asked to stop."""


def launch(words: Sequence[str], count: int) -> int:
    """Run ``vitlet WORDS`` in this number of distributed processes; returns the exit code of the first to fail.

    Their meeting place is held here, on a port of the system's choice, so that no two runs can collide.
    """
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // count))),
        LAUNCHER: str(os.getpid()),
    }
    command = [sys.executable, "-m", "vitlet", *words]
    processes = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(processes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Until all have ended; once one has failed, the others get a while, then are ended."""
    code, deadline = 0, float("inf")
    while any(process.poll() is None for process in processes):
        for rank, process in enumerate(processes):
            if process.returncode and not code:
                code, deadline = process.returncode, time.monotonic() + GRACE
                if code < 0:  # without it the others can neither go on nor save
                    deadline = time.monotonic() + ORPHANED_SECONDS
                    name = signal.Signals(-code).name
                    print(f"vitlet: process {rank} of this run was ended by {name}.", file=sys.stderr)
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(0.05)
    code = code or next((process.returncode for process in processes if process.returncode), 0)
    return 128 - code if code < 0 else code
