"""The notebook, from a cold start: a new kernel in an empty folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import ROOT

NOTEBOOK = ROOT / "examples" / "compare.ipynb"


@pytest.mark.heavy
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient: pip install 'vitlet[notebook]'")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install 'vitlet[notebook]'")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # stripped, as it is kept
    work = tmp_path / "work"
    work.mkdir()
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()
    told = "".join(_texts(notebook))
    assert "labels and drloc:" in told
    assert "drloc/error_cells" in told
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "image/png" in _data(output)]
    assert len(pictures) == 2
    assert (work / "compare.html").stat().st_size > 50_000


def _data(output: Any) -> Any:
    return output.get("data", {})


def _texts(notebook: Any) -> list[str]:
    return [output["text"] for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]
