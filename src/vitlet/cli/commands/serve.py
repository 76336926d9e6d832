"""Serve predictions on this machine: a web page for images or the camera, with class and attention maps, and for
programs POST /api/predict, which /openapi.json describes. Ctrl-C or SIGTERM stops it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from vitlet.cli.flags import Parser
from vitlet.errors import require_extra


def parser() -> Parser:
    """The arguments of the command."""
    parser = Parser("vitlet serve", __doc__, example="vitlet serve runs/photos --port 8000")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run or export folders; several are compared")
    parser.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="loopback address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, metavar="N", default=8000, help="port to listen on; 0 for any free one (default: 8000)"
    )
    parser.add_usual("--device")
    return parser


def run(words: list[str]) -> int:
    """Run the command."""
    chosen = parser().parse_all(words)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    _serve([Path(folder) for folder in chosen.runs], chosen, stopped)
    return 0


def _serve(folders: list[Path], chosen: Any, stopped: threading.Event) -> None:
    for module in ("starlette", "uvicorn"):
        require_extra(module, "serve", "vitlet serve")
    from vitlet.cli.serving.answers import Service
    from vitlet.cli.serving.limits import Limits
    from vitlet.cli.serving.server import Server, check_host

    def say(text: str) -> None:
        print(text, flush=True)  # whoever started this reads the address from a pipe

    limits = Limits()
    server = Server(check_host(chosen.host), chosen.port, limits)  # first, for a port in use is told at once
    with server.socket:
        service = Service(folders, limits, device=chosen.device)
        for model in service.models:
            for note in model.predictor.notes:
                say(f"note: {note}")
        server.start(service)
        say(f"serving {', '.join(model.name for model in service.models)} at {server.url} (Ctrl-C stops)")
        stopped.wait()
        if server.stop():
            say("stopped.")
            return
        say("stopped; some answers were not finished in time.")
        # Their threads are inside torch: a regular end of the interpreter would wait for them, or abort in one of them.
        os._exit(0)
