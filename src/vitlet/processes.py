"""Which process of a run this is: the one place that reads the environment variables of torchrun and ``--nproc``."""

from __future__ import annotations

import os
from typing import NamedTuple


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


def this_process() -> Process:
    """What the environment says of this process; alone, it is the first of one."""
    rank, size, local = (int(os.environ.get(name, "") or usual) for name, usual in _VARIABLES.items())
    return Process(rank, size, local, launched="RANK" in os.environ)


_VARIABLES = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
