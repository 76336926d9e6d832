"""HTTP on loopback: who may ask, how long anything may take, and an orderly end.

The routes are a fixed table and no name that a visitor sends is ever used as a path. A page of another site cannot ask
through a visitor's browser: the Host must be this server's own (which also stops DNS rebinding), and so must the
Origin where there is one.
"""

from __future__ import annotations

import io
import ipaddress
import json
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from vitlet.cli.serving.answers import BusyError, RefusedImageError, Service
from vitlet.cli.serving.limits import Limits
from vitlet.cli.serving.schema import MOST_CLASSES, openapi
from vitlet.errors import VitletError, first_line

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
POST_ROUTE = "/api/predict"
ROUTES = {POST_ROUTE: "POST", **dict.fromkeys((*PAGE, "/api/runs", "/openapi.json", "/healthz"), "GET")}
"""Every address, and the one method that it takes."""

LONGEST_NUMBER = 18
"""Digits of a Content-Length; beyond it nothing can be meant."""

DRAINED_BYTES = 64 * 2**20
"""Of an upload that was refused: read and dropped, so that its sender gets to read why."""


class RefusedError(Exception):
    """An answer that is an error, with its HTTP status."""

    def __init__(self, status: HTTPStatus | int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = int(status), headers


class DeadlineReader(io.RawIOBase):
    """Reads a socket, but never beyond a moment that all reads of a request share."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.deadline = connection, 0.0

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Some bytes, or a `TimeoutError`."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """One visitor's connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        """Read with a deadline."""
        super().setup()
        self.reader = DeadlineReader(self.connection)
        self.rfile: Any = io.BufferedReader(self.reader)

    def handle_one_request(self) -> None:
        """One request, within its time."""
        self.reader.deadline = time.monotonic() + self.server.limits.read_seconds
        self.server.idle(self.connection, True)
        self.body_read = False
        try:
            super().handle_one_request()
        except OSError:  # the visitor is gone
            self.close_connection = True

    def parse_request(self) -> bool:
        """The first line and the headers; from here on the connection is not idle."""
        self.server.idle(self.connection, False)
        return super().parse_request()

    def do_GET(self) -> None:
        """The page, what is served, the answer on an image; or why there is none."""
        try:
            self._check_sender()
            path, query = _address(self.path)
            if path not in ROUTES:
                raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here; /openapi.json says what there is.")
            if self.command != ROUTES[path]:
                what = "POST with an image's bytes" if path == POST_ROUTE else "GET"
                raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {what}.", {"Allow": ROUTES[path]})
            self._answer(path, query)
        except RefusedError as problem:
            self._fail(problem.status, str(problem), problem.headers)
        except RefusedImageError as problem:
            self._fail(problem.status, str(problem))
        except BusyError as problem:
            self._fail(HTTPStatus.SERVICE_UNAVAILABLE, str(problem))
        except (OSError, TimeoutError):
            raise
        except Exception as problem:  # ours to repair: the visitor is told no more than that
            print(f"vitlet serve: {type(problem).__name__}: {first_line(problem)}", file=sys.stderr, flush=True)
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its terminal says why.")

    do_POST = do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET  # noqa: N815

    def _check_sender(self) -> None:
        """Only this machine's own pages and programs."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.names:
            raise RefusedError(HTTPStatus.FORBIDDEN, f"this server answers as {sorted(self.server.names)[0]} alone.")
        origins = {origin.lower() for origin in self.headers.get_all("Origin") or []}
        site = self.headers.get("Sec-Fetch-Site", "none")
        foreign = origins - {f"http://{name}" for name in self.server.names}
        if foreign or (site in ("cross-site", "same-site") and self.path.startswith("/api")):
            raise RefusedError(HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused.")

    def _answer(self, path: str, query: str) -> None:
        if path in PAGE:
            name, kind = PAGE[path]
            content = (files("vitlet.cli.serving") / name).read_bytes()
            self._send(HTTPStatus.OK, content, f"{kind}; charset=utf-8")
        elif path == "/api/runs":
            self._send_json(self.server.service.about())
        elif path == "/openapi.json":
            self._send_json(openapi(self.server.limits))
        elif path == "/healthz":
            self._send_json({"status": "ok"})
        else:
            wanted = _query(query)
            self._send_json(self.server.service.answer(self._body(), **wanted))

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Transfer-Encoding") or not length:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "say the length of the image (Content-Length).")
        alone = len(self.headers.get_all("Content-Length") or []) == 1
        if not (alone and length.isascii() and length.isdigit() and len(length) <= LONGEST_NUMBER):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length is not a number of bytes.")
        most = self.server.limits.upload_bytes
        if int(length) > most:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the file is larger than {most:,} bytes.")
        if int(length) == 0:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "there is no image in the request.")
        content: bytes = self.rfile.read(int(length))
        if len(content) < int(length):
            raise ConnectionError("the visitor left in the middle of an upload")
        self.body_read = True
        return content

    def _send_json(self, values: Mapping[str, Any]) -> None:
        self._send(HTTPStatus.OK, json.dumps(values, ensure_ascii=False).encode(), "application/json")

    def _fail(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        """An error as JSON; a body that was not read ends the connection."""
        unread = self._unread()
        body = json.dumps({"error": sentence}, ensure_ascii=False).encode()
        self._send(status, body, "application/json", headers)
        if unread:
            self._drain()

    def _unread(self) -> bool:
        """Whether a body is still on its way."""
        announced = self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0") != "0"
        return bool(announced) and not self.body_read

    def _drain(self) -> None:
        """Take what is still coming, for closing at once would lose the answer on its way."""
        self.connection.shutdown(socket.SHUT_WR)
        left = DRAINED_BYTES
        while left > 0:
            dropped = self.rfile.read1(65536)
            if not dropped:
                return
            left -= len(dropped)

    def _send(self, status: int, content: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        self.connection.settimeout(self.server.limits.write_seconds)
        announced = getattr(self, "headers", None) is not None and self._unread()
        self.close_connection = self.close_connection or self.server.stopping or announced
        self.send_response(status)
        for name, value in {**HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "2")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":  # whose answer ends here
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library itself refuses, in our form."""
        self.close_connection = True
        self.command = getattr(self, "command", None) or ""
        self._send(code, json.dumps({"error": message or HTTPStatus(code).phrase}).encode(), "application/json")

    def version_string(self) -> str:
        """No versions for strangers."""
        return "vitlet"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: what visitors do is theirs."""


class Server(ThreadingHTTPServer):
    """A bounded number of visitors, each in a thread; binds at once, answers when told to.

    Args:
        host: a loopback address.
        port: 0 for any that is free.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    service: Service

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        self.limits, self.stopping = limits, False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(limits.connections)
        self._changed = threading.Condition()
        self._open: dict[socket.socket, bool] = {}  # whether it is idle
        try:
            super().__init__((host, port), Handler)
        except OSError as problem:
            raise VitletError(
                f"cannot listen on port {port} of {host}: {first_line(problem)}. Choose another with --port (0: any)."
            ) from problem
        bound = self.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{bound}/"
        known = {shown, "127.0.0.1", "localhost", "[::1]"}
        self.names = {f"{name}:{bound}" for name in known} | (known if bound == 80 else set())

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for a visitor, if there is room."""
        if self.stopping or not self._free.acquire(blocking=False):
            body = b'{"error": "too many visitors at once; try again."}'
            head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            request.settimeout(1)
            with suppress(OSError):
                request.sendall(head.encode() + b"Content-Type: application/json\r\nRetry-After: 2\r\n\r\n" + body)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()
            with self._changed:
                self._open.pop(request, None)
                self._changed.notify_all()

    def idle(self, connection: socket.socket, idle: bool) -> None:
        """A connection tells whether it waits for a request."""
        with self._changed:
            self._open[connection] = idle
            if idle and self.stopping:
                _hang_up(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor who left is no error; anything else is said in a line."""
        problem = sys.exception()
        if isinstance(problem, Exception) and not isinstance(problem, OSError):
            print(f"vitlet serve: {type(problem).__name__}: {first_line(problem)}", file=sys.stderr, flush=True)

    def stop(self) -> bool:
        """Take no more requests, finish those under way; whether all could be finished in time."""
        self.shutdown()
        with self._changed:
            self.stopping = True
            for connection, idle in self._open.items():
                if idle:
                    _hang_up(connection)
            done = self._changed.wait_for(lambda: not self._open, timeout=self.limits.grace_seconds)
        self.server_close()
        return done


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)


