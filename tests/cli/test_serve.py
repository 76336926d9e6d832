"""The server: who is answered, what is refused, how it ends; then a real browser and a load."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import serve as bench
from vitlet.cli import main
from vitlet.cli.serving.answers import Service
from vitlet.cli.serving.limits import Limits
from vitlet.cli.serving.server import Server, check_host
from vitlet.errors import VitletError
from vitlet.inference.predict import Predictor

LIMITS = Limits(upload_bytes=200_000, pixels=1_000_000, read_seconds=1.5, connections=6, grace_seconds=5.0)


@pytest.fixture(scope="module")
def service(small_runs: list[Path]) -> Service:
    return Service(small_runs, LIMITS, device="cpu")


@pytest.fixture
def server(service: Service) -> Iterator[Server]:
    made = Server("127.0.0.1", 0, LIMITS)
    made.start(service)
    yield made
    made.stop()


@pytest.fixture
def image(shared_folder: Path) -> Path:
    return sorted((shared_folder / "test").rglob("*.png"))[0]


def ask(
    server: Server, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    kind = answer.headers["Content-Type"]
    return answer.status, json.loads(content) if "json" in kind else content.decode(), dict(answer.headers)


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> None:
    """A value against the few words of JSON Schema that the description uses."""
    if "$ref" in schema:
        fits(value, root["components"]["schemas"][schema["$ref"].rpartition("/")[2]], root)
        return
    kinds = {"string": str, "number": (int, float), "integer": int, "array": list, "object": dict, "null": type(None)}
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(isinstance(value, kinds[name]) for name in names), (value, schema)  # type: ignore[arg-type]
    if isinstance(value, list):
        for each in value:
            fits(each, schema["items"], root)
    if isinstance(value, dict):
        assert set(schema["required"]) <= set(value) <= set(schema["properties"])
        for name, each in value.items():
            fits(each, schema["properties"][name], root)


def test_the_page_and_its_description(server: Server) -> None:
    status, page, headers = ask(server, "GET", "/")
    assert status == 200
    assert "Drop images here" in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for path, kind in (("/page.js", "text/javascript"), ("/page.css", "text/css")):
        assert ask(server, "GET", path)[2]["Content-Type"].startswith(kind)
    described = ask(server, "GET", "/openapi.json")[1]
    status, served, _ = ask(server, "GET", "/api/runs")
    fits(served, described["components"]["schemas"]["Served"], described)
    assert [run["run"] for run in served["runs"]] == ["run0", "run1", "run2"]
    assert [run["patch_size"] for run in served["runs"]] == [[4, 4]] * 3  # whatever the name of the model says
    assert ask(server, "GET", "/healthz")[1] == {"status": "ok"}


def test_answers_are_those_of_predict(server: Server, small_runs: list[Path], image: Path) -> None:
    described = ask(server, "GET", "/openapi.json")[1]
    status, found, _ = ask(server, "POST", "/api/predict?maps=true&topk=3", image.read_bytes())
    assert status == 200
    fits(found, described["components"]["schemas"]["Answer"], described)
    assert found["image"] == {"width": 16, "height": 16}
    for run, answer in zip(small_runs, found["answers"], strict=True):
        wanted = Predictor.load(run, device="cpu").predict([image], topk=3)[0]["classes"]
        assert [guess["class"] for guess in answer["classes"]] == [guess["class"] for guess in wanted]
        assert answer["classes"][0]["probability"] == pytest.approx(wanted[0]["probability"], abs=1e-6)
        assert set(answer["maps"]) == {"class_map", "attention", "places"}
        assert len(answer["maps"]["attention"]) == 4
        assert answer["seen"].startswith("data:image/png;base64,")
    plain = ask(server, "POST", "/api/predict", image.read_bytes())[1]
    assert "maps" not in plain["answers"][0]


def pixels(width: int, height: int, form: str = "PNG") -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (width, height)).save(written, format=form)
    return written.getvalue()


def test_what_is_refused(server: Server, image: Path) -> None:
    good = image.read_bytes()
    here = f"127.0.0.1:{server.port}"
    cases: list[tuple[str, str, bytes | None, dict[str, str], int]] = [
        ("POST", "/api/predict", b"hello", {}, 415),
        ("POST", "/api/predict", pixels(20, 20, "PCX"), {}, 415),
        ("POST", "/api/predict", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", {}, 415),
        ("POST", "/api/predict", good[:-60], {}, 422),
        ("POST", "/api/predict", b"", {}, 400),
        ("POST", "/api/predict", bytes(200_001), {}, 413),
        ("POST", "/api/predict", pixels(1001, 1000), {}, 413),
        ("POST", "/api/predict", bench.bomb(), {}, 413),
        ("POST", "/api/predict", good, {"Content-Length": "x"}, 400),
        ("POST", "/api/predict", good, {"Transfer-Encoding": "chunked"}, 411),
        ("POST", "/api/predict?topk=0", good, {}, 400),
        ("POST", "/api/predict?maps=perhaps", good, {}, 400),
        ("POST", "/api/predict?path=/etc/passwd", good, {}, 400),
        ("POST", "/api/predict?topk=0000000011000", good, {}, 400),
        ("POST", "/api/predict?topk=" + "9" * 5000, good, {}, 400),
        ("POST", "/api/predict?" + "&".join(["topk=1"] * 11), good, {}, 400),
        ("POST", "/api/predict", good, {"Content-Length": "9" * 5000}, 400),
        ("POST", "/elsewhere", good, {}, 404),
        ("POST", "/", good, {}, 405),
        ("PUT", "/api/predict", good, {}, 405),
        ("OPTIONS", "/api/runs", None, {}, 405),
        ("GET", "/api/predict", None, {}, 405),
        ("GET", "/../../../../etc/passwd", None, {}, 404),
        ("GET", "/page.html", None, {}, 404),
        ("DELETE", "/", None, {}, 405),
        ("DELETE", "/elsewhere", None, {}, 404),
        ("BREW", "/", None, {}, 501),
        ("GET", "/", None, {"Host": "evil.example"}, 403),
        ("GET", "/", None, {"Host": f"evil.example:{server.port}"}, 403),
        ("POST", "/api/predict", good, {"Origin": "http://evil.example"}, 403),
        ("POST", "/api/predict", good, {"Origin": "null"}, 403),
        ("POST", "/api/predict", good, {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/api/predict", good, {"Origin": f"http://{here}"}, 200),
        ("POST", "/api/predict", good, {"Host": f"localhost:{server.port}"}, 200),
    ]
    for method, path, body, headers, wanted in cases:
        status, answer, _ = ask(server, method, path, body, headers)
        assert status == wanted, (method, path, headers, answer)
        assert wanted == 200 or len(answer["error"]) > 5
    head = f"HEAD /healthz HTTP/1.1\r\nHost: {here}\r\n\r\n".encode()
    last = f"GET {{}} HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n"
    assert raw(server, last.format("http://[").encode()).startswith(b"HTTP/1.1 400")
    twice = f"GET / HTTP/1.1\r\nHost: {here}\r\nHost: {here}\r\n\r\n"
    assert raw(server, twice.encode()).startswith(b"HTTP/1.1 400")
    answers = raw(server, head + last.format("/healthz").encode()).split(b"\r\n\r\n")  # an answer to HEAD has no body
    assert [answer.split(b"\r\n")[0][:12] for answer in answers[:2]] == [b"HTTP/1.1 405", b"HTTP/1.1 200"]
    assert b"Allow: GET" in answers[0]
    assert answers[2] == b'{"status": "ok"}'


def raw(server: Server, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(sent)
        received = b""
        while True:
            try:
                part = connection.recv(65536)
            except ConnectionError:
                return received
            if not part:
                return received
            received += part


def test_nobody_holds_a_connection_for_ever(server: Server) -> None:
    started = time.monotonic()
    assert raw(server, b"GET / HTTP/1.1\r\nHost: ") == b""  # no end of the headers
    head = f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 1000\r\n\r\n"
    assert raw(server, head.encode() + b"half") == b""
    assert 2.5 < time.monotonic() - started < 8
    drops = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(LIMITS.connections)]
    time.sleep(0.3)
    assert b"503" in raw(server, b"GET / HTTP/1.1\r\n\r\n").split(b"\r\n")[0]
    for each in drops:
        each.close()
    time.sleep(0.3)
    assert ask(server, "GET", "/healthz")[0] == 200
    assert b"Bad request syntax" in raw(server, b"nonsense\x00\r\n\r\n")


def test_an_orderly_end(service: Service, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer, answer = threading.Event(), service.models[0].answer
    held = lambda *images, **wanted: may_answer.wait() and answer(*images, **wanted)  # noqa: E731
    monkeypatch.setattr(service.models[0], "answer", held)
    server = Server("127.0.0.1", 0, LIMITS)
    server.start(service)
    idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    idle.request("GET", "/healthz")
    idle.getresponse().read()
    found: list[int] = []
    asker = threading.Thread(target=lambda: found.append(ask(server, "POST", "/api/predict", image.read_bytes())[0]))
    asker.start()
    time.sleep(0.3)
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    time.sleep(0.3)
    assert not found  # the answer cannot be finished yet
    may_answer.set()
    stopper.join()
    asker.join()
    assert found == [200]
    idle.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


def test_where_it_listens(capsys: pytest.CaptureFixture[str], small_runs: list[Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(small_runs[0]), "--port", str(port)]) == 2
        sentence = capsys.readouterr().err
        assert f"cannot listen on port {port} of 127.0.0.1" in sentence
        assert "Choose another with --port" in sentence
    assert main(["serve", "absent", "--port", "0"]) == 2
    assert "no such run folder" in capsys.readouterr().err
    assert check_host("localhost") == "127.0.0.1"
    for host in ("0.0.0.0", "192.168.1.2", "example.org"):
        with pytest.raises(VitletError, match="must be a loopback address"):
            check_host(host)


@pytest.mark.heavy
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_with_code_0(ending: signal.Signals, small_runs: list[Path]) -> None:
    server, port = bench.start(small_runs[:1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    server.send_signal(ending)
    assert server.wait(timeout=20) == 0
    connection.close()
    assert server.stdout is not None
    server.stdout.close()


@pytest.mark.heavy
def test_a_thousand_requests_good_and_bad(small_runs: list[Path]) -> None:
    server, port = bench.start(small_runs[:1])
    try:
        found = bench.load(port, server.pid, requests=1000, clients=4)
    finally:
        code = bench.stop(server)
    everything = [value for values in found.seconds.values() for value in values]
    print(f"p99 {bench.percentile(everything, 99):.0f} ms, memory {found.memory}")
    assert found.wrong == []
    assert len(everything) == 1000
    assert found.memory[1] < found.memory[0] + 100  # MiB; a leak of one upload in ten would be more
    assert code == 0


@pytest.mark.heavy
def test_the_page_in_a_real_browser(browser: Any, small_runs: list[Path], image: Path, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    hostile = tmp_path / "<img src=x onerror=alert(1)>.png"
    hostile.write_bytes(image.read_bytes())
    broken = tmp_path / "broken.png"
    broken.write_bytes(image.read_bytes()[:80])
    server, port = bench.start(small_runs[:2])
    try:
        browser.get_log("browser")
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        )
        browser.get(f"http://127.0.0.1:{port}/")
        wait = WebDriverWait(browser, 30)
        wait.until(lambda _: "run1" in browser.find_element(By.ID, "served").text)
        browser.find_element(By.ID, "files").send_keys(f"{hostile}\n{image}")
        wait.until(lambda _: len(browser.find_elements(By.CSS_SELECTOR, ".answers")) == 2)
        assert len(browser.find_elements(By.CSS_SELECTOR, ".answer")) == 4
        assert len(browser.find_elements(By.CSS_SELECTOR, "canvas")) == 12
        assert browser.find_elements(By.CSS_SELECTOR, "h2")[1].text == hostile.name
        drawn = "return document.querySelector('canvas').getContext('2d').getImageData(9, 9, 1, 1).data[3]"
        assert browser.execute_script(drawn) == 255
        assert "images of 16 × 16 px, patches of 4 × 4 px" in browser.find_element(By.ID, "served").text
        assert len(browser.find_elements(By.CSS_SELECTOR, ".ramp")) == 4
        small = browser.execute_script("return document.querySelector('canvas').getBoundingClientRect().width")
        assert small >= 140
        browser.find_element(By.CSS_SELECTOR, "canvas").click()
        large = "return document.querySelector('dialog[open] canvas').getBoundingClientRect().width"
        assert browser.execute_script(large) > 1.5 * small
        browser.execute_script("document.getElementById('zoom').click()")
        assert not browser.find_elements(By.CSS_SELECTOR, "dialog[open]")
        browser.find_element(By.ID, "camera").click()
        wait.until(lambda _: browser.execute_script("return document.getElementById('video').videoWidth") > 0)
        browser.find_element(By.ID, "shot").click()
        wait.until(lambda _: len(browser.find_elements(By.CSS_SELECTOR, ".answers")) == 3)
        assert browser.get_log("browser") == []
        browser.find_element(By.ID, "files").send_keys(str(broken))
        wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".problem"))
        assert "cannot read the image" in browser.find_element(By.CSS_SELECTOR, ".problem").text
        wide = "return document.documentElement.scrollWidth <= innerWidth"
        assert browser.execute_script(wide)
        loaded = "return performance.getEntriesByType('resource').map(each => new URL(each.name).host)"
        assert set(browser.execute_script(loaded)) <= {f"127.0.0.1:{port}", ""}
    finally:
        code = bench.stop(server)
    assert code == 0


def test_a_refused_upload_is_taken_whole(server: Server) -> None:
    body = bytes(3_000_000)  # more than fits into the buffers on the way: its sender reads only after it has sent
    head = f"POST /elsewhere HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: {len(body)}\r\n"
    answer = raw(server, f"{head}Connection: close\r\n\r\n".encode() + body)
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"not found; /openapi.json" in answer


def test_an_answer_must_be_taken(service: Service) -> None:
    limits = Limits(read_seconds=30, write_seconds=0.5)
    server = Server("127.0.0.1", 0, limits)
    server.start(service)
    asked = f"GET /page.js HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as visitor:
            visitor.settimeout(0.2)
            with pytest.raises((TimeoutError, ConnectionError)):  # answers pile up until nothing more is accepted
                while True:
                    visitor.sendall(asked * 200)
            time.sleep(1.5)
            assert not server.server_state.connections
    finally:
        assert server.stop()


OUTLASTING = """
import sys, torch
from vitlet.cli import main
from vitlet.cli.serving import answers, limits
limits.Limits.__init__.__defaults__ = (*limits.Limits.__init__.__defaults__[:-1], 0.3)
def forever(*_, **__):
    print("answering", flush=True)
    values = torch.rand(300, 300)
    while True:
        values = (values @ values).softmax(-1)
