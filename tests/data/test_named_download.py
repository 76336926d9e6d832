"""Downloads from a real server on this machine, and archives that mean harm."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from vitlet.data.archives import MAX_SMALL, unpack
from vitlet.data.named import OFFICIAL, load_named
from vitlet.data.named import download as module
from vitlet.data.named.download import download, download_dataset
from vitlet.data.named.official import Remote
from vitlet.errors import VitletError

WNID = "n01440764"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder; ``/broken/`` promises more than it sends, ``/slow/`` never ends."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.startswith(("/broken/", "/slow/")):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)
        self.wfile.flush()
        if self.path.startswith("/slow/"):
            time.sleep(5)
        return None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "served").mkdir()
    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (7, 7, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def archive(path: Path, members: dict[str, bytes]) -> str:
    """A real archive, and its MD5."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in members.items():
                zipped.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def files_under(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"
    )


MEMBERS = {f"imagenette2-320/{split}/{WNID}/1.png": picture() for split in ("train", "val")}


@pytest.fixture
def offered(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Remote:
    """A tiny imagenette on the server, in place of the official one."""
    checksum = archive(tmp_path / "served" / "imagenette2-320.tgz", MEMBERS)
    remote = Remote(f"{server}/imagenette2-320.tgz", checksum, "", "imagenette2-320")
    monkeypatch.setitem(OFFICIAL, "imagenette", replace(OFFICIAL["imagenette"], files=(remote,)))
    return remote


def offer(monkeypatch: pytest.MonkeyPatch, remote: Remote) -> None:
    monkeypatch.setitem(OFFICIAL, "imagenette", replace(OFFICIAL["imagenette"], files=(remote,)))


def test_download_unpack_load(tmp_path: Path, offered: Remote, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "new" / "data"
    found = load_named("imagenette", data, download=True, partial=True)
    assert found.classes == (WNID,) and int(found.train.image(0, 3)[0, 0, 0]) == 7 and found.test is not None
    assert files_under(data) == sorted(MEMBERS), "neither the archive nor anything half done is left"
    assert "imagenette2-320.tgz" in capfd.readouterr().err, "progress was shown"
    (tmp_path / "served" / "imagenette2-320.tgz").unlink()
    assert len(load_named("imagenette", data, download=True, partial=True).train) == 1, "fetched once only"


def test_files_that_are_no_archives(tmp_path: Path, server: str) -> None:
    content = os.urandom(1_000_000)
    (tmp_path / "served" / "x.mat").write_bytes(content)
    official = replace(
        OFFICIAL["svhn"],
        files=(Remote(f"{server}/x.mat", hashlib.sha256(content).hexdigest(), "svhn", "svhn/x.mat"),),
    )
    download_dataset(official, tmp_path / "data")
    assert (tmp_path / "data" / "svhn" / "x.mat").read_bytes() == content


def test_a_wrong_checksum_is_refused(tmp_path: Path, offered: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("0" * 32, "0" * 64):
        offer(monkeypatch, replace(offered, checksum=wrong))
        with pytest.raises(VitletError, match=f"not the official {wrong}"):
            load_named("imagenette", tmp_path / "data", download=True, partial=True)
        assert files_under(tmp_path / "data") == []


@pytest.mark.parametrize("way", ["broken", "slow", "nothing here"])
def test_an_interrupted_download_leaves_nothing(
    tmp_path: Path, offered: Remote, server: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    remote = replace(offered, url=f"{server}/{way.replace(' ', '-')}/imagenette2-320.tgz")
    offer(monkeypatch, remote)
    reason = {"broken": "broke off after 1,000 of 1,000,000 bytes", "slow": "timed out", "nothing here": "404"}[way]
    with pytest.raises(VitletError, match=reason):
        load_named("imagenette", tmp_path / "data", download=True, partial=True)
    assert files_under(tmp_path / "data") == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_download_that_is_stopped(tmp_path: Path, offered: Remote, server: str, how: signal.Signals) -> None:
    place = tmp_path / "data" / "imagenette2-320.tgz"
    place.parent.mkdir()
    code = (
        "import sys; from pathlib import Path; from vitlet.data.named.download import download;"
        "from vitlet.data.named.official import Remote;"
        "download(Remote(sys.argv[1], '0' * 32, '', 'x'), Path(sys.argv[2]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"{server}/slow/a.tgz", str(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    part = place.with_name(place.name + ".vitlet-part")
    limit = time.monotonic() + 20
    while not part.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert part.exists()
    process.send_signal(how)
    process.communicate(timeout=20)
    assert not place.exists(), "never a half file under its own name"
    assert part.exists() is (how == signal.SIGKILL)
    download_dataset(replace(OFFICIAL["imagenette"], files=(offered,)), tmp_path / "data")
    assert files_under(tmp_path / "data") == sorted(MEMBERS), "what a killed process left is swept"


def test_offline(tmp_path: Path, offered: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, replace(offered, url="http://127.0.0.1:9/imagenette2-320.tgz"))
    with pytest.raises(VitletError) as caught:
        load_named("imagenette", tmp_path, download=True, partial=True)
    official = OFFICIAL["imagenette"]
    for words in ("cannot download http://127.0.0.1:9", "offline", official.address, official.layout, str(tmp_path)):
        assert words in str(caught.value)
    with pytest.raises(VitletError, match=r"cannot be downloaded without an account.*image-net\.org"):
        load_named("imagenet1k", tmp_path, download=True)
    with pytest.raises(VitletError, match="is not a web address"):
        download(replace(offered, url=(tmp_path / "served").as_uri()), tmp_path / "x")


def test_an_archive_that_is_there_is_used_and_kept(tmp_path: Path, offered: Remote) -> None:
    own = tmp_path / "data" / "imagenette2-320.tgz"
    own.parent.mkdir()
    own.write_bytes(b"another file")
    with pytest.raises(VitletError, match="incomplete or was altered"):
        load_named("imagenette", own.parent, download=True, partial=True)
    assert own.exists()
    (tmp_path / "served" / own.name).replace(own)
    assert len(load_named("imagenette", own.parent, download=True, partial=True).train) == 1 and own.exists()


def test_two_processes_fetch_once(tmp_path: Path, offered: Remote) -> None:
    official = replace(OFFICIAL["imagenette"], files=(offered,))
    problems: list[Exception] = []

    def work() -> None:
        try:
            download_dataset(official, tmp_path / "data")
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and files_under(tmp_path / "data") == sorted(MEMBERS)


def test_a_folder_that_cannot_be_written(tmp_path: Path, offered: Remote) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VitletError, match="cannot write into"):
        download_dataset(OFFICIAL["imagenette"], tmp_path / "file" / "data")


# Archives


def hostile(path: Path, kind: str) -> None:
    """One good member, then one of the named kind."""
    names = {"parent": "../out.png", "inner": "a/../../out.png", "absolute": "/tmp/vitlet-out.png"}
    bad = {**names, "windows": "..\\out.png", "drive": "C:/out.png"}.get(kind)
    if kind == "bomb":
        archive(path, {"good.png": picture(), "zeros": bytes(MAX_SMALL + 1)})
    elif bad is not None:
        archive(path, {"good.png": picture(), bad: picture()})
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            zipped.writestr("good.png", picture())
            link = zipfile.ZipInfo("link")
            link.external_attr = 0o120777 << 16
            zipped.writestr(link, "/etc/passwd")
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, type_ in (("good.png", tarfile.REGTYPE), ("bad", getattr(tarfile, kind, tarfile.REGTYPE))):
                member = tarfile.TarInfo(name)
                member.type, member.linkname = type_, "good.png"
                if kind == "sparse" and name == "bad":
                    member.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": "1000"}
                tar.addfile(member)


@pytest.mark.parametrize("suffix", [".tgz", ".zip"])
@pytest.mark.parametrize(
    "kind", ["parent", "inner", "absolute", "windows", "drive", "bomb", "SYMTYPE", "LNKTYPE", "FIFOTYPE", "sparse"]
)
def test_hostile_archives_write_nothing(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"hostile{suffix}"
    hostile(path, kind)
    target = tmp_path / "in" / "target"
    target.mkdir(parents=True)
    with pytest.raises(VitletError, match=r"is refused: .* Nothing was unpacked"):
        unpack(path, target)
    assert list((tmp_path / "in").rglob("*")) == [target]
    assert not Path("/tmp/vitlet-out.png").exists()


@pytest.mark.parametrize("suffix", [".tgz", ".zip"])
def test_broken_archives_write_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"broken{suffix}"
    archive(path, {f"a/{n}.png": os.urandom(5000) for n in range(20)})
    whole = path.read_bytes()
    (tmp_path / "target").mkdir()
    flipped = bytearray(whole)
    flipped[20_000] ^= 255
    for content in (whole[: len(whole) // 2], b"text", bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(VitletError, match=r"cannot unpack .* Download it again"):
            unpack(path, tmp_path / "target")
        assert list((tmp_path / "target").iterdir()) == []
    path.write_bytes(whole)
    unpack(path, tmp_path / "target")
    assert len(files_under(tmp_path / "target")) == 20
    with pytest.raises(VitletError, match="exists already and would be overwritten"):
        unpack(path, tmp_path / "target")


def test_a_hostile_download_is_not_kept(tmp_path: Path, offered: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    served = tmp_path / "served" / "imagenette2-320.tgz"
    hostile(served, "parent")
    offer(monkeypatch, replace(offered, checksum=hashlib.md5(served.read_bytes()).hexdigest()))
    with pytest.raises(VitletError, match="is refused"):
        load_named("imagenette", tmp_path / "data", download=True, partial=True)
    assert files_under(tmp_path / "data") == []
