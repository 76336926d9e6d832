"""How the server bears visitors: many requests from four clients at once, good and bad.

A real `vitlet serve` process on loopback with one small network. Requests go round the kinds below; every answer must
have the status that its kind deserves. Then: seconds to answer, and the memory of the server's process after a tenth
of the requests and at the end.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

TRAIN = ["train", "digits", "--model", "vit_for_32px", "--model-kwargs", "depth=2", "--epochs", "1"]
TRAIN += ["--per-class", "20", "--hflip", "0", "--task", "drloc=0.1"]


@dataclass
class Figures:
    """What the visitors saw.

    Attributes:
        seconds: to each answer, by kind.
        wrong: answers that were not as they should be.
        memory: MiB of the server's process, after a tenth of the requests and at the end.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def picture(side: int, form: str, seed: int = 0) -> bytes:
    """Coloured noise, smooth enough to look like something."""
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    written = io.BytesIO()
    Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC).save(written, format=form)
    return written.getvalue()


def bomb() -> bytes:
    """A PNG of a few kilobytes that claims 30,000 x 30,000 pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + name + content + check

    header = (30_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    lines = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def kinds() -> dict[str, tuple[str, bytes, int]]:
    """Address, body and the status that it deserves, by kind of request."""
    photo, large = picture(640, "JPEG"), picture(3000, "JPEG")
    return {
        "photo 640 px": ("/api/predict", photo, 200),
        "PNG 64 px": ("/api/predict?topk=3", picture(64, "PNG"), 200),
        "WebP, with maps": ("/api/predict?maps=true", picture(128, "WEBP"), 200),
        "photo 3000 px": ("/api/predict", large, 200),
        "truncated": ("/api/predict", photo[: len(photo) // 2], 422),
        "no image": ("/api/predict", b"hello" * 100, 415),
        "too many bytes": ("/api/predict", bytes(11 * 2**20), 413),
        "too many pixels": ("/api/predict", bomb(), 413),
        "bad question": ("/api/predict?topk=none", photo, 400),
        "no such place": ("/api/../../etc/passwd", photo, 404),
    }


def load(port: int, pid: int, *, requests: int, clients: int) -> Figures:
    """Send requests of all kinds, several at once, and collect what comes back."""
    found, lock, todo = Figures(), threading.Lock(), iter(range(requests))
    each = list(kinds().items())

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while True:
            with lock:
                number = next(todo, None)
                if number is not None and number == requests // 10:
                    found.memory.append(memory(pid))
            if number is None:
                connection.close()
                return
            kind, (address, body, deserved) = each[number % len(each)]
            started = time.monotonic()
            try:
                connection.request("POST", address, body)
                answer = connection.getresponse()
                status, text = answer.status, answer.read()
                json.loads(text)
            except Exception as problem:
                status = repr(problem)
                connection.close()
            spent = time.monotonic() - started
            with lock:
                found.seconds.setdefault(kind, []).append(spent)
                if status != deserved:
                    found.wrong.append(f"{kind}: {status}, not {deserved}")

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.memory.append(memory(pid))
    return found


def memory(pid: int) -> float:
    """Resident MiB of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def start(runs: list[Path]) -> tuple[subprocess.Popen[str], int]:
    """A server process, and its port."""
    command = [sys.executable, "-m", "vitlet", "serve", *map(str, runs), "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("serving"):
            return server, int(line.split("127.0.0.1:")[1].split("/")[0])
    raise SystemExit("the server did not start")


def stop(server: subprocess.Popen[str]) -> int:
    """Ask it to end; its exit code."""
    server.send_signal(signal.SIGTERM)
    code = server.wait(timeout=60)
    assert server.stdout is not None
    server.stdout.close()
    return code


def percentile(values: list[float], share: float) -> float:
    """In milliseconds."""
    return 1000 * float(np.percentile(values, share))


def main() -> None:
    """Train a little, serve, load, write."""
    from timing import Report

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="in all [2000]")
    parser.add_argument("--clients", type=int, default=4, help="at once [4]")
    parser.add_argument("--output", type=Path, help="write the table here")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitlet-serve-") as work:
        run = Path(work) / "run"
        subprocess.run(
            [sys.executable, "-m", "vitlet", *TRAIN, "--output", str(run)], check=True, stdout=subprocess.DEVNULL
        )
        server, port = start([run])
        began = time.monotonic()
        found = load(port, server.pid, requests=chosen.requests, clients=chosen.clients)
        spent = time.monotonic() - began
        code = stop(server)
    report = Report("Serving", __doc__, chosen.output)
    report.add(
        ["", f"{chosen.requests} requests from {chosen.clients} clients in {spent:.0f} s, ViT 192 x 2 at 32 px.", ""]
    )
    report.add(["| request | count | median, ms | p99, ms |", "|---|---|---|---|"])
    everything = [value for values in found.seconds.values() for value in values]
    for kind, values in [*found.seconds.items(), ("all", everything)]:
        report.add(
            [f"| {kind} | {len(values)} | {1000 * statistics.median(values):.0f} | {percentile(values, 99):.0f} |"]
        )
    report.add(["", f"Answers that were not as they should be: {len(found.wrong)}. Exit code after SIGTERM: {code}."])
    report.add(
        [f"Memory of the server: {found.memory[0]:.0f} MiB after a tenth, {found.memory[1]:.0f} MiB at the end."]
    )
    report.add(
        [f"The machine was shared: {os.getloadavg()[1]:.0f} processes wanted its {os.cpu_count()} cores meanwhile."]
    )
    for line in found.wrong[:10]:
        report.add([f"- {line}"])
    report.close()


if __name__ == "__main__":
    main()
