"""The wheel and the sdist: built, installed into a clean environment, run without this folder. And the site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from builders import ROOT

UV = Path(sys.executable).with_name("uv")
DEMO = "--model vit_tiny_patch16_224 --img-size 8 --in-chans 1 --hflip 0 -j 0 --epochs 2 --task drloc --task jigsaw"

pytestmark = pytest.mark.heavy


def run(*command: str | Path, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel, made from an sdist, made from this folder."""
    if not UV.exists():
        pytest.skip("needs uv beside Python, as `make` installs it")
    folder = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--quiet", "--out-dir", folder, ROOT, folder=folder)
    return folder


def test_what_is_in_them(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "vitlet").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours <= inside
    assert {name.partition("/")[0] for name in inside} == {"vitlet", f"{wheel.name.rpartition('-py3')[0]}.dist-info"}
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/vitlet/__init__.py"} <= names
    assert not {name for name in names if name.startswith((".venv", "runs", "build"))}


def test_digits_from_the_wheel_alone(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    clean = tmp_path / "clean"
    run(UV, "venv", "--quiet", "--python", sys.executable, clean, folder=tmp_path)
    python = clean / "bin" / "python"
    pinned = tmp_path / "pinned.txt"  # the versions that everything else was tested with
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [re.match(r"[\w.\[\]-]+==\S+(?: ; [^\\]+)?", line) for line in lines]
    pinned.write_text("\n".join(pin.group() for pin in pins if pin) + "\n", encoding="utf-8")
    run(UV, "pip", "install", "--quiet", "--python", python, "--constraint", pinned, wheel, folder=tmp_path)
    place = run(python, "-c", "import vitlet; print(vitlet.__file__, vitlet.__version__)", folder=tmp_path)
    assert str(clean) in place
    said = run(
        clean / "bin" / "vitlet", "train", "digits", *DEMO.split(), "--model-kwargs", "patch_size=2", "embed_dim=32",
        "depth=2", "num_heads=2", "--output", "run", folder=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file(), said
    assert "drloc" in run(clean / "bin" / "vitlet", "tasks", folder=tmp_path)


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("needs mkdocs-material and mkdocstrings, which `make test-all` installs")
    run(sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site", folder=ROOT)
    page = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    for name in ("attach", "Objective", "DRLoc", "localization_l1", "TaskSuite"):
        assert 'id="vitlet.' in page and name in page
    assert len(re.findall(r'class="doc doc-object', page)) > 40
    pictures = {path.stem for path in (tmp_path / "site" / "pictures").glob("*.svg")}
    assert {"drloc", "relvit", "jigsaw", "attention", "rotation"} <= pictures
    assert not list((tmp_path / "site").rglob("*.py"))


def test_pictures_are_what_the_scripts_draw(tmp_path: Path) -> None:
    for script in ("draw.py", "rooms.py"):
        run(sys.executable, ROOT / "docs" / "pictures" / script, tmp_path, folder=tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "pictures").glob("*.svg")}