answers.ServedModel.answer = forever
sys.exit(main(["serve", sys.argv[1], "--port", "0"]))
"""


@pytest.mark.heavy
def test_answers_that_outlast_the_grace_end_with_code_0(small_runs: list[Path], image: Path) -> None:
    command = [sys.executable, "-c", OUTLASTING, str(small_runs[0])]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # the answer shall not take every core
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=one_thread)
    assert server.stdout is not None
    port = next(int(line.split("127.0.0.1:")[1].split("/")[0]) for line in server.stdout if line.startswith("serving"))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/api/predict", image.read_bytes())
    assert server.stdout.readline() == "answering\n"
    server.send_signal(signal.SIGTERM)
    said, complaints = server.communicate(timeout=120)
    connection.close()
    assert (server.returncode, complaints) == (0, "")
    assert said == "stopped; some answers were not finished in time.\n"


def test_who_waits_too_long_is_sent_away(service: Service, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("127.0.0.1", 0, Limits(answer_seconds=0.2))
    may_answer, answer = threading.Event(), service.models[0].answer
    held = lambda *images, **wanted: may_answer.wait() and answer(*images, **wanted)  # noqa: E731
    monkeypatch.setattr(service.models[0], "answer", held)
    server.start(service)
    found: list[int] = []
    first = threading.Thread(target=lambda: found.append(ask(server, "POST", "/api/predict", image.read_bytes())[0]))
    first.start()
    time.sleep(0.3)
    status, answered, headers = ask(server, "POST", "/api/predict", image.read_bytes())
    assert (status, headers["Retry-After"]) == (503, "2")
    assert "the server is busy" in answered["error"]
    may_answer.set()
    first.join()
    assert found == [200]
    assert server.stop()


def test_without_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "any", "--port", "0"]) == 2
    assert "vitlet serve needs uvicorn: pip install 'vitlet[serve]'." in capsys.readouterr().err