def _address(text: str) -> tuple[str, str]:
    """Path and query of what was asked for."""
    try:
        address = urlsplit(text)
    except ValueError:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "the address is not understood.") from None
    return address.path, address.query


def _query(text: str) -> dict[str, Any]:
    """``topk`` and ``maps`` of an address."""
    wanted: dict[str, Any] = {"topk": 5, "maps": False}
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "there are more than 10 fields behind the address.") from None
    for name, value in fields:
        number = int(value) if value.isascii() and value.isdigit() and len(value) <= len(str(MOST_CLASSES)) else 0
        if name == "topk" and 1 <= number <= MOST_CLASSES:
            wanted["topk"] = number
        elif name == "maps" and value in ("true", "1", "false", "0"):
            wanted["maps"] = value in ("true", "1")
        else:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST, f"topk is a number from 1 to {MOST_CLASSES}, maps is true or false; no more."
            )
    return wanted


def check_host(host: str) -> str:
    """A loopback address, or the sentence that says why not."""
    name = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        if ipaddress.ip_address(name).is_loopback:
            return name
    except ValueError:
        pass
    raise VitletError(
        f"--host {host}: needs to be a loopback address such as 127.0.0.1. The page asks nobody for a password; to"
        " reach it from elsewhere, tunnel to it (ssh -L) or put a server with a login in front."
    )
