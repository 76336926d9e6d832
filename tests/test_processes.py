"""What a process knows of the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); from vitlet.processes import usable_cores"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_counts_the_cores_that_it_may_use() -> None:
    """A container or taskset with one core of many: threads for all of them would compete for it."""
    found = subprocess.run([sys.executable, "-c", f"{COUNT}; print(usable_cores())"], capture_output=True, text=True)
    assert found.stdout.strip() == "1", found.stderr
