"""The notebooks, from a cold start: a new kernel in an empty folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def executed(name: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A notebook after all its cells have run in ``work``."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient: pip install 'vitlet[notebook]'")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install 'vitlet[notebook]'")
    monkeypatch.setenv("IPYTHONDIR", str(work.parent / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "examples" / name, as_version=4)
    nbformat.validate(notebook)
    work.mkdir()
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()
    return notebook


def test_there_is_one_for_each_user() -> None:
    assert {"folder.ipynb", "own_loop.ipynb", "paper.ipynb"} <= {path.name for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown" and "".join(cells[0]["source"]).startswith("# ")
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.heavy
def test_comparison_of_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    notebook = executed("compare.ipynb", work, monkeypatch)
    printed = "".join(_texts(notebook))
    assert "drloc:" in printed
    assert "drloc/error_cells" in printed
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "image/png" in _data(output)]
    assert len(pictures) == 2
    assert (work / "compare.html").stat().st_size > 50_000


@pytest.mark.heavy
def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    printed = "".join(_texts(executed("folder.ipynb", work, monkeypatch)))
    assert "chosen for" in printed
    assert "of 100 images" in printed
    assert printed.count("'probability'") >= 3
    assert (work / "report.html").stat().st_size > 50_000


@pytest.mark.heavy
def test_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = "".join(_texts(executed("own_loop.ipynb", tmp_path / "work", monkeypatch)))
    assert "token grid of layer layer4" in printed
    assert "'sprel/accuracy'" in printed and "'sprel/chance'" in printed
    assert "task weights in the model: []" in printed


@pytest.mark.heavy
def test_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    printed = "".join(_texts(executed("paper.ipynb", work, monkeypatch)))
    assert "published accuracy: " in printed
    assert "| drloc |" in printed
    assert (work / "studies" / "digits" / "report" / "report.html").is_file()


def _data(output: Any) -> Any:
    return output.get("data", {})


def _texts(notebook: Any) -> list[str]:
    return [output["text"] for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]
