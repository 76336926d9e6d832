"""Signals as a wish that the loop reads between two steps, so that nothing is ever torn in the middle."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from vitlet.processes import LAUNCHER


class Interrupts:
    """Handler of SIGINT and SIGTERM during a run; a second signal does not interrupt a save."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}
        self._launcher = int(os.environ.get(LAUNCHER, 0))

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True

    def pending(self) -> bool:
        """Whether someone wants the run to stop."""
        if self._launcher and os.getppid() != self._launcher:
            self.wanted = True
        return self.wanted
