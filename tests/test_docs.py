"""Every code block of the README and of the docs, run for real, in order, in one folder per page."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import ROOT
from vitlet.cli import COMMANDS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
NOT_CODE = {"text"}
HEAVY = {
    f"docs/{name}.md" for name in ("few_labels", "report", "serve", "studies", "transfer", "use")
}  # many programs each


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.heavy if _name(page) in HEAVY else (), id=_name(page)) for page in PAGES],
)
def test_code_blocks_run(page: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        "OMP_NUM_THREADS": "1",  # threads that wait for a busy core wait long
        "PYTHONWARNINGS": "error::DeprecationWarning:vitlet",
    }
    for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in NOT_CODE:
            continue
        assert language in ("python", "bash"), f"{page.name}: a block in {language!r} is not run by anything"
        if language == "python":
            command = [sys.executable, "-c", code]
        else:
            code = re.sub(r"^make (?=demo)", f"make --directory {ROOT} ", code, flags=re.MULTILINE)
            command = ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{page.name}:\n{code}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_pages_of_commands_are_up_to_date() -> None:
    """A page per command, made from its help, and none of a command that is gone."""
    hooks: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    wanted, folder = hooks["command_pages"](), ROOT / "docs" / "commands"
    assert set(wanted) == {"index.md", *(f"{name}.md" for name in COMMANDS)}
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == wanted, "python docs/hooks.py"
    assert "| `--seed N` | random seed for initialization" in wanted["train.md"]
    assert "--checkpoint-hist" in wanted["train.md"] and "--checkpoint-hist" not in wanted["plan.md"]
    assert "## vitlet detect predict" in wanted["detect.md"]


def test_pre_commit_runs_the_linters_of_make_without_downloads() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    entries = [hook["entry"] for hook in repositories[0]["hooks"]]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(BIN)", ".venv/bin")
    for command in (".venv/bin/ruff check", ".venv/bin/ruff format", ".venv/bin/mypy"):
        assert command in rules
        assert any(entry.startswith(command) for entry in entries), command
    assert all(hook["language"] == "system" for hook in repositories[0]["hooks"])
