"""Limits of requests to the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of a request, a connection and the server.

    Attributes:
        upload_bytes: maximum size in bytes of one image file.
        pixels: maximum number of pixels of one image; more are refused before they are decoded.
        read_seconds: from a request's first moment to its last byte, and between two requests of a connection.
        write_seconds: for a visitor to take an answer.
        answer_seconds: to wait for a turn; beyond it the answer is "busy".
        connections: open at once; more are told to come back.
        decoders: images being decoded at once, which bounds memory.
        grace_seconds: for answers under way when the server is stopped.
    """

    upload_bytes: int = 10 * 2**20
    pixels: int = 25_000_000
    read_seconds: float = 15.0
    write_seconds: float = 15.0
    answer_seconds: float = 30.0
    connections: int = 32
    decoders: int = 2
    grace_seconds: float = 10.0
