"""Help texts: usage, sentence, example and options in groups; the common options first; completion in the shell."""

from __future__ import annotations

import re
import subprocess
from argparse import BooleanOptionalAction, _SubParsersAction
from importlib.util import find_spec
from pathlib import Path

import pytest

from vitlet.cli import COMMAND_GROUPS, COMMANDS, command_parser, main, usage
from vitlet.cli.flags import FIRST, Parser
from vitlet.tasks import TASKS

DANGLING = re.compile(r"^(of|the same|to|for|such|as|with|what|whether|how|at|in|on|and|\.\.\.)\b|\[[\w.]+\]|\.\.\.")
"""Help texts that do not begin with the thing, or that write a default in another way than "(default: 0)"."""


def all_parsers() -> dict[str, Parser]:
    """Every command and every action of a command by what is typed."""
    found = {}
    for name in COMMANDS:
        parser = command_parser(name)
        found[name] = parser
        for action in parser.actions():
            if isinstance(action, _SubParsersAction):
                found |= {f"{name} {word}": part for word, part in action.choices.items()}
    return found


PARSERS = all_parsers()


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        assert main(words) == 0
    except SystemExit as end:
        assert end.code == 0
    return capsys.readouterr().out


def test_the_first_screen_lists_every_command_once_in_groups() -> None:
    text = usage()
    for name in COMMANDS:
        assert len(re.findall(rf"^  {name}\b ?[\[A-Z a-z|]*.*  ", text, flags=re.MULTILINE)) == 1, name
    for title in COMMAND_GROUPS:
        assert f"\n{title}:\n" in text
    assert len(text.splitlines()) < 50 and max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("name", PARSERS)
def test_a_command_has_usage_sentence_example_and_groups(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of([*name.split(), "--help"], capsys)
    lines = text.splitlines()
    assert lines[0].startswith(f"usage: vitlet {name}") and lines[1] == ""
    assert re.match(r"[A-Z].*[a-z,`.]", lines[2])
    assert f"\nexample:\n  vitlet {name}" in text
    assert "\nhelp:\n  -h, --help" in text
    assert len(lines) <= 70
    assert PARSERS[name].prog == f"vitlet {name}"


@pytest.mark.parametrize("name", PARSERS)
def test_help_texts_begin_with_the_thing(name: str) -> None:
    for action in PARSERS[name].actions():
        about = action.help or ""
        assert about, f"{name}: {action.dest} has no help"
        assert not DANGLING.search(about), f"{name}: {action.dest}: {about}"
        assert not about.endswith("."), f"{name}: {action.dest}: {about}"


def test_common_options_first_and_the_others_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    short = help_of(["train", "--help"], capsys)
    everything = help_of(["train", "--help-all"], capsys)
    parser = PARSERS["train"]
    for action in parser.actions():
        name = (action.option_strings or [str(action.metavar)])[-1].removeprefix("--no-")
        shown = f"--[no-]{action.option_strings[0][2:]}" if isinstance(action, BooleanOptionalAction) else name
        assert (f"{shown} " in short) == (action.dest not in parser.hidden), action.dest
        assert (f"{shown} " in everything) == ("." not in action.dest), action.dest
    assert len(short.splitlines()) < 60
    assert "  --seed N  " in short and "random seed for initialization" in short
    titles = re.findall(r"^([a-z ]+):$", everything, flags=re.MULTILINE)
    wanted = ["data", "model", "optimisation", "augmentation", "tasks", "hardware"]
    assert titles == ["example", "arguments", *wanted, "checkpoints and logging", "run", "help"]
    assert {"epochs", "minutes", "model", "img_size", "task", "aug", "device", "output", "resume", "seed"} <= FIRST


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_a_help_text_of_its_own(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(["train", "--help-task", task], capsys)
    assert text.startswith(f"usage: vitlet train DATA --task {task}[=WEIGHT]")
    flags = set(re.findall(r"^  --(?:\[no-\])?([\w.-]+)", text, flags=re.MULTILINE))
    wanted = {action.dest for action in PARSERS["train"].actions() if action.dest.startswith(f"{task}.")}
    assert flags == {dest.replace("_", "-") for dest in wanted}


def test_help_of_an_unknown_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help-task", "drlok"]) == 2
    assert "unknown task 'drlok'. Did you mean 'drloc'" in capsys.readouterr().err


def test_lines_are_as_wide_as_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, help_of(["evaluate", "--help"], capsys).splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "300")
    assert max(map(len, help_of(["train", "--help-all"], capsys).splitlines())) <= 110


def test_bash_completes_commands_and_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if find_spec("shtab") is None:
        pytest.skip("needs shtab: pip install 'vitlet[completion]'")
    script = tmp_path / "vitlet"
    script.write_text(help_of(["completion", "bash"], capsys), encoding="utf-8")

    def completed(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in words)
        # What bash does at a TAB: the function finds the words in COMP_WORDS, and leaves its answer in COMPREPLY.
        code = f"""source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}
        $(complete -p vitlet | sed 's/.*-F \\([^ ]*\\).*/\\1/'); printf '%s\\n' "${{COMPREPLY[@]}}" """
        code = code.replace("$(complete", "function=$(complete").replace("); printf", "); $function; printf")
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert completed("vitlet", "pre") == ["pretrain", "predict"]
    assert set(completed("vitlet", "train", "--drloc.pa")) == {"--drloc.pairs", "--drloc.patch-augment"}
    assert completed("vitlet", "detect", "ev") == ["evaluate"]
    assert "--score" in completed("vitlet", "detect", "predict", "--sc")


def test_completion_without_its_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "vitlet completion needs shtab: pip install 'vitlet[completion]'" in capsys.readouterr().err
    assert main(["completion", "fish"]) == 2
