"""HTTP interface as an ASGI application: fixed routes, origin checks, and limits.

No name that a visitor sends is ever used as a path. A page of another site cannot ask through a visitor's browser: the
Host must be this server's own (which also stops DNS rebinding), and so must the Origin where there is one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from vitlet import __version__
from vitlet.cli.serving.answers import RefusedError, Service
from vitlet.cli.serving.limits import Limits
from vitlet.errors import first_line

HEADERS = {
    "Server": "vitlet",  # no versions for strangers
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
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}
"""Of HTTP; each route takes one of them."""

MOST_CLASSES = 1000

LONGEST_NUMBER = 18
"""Digits of a Content-Length; beyond it nothing can be meant."""

DRAINED_BYTES = 64 * 2**20
"""Of an upload that was refused: read and dropped, so that its sender gets to read why."""


class Json(JSONResponse):
    """JSON as `json.dumps` writes it."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, ensure_ascii=False).encode()


class Application:
    """Routes behind a check of every request's sender.

    Args:
        limits: limits of uploads; the connection keeps the times.
        names: that this server has, with their port: what a Host may be.
    """

    service: Service
    workers: ThreadPoolExecutor

    def __init__(self, limits: Limits, names: set[str]) -> None:
        self.limits, self.names = limits, names
        plain: dict[str, Callable[[], Response]] = {
            **{path: partial(_file, *file) for path, file in PAGE.items()},
            "/api/runs": lambda: Json(self.service.about()),
            "/openapi.json": lambda: Json(openapi(limits)),
            "/healthz": lambda: Json({"status": "ok"}),
        }
        routes = [Route(path, partial(_constant, make)) for path, make in plain.items()]
        routes += [Route("/api/predict", self._predict, methods=["POST"])]
        for route in routes:
            assert route.methods is not None
            route.methods.discard("HEAD")  # which Starlette adds to GET
        handlers: dict[Any, Any] = {HTTPException: _no_route, RefusedError: _refused, ClientDisconnect: _left}
        self.routes = Starlette(routes=routes, exception_handlers=handlers | {Exception: _failed})
        self.routes.router.redirect_slashes = False

    def answer_with(self, service: Service) -> None:
        """Take the models; a few threads work, whoever else is there waits outside of them, each model has one turn."""
        self.service = service
        self.workers = ThreadPoolExecutor(self.limits.decoders + len(service.models), "answer")
        self._decoding = asyncio.Semaphore(self.limits.decoders)
        self._turns = [asyncio.Semaphore(1) for _ in service.models]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with the security headers; what is left of a refused upload is read and dropped."""
        headers = Headers(scope=scope)
        unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"

        async def receiving() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = HEADERS | ({"Retry-After": "2"} if message["status"] == 503 else {})
                given = [(name.title(), value) for name, value in message["headers"]]
                message["headers"] = [(name.encode(), value.encode()) for name, value in added.items()] + given
                if unread:
                    message["headers"].append((b"connection", b"close"))
            elif unread:  # closing at once would lose the answer on its way
                await send({**message, "more_body": True})
                left = DRAINED_BYTES
                while unread and left > 0:
                    left -= len((await receiving()).get("body", b""))
                message = {"type": "http.response.body"}
            await send(message)

        refusal = self._check(scope, headers)
        await (refusal or self.routes)(scope, receiving, sending)

    def _check(self, scope: Scope, headers: Headers) -> Response | None:
        """Why a request is refused whatever it asks for: only this machine's own pages and programs are answered."""
        if scope["method"] not in METHODS:
            return _error(501, f"unsupported method ({scope['method']!r}).")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self.names:
            return _error(403, f"this server answers as {sorted(self.names)[0]} alone.")
        try:
            scope["path"] = urlsplit(scope["raw_path"].decode("ascii")).path  # as it was sent: no %2e becomes a dot
        except ValueError:
            return _error(400, "the address is malformed.")
        foreign = {origin.lower() for origin in headers.getlist("origin")} - {f"http://{name}" for name in self.names}
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign or (elsewhere and scope["path"].startswith("/api")):
            return _error(403, "requests from pages of other sites are refused.")
        return None

    async def _predict(self, request: Request) -> Response:
        wanted = _query(request.scope["query_string"].decode("latin-1"))
        self._check_length(request.headers)
        size, images = await self._work(self._decoding, self.service.decode, await request.body())
        answers = [
            await self._work(turn, model.answer, image, **wanted)
            for turn, model, image in zip(self._turns, self.service.models, images, strict=True)
        ]
        return Json({"image": size, "answers": answers})

    async def _work(self, turn: asyncio.Semaphore, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Run a function in a thread once its turn has come; who waits too long is sent away."""
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                await turn.acquire()
        except TimeoutError:
            raise RefusedError(503, "the server is busy; try again in a moment.") from None
        try:
            call = partial(function, *arguments, **more)
            return await asyncio.get_running_loop().run_in_executor(self.workers, call)
        finally:
            turn.release()

    def _check_length(self, headers: Headers) -> None:
        """Refuse a body that is too long, empty, or does not say its length, before any of it is read."""
        lengths = headers.getlist("content-length")
        if "transfer-encoding" in headers or not any(lengths):
            raise RefusedError(411, "the request needs a Content-Length header.")
        length = lengths[0]
        if not (len(lengths) == 1 and length.isascii() and length.isdigit() and len(length) <= LONGEST_NUMBER):
            raise RefusedError(400, "Content-Length is not a number of bytes.")
        if int(length) > self.limits.upload_bytes:
            raise RefusedError(413, f"the file is larger than {self.limits.upload_bytes:,} bytes.")
        if int(length) == 0:
            raise RefusedError(400, "there is no image in the request.")


async def _constant(make: Callable[[], Response], request: Request) -> Response:
    return make()


def _file(name: str, kind: str) -> Response:
    return Response((files("vitlet.cli.serving") / name).read_bytes(), media_type=kind)


def openapi(limits: Limits) -> dict[str, Any]:
    """The description of the interface for machines (OpenAPI 3.1), with this server's limits."""
    text = (files("vitlet.cli.serving") / "openapi.json").read_text(encoding="utf-8")
    for name, value in (("VERSION", __version__), ("BYTES", limits.upload_bytes), ("PIXELS", limits.pixels)):
        text = text.replace(f"{{{name}}}", str(value))
    described: dict[str, Any] = json.loads(text)
    return described


def _query(text: str) -> dict[str, Any]:
    """``topk`` and ``maps`` of an address."""
    wanted: dict[str, Any] = {"topk": 5, "maps": False}
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise RefusedError(400, "the query has more than 10 fields.") from None
    for name, value in fields:
        number = int(value) if value.isascii() and value.isdigit() and len(value) <= len(str(MOST_CLASSES)) else 0
        if name == "topk" and 1 <= number <= MOST_CLASSES:
            wanted["topk"] = number
        elif name == "maps" and value in ("true", "1", "false", "0"):
            wanted["maps"] = value in ("true", "1")
        else:
            raise RefusedError(400, f"topk must be a number from 1 to {MOST_CLASSES}, maps is true or false; no more.")
    return wanted


def _error(status: int, sentence: str, headers: Any = None) -> Response:
    return Json({"error": sentence}, status, headers)


async def _refused(request: Request, problem: RefusedError) -> Response:
    return _error(problem.status, str(problem))


async def _no_route(request: Request, problem: HTTPException) -> Response:
    path = request.scope["path"]
    sentence = "not found; /openapi.json lists the available paths."
    if problem.status_code == 405:
        sentence = f"{path} takes POST with an image's bytes." if path == "/api/predict" else f"{path} takes GET."
    return _error(problem.status_code, sentence, problem.headers)


async def _left(request: Request, problem: ClientDisconnect) -> Response:
    return Response()  # nobody is there to read it


async def _failed(request: Request, problem: Exception) -> Response:
    """Ours to repair: the visitor is told no more than that."""
    print(f"vitlet serve: {type(problem).__name__}: {first_line(problem)}", file=sys.stderr, flush=True)
    return _error(500, "internal error; see the terminal of the server.")
