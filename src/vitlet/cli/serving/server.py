"""HTTP on loopback: how long anything may take, how many may come, and an orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import socket
import threading
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitlet.cli.serving.answers import Service
from vitlet.cli.serving.app import HEADERS, Application
from vitlet.cli.serving.limits import Limits
from vitlet.errors import VitletError, first_line

LINGER_SECONDS = 1.0
"""For a visitor who is turned away to read why."""


class Connection(H11Protocol):
    """One visitor's connection: uvicorn's, with a deadline for every request and a bound on their number.

    The deadline for reading runs from the connection's first moment, and from the end of each answer, to the last byte
    of the next request; that for writing while a visitor does not take an answer as fast as it is sent.
    """

    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:
        super().__init__(config, *arguments, **more)
        self.limits: Limits = cast(Any, config.app).limits
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._turned_away = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A visitor came; there may be no room."""
        super().connection_made(transport)
        self._allow("read", self.limits.read_seconds)
        if len(self.connections) > self.limits.connections:
            self._turn_away("503 Service Unavailable", "too many connections; try again.", "Retry-After: 2\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """The visitor left."""
        self._allow("read", None)
        self._allow("write", None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request."""
        if not self._turned_away:
            super().data_received(data)

    def handle_events(self) -> None:
        """Start the request; its deadline ends when it is complete."""
        super().handle_events()
        whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        if whole and self.cycle is not None and not self.cycle.response_complete:
            self._allow("read", None)

    def pause_writing(self) -> None:
        """Set a deadline while the client reads the response more slowly than it is sent."""
        super().pause_writing()
        self._allow("write", self.limits.write_seconds)

    def resume_writing(self) -> None:
        """The visitor has taken nearly all of it."""
        super().resume_writing()
        self._allow("write", None)

    def on_response_complete(self) -> None:
        """Allow the next request once the response was sent."""
        self._allow("read", self.limits.read_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP; during a request it only ends the request's body."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()
        else:
            self._turn_away("400 Bad Request", "Bad request syntax or length.")

    def _turn_away(self, status: str, sentence: str, more: str = "") -> None:
        """Send an error response without a request; input is still drained, or the response would be lost."""
        self._turned_away = True
        self.connections.discard(self)
        body = json.dumps({"error": sentence})
        fields = HEADERS | {"Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.transport.write(f"HTTP/1.1 {status}\r\n{head}{more}\r\n{body}".encode())
        self.transport.write_eof()
        self._allow("read", LINGER_SECONDS)

    def _allow(self, what: str, seconds: float | None) -> None:
        """Close the connection if reading or writing is not done after this number of seconds; None: no deadline."""
        if what in self._deadlines:
            self._deadlines.pop(what).cancel()
        if seconds is not None:
            self._deadlines[what] = self.loop.call_later(seconds, self.transport.abort)


class Server(uvicorn.Server):
    """HTTP server with a bounded number of connections; binds its port first, and serves after ``start``.

    Args:
        host: a loopback address.
        port: 0 for any that is free.
    """

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
            self.socket.listen(64)
        except OSError as problem:
            self.socket.close()
            raise VitletError(
                f"cannot listen on port {port} of {host}: {first_line(problem)}. Choose another with --port (0: any)."
            ) from problem
        self.port: int = self.socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/"
        known = {shown, "127.0.0.1", "localhost", "[::1]"}
        names = {f"{name}:{self.port}" for name in known} | (known if self.port == 80 else set())
        self.application = Application(limits, names)
        self.finished = True
        self._thread = threading.Thread(target=self.run, kwargs={"sockets": [self.socket]}, daemon=True)
        super().__init__(
            uvicorn.Config(
                self.application,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="critical",  # what visitors do is theirs; what fails, the application prints
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=64,
                timeout_keep_alive=math.ceil(limits.read_seconds),
                timeout_graceful_shutdown=math.ceil(limits.grace_seconds),
            )
        )

    def start(self, service: Service) -> None:
        """Answer, in a thread."""
        self.application.answer_with(service)
        self._thread.start()

    def stop(self) -> bool:
        """Take no more requests, finish those under way; whether all could be finished in time."""
        self.should_exit = True
        self._thread.join()
        return self.finished

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's; what it gave up on is noted."""
        await super().shutdown(sockets)
        self.finished = not (self.server_state.connections or self.server_state.tasks)
        self.application.workers.shutdown(wait=self.finished)


def check_host(host: str) -> str:
    """A loopback address; `VitletError` for any other."""
    name = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        if ipaddress.ip_address(name).is_loopback:
            return name
    except ValueError:
        pass
    raise VitletError(
        f"--host must be a loopback address such as 127.0.0.1, got {host}. The page has no password; to"
        " reach it from elsewhere, tunnel to it (ssh -L) or put a server with a login in front."
    )
