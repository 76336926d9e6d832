"""Rank of this process in a run, and its end with the parent process.

The one place that reads the environment variables of torchrun and ``--nproc``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
import time
from typing import NamedTuple

STARTED = time.monotonic()
"""When this process began to import vitlet, for budgets in minutes."""

LAUNCHER = "VITLET_LAUNCHER"
"""Environment variable with the process id of the launcher: if that is gone, so is the reason to go on."""

ORPHANED_SECONDS = 1.0
"""What a process has to save a step once its launcher was killed, or another process that it trains with."""


class Process(NamedTuple):
    """A process among those that train together; ``launched``: torchrun or ``--nproc`` started it as one of them."""

    rank: int
    size: int
    local_rank: int
    launched: bool

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to people."""
        return self.rank == 0


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_ON_HEAP = 32 * 2**20 - 1  # the most that glibc accepts for the second


def keep_freed_memory() -> bool:
    """Let glibc keep the memory that a training step frees, for the next step; returns whether it is glibc.

    By default it gives large blocks back to the system, and every step pays for thousands of page faults again:
    ``python benchmarks/allocator.py``. For processes of our own, not for those of people who import vitlet.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP))


def usable_cores() -> int:
    """Number of cores that this process may use; a container or ``taskset`` may allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_process() -> Process:
    """Rank and number of processes from the environment; a single process is the first of one."""
    rank, size, local = (int(os.environ.get(name, "") or usual) for name, usual in _VARIABLES.items())
    return Process(rank, size, local, launched="RANK" in os.environ)


def end_with(parent: int, *, grace: float = 0.0) -> None:
    """End this process soon after its parent, by a thread that checks, because kill -9 sends no notice."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        if hasattr(signal, "setitimer"):  # the system's own clock: at the end of the interpreter threads stand still
            signal.setitimer(signal.ITIMER_REAL, grace + 0.1)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, name="end_with", daemon=True).start()


def end_with_launcher() -> None:
    """End this process with its launcher, if ``--nproc`` or a study has started it."""
    if launcher := int(os.environ.get(LAUNCHER, 0)):
        end_with(launcher, grace=ORPHANED_SECONDS)


_VARIABLES = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
