"""The argument parser of the commands, and its help texts: usage, a sentence, an example, options in groups.

A command that trains has more than a hundred options. ``--help`` shows those that most people need, ``--help-all`` the
others, and ``--help-task NAME`` the options of one task.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vitlet.config import TERM_OPTIONS
from vitlet.errors import VitletError, nearest
from vitlet.tasks import TASKS
from vitlet.tasks.declared import require_task, summary

USUAL: dict[str, dict[str, Any]] = {
    "run": {"metavar": "RUN", "help": "run folder"},
    "runs": {"metavar": "RUN", "nargs": "+", "help": "run folders; several are compared"},
    "--data-dir": {"metavar": "DIR", "help": "folder of named datasets, or of the images that a table lists"},
    "--device": {"metavar": "NAME", "default": "auto", "help": "auto, cpu, cuda, cuda:1 or mps (default: auto)"},
    "--json": {"action": "store_true", "help": "print JSON"},
}
"""Arguments that mean the same to several commands."""

WIDEST = 110
"""Columns of a help text at most; a narrower terminal gets narrower lines."""


class Parser(argparse.ArgumentParser):
    """An argument parser with short help texts and error messages that name the nearest known flag.

    Args:
        prog: the command, such as ``vitlet train``.
        description: what it does, in a sentence.
        example: command lines for ``--help``.
        epilog: text after the options.
    """

    def __init__(
        self, prog: str, description: str | None = None, example: str | None = None, epilog: str | None = None
    ) -> None:
        super().__init__(prog, description=description, epilog=epilog, allow_abbrev=False, add_help=False)
        self.example = example
        self.hidden: set[str] = set()
        about = {"action": "help", "default": argparse.SUPPRESS, "help": "show this help and exit"}
        self.help_group = self.add_argument_group("help")
        self.help_group.add_argument("-h", "--help", **about)  # type: ignore[arg-type]

    def add_usual(self, *names: str) -> None:
        """Add arguments of `USUAL`."""
        for name in names:
            self.add_argument(name, **USUAL[name])

    def actions(self) -> list[argparse.Action]:
        """All arguments and options, in the order in which they were added."""
        return list(self._actions)

    def sections(self) -> list[tuple[str, list[argparse.Action]]]:
        """The parts of a help text: arguments, options by group, help last."""
        titles = {"positional arguments": "arguments"}
        groups = sorted(self._action_groups, key=lambda group: group is self.help_group)
        return [(titles.get(str(group.title), str(group.title)), group._group_actions) for group in groups]

    def format_usage_line(self) -> str:
        """The usage line."""
        return f"usage: {usage_line(self)}\n"

    def format_help(self) -> str:
        """The text of ``--help``: without the options in ``hidden``."""
        return help_text(self, lambda action: action.dest not in self.hidden)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error message as a `VitletError`."""
        raise VitletError(f"{message}. See `{self.prog} --help`.")

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse; unknown flags are refused with the nearest known one."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
            if flag.startswith("-"):
                known = [name for action in self._actions for name in action.option_strings]
                raise VitletError(f"unknown flag {flag}.{nearest(flag, known)} See `{self.prog} --help`.")
            raise VitletError(f"unexpected argument {flag!r}.{_spaced(arguments)} See `{self.prog} --help`.")
        return namespace


def _spaced(words: Sequence[str]) -> str:
    """A hint where words next to each other are a path that has spaces."""
    parts = (" ".join(words[start:end]) for start in range(len(words)) for end in range(start + 2, len(words) + 1))
    path = next((part for part in parts if Path(part).exists()), None)
    return f" A path with spaces needs quotes: {shlex.quote(path)}." if path else ""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """argparse's formatter with lines as wide as the terminal, and ``--[no-]flag`` for a switch."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
        super().__init__(prog, max_help_position=32, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return invocation(action)


def invocation(action: argparse.Action) -> str:
    """An option as it is typed, such as ``-b, --batch-size N``; an argument by its name."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    if isinstance(action, argparse.BooleanOptionalAction):
        return f"--[no-]{action.option_strings[0].removeprefix('--')}"
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return f"{names} {value}{'...' if action.nargs == '+' else ''}"


def usage_line(parser: Parser) -> str:
    """The usage line: the command, its arguments, and the options that it cannot do without."""
    words = [parser.prog]
    for action in parser.actions():
        name = invocation(action).rpartition(", ")[2]
        if action.option_strings:
            words += [name] if action.required else []
        else:
            many = f"{name}..." if action.nargs in ("+", "*") else name
            words.append(f"[{many}]" if action.nargs in ("?", "*") else many)
    return " ".join([*words, "[options]"])


def help_text(parser: Parser, shown: Callable[[argparse.Action], bool]) -> str:
    """Usage, description, example and the options for which ``shown`` is true, in groups."""
    formatter = HelpFormatter(parser.prog)
    formatter.add_text(f"usage: {usage_line(parser)}")
    formatter.add_text(wrapped(parser.description, formatter))
    if parser.example:
        formatter.add_text("\n".join(["example:", *(f"  {line}" for line in parser.example.splitlines())]))
    for title, actions in parser.sections():
        formatter.start_section(title)
        formatter.add_arguments([action for action in actions if shown(action)])
        formatter.end_section()
    formatter.add_text(wrapped(parser.epilog, formatter))
    return f"{formatter.format_help().rstrip()}\n"


def wrapped(text: str | None, formatter: argparse.HelpFormatter) -> str | None:
    """A paragraph filled to the width of the help text."""
    return textwrap.fill(" ".join(text.split()), formatter._width) if text else None


class HelpAll(argparse.Action):
    """``--help-all``: every option but those of the tasks."""

    def __call__(self, parser: Any, *_: Any) -> None:
        """Print and exit."""
        print(help_text(parser, lambda action: "." not in action.dest), end="")
        parser.exit()


class HelpTask(argparse.Action):
    """``--help-task NAME``: the options of one task."""

    def __call__(self, parser: Any, _: Any, name: str | Sequence[Any] | None, *__: Any) -> None:
        """Print and exit."""
        print(task_help(parser, str(name)), end="")
        parser.exit()


def task_help(parser: Parser, name: str) -> str:
    """Help of a task: what it does, its own options, and the options of every task."""
    require_task(name)
    formatter = HelpFormatter(parser.prog)
    data = " DATA" if any(action.dest == "data" for action in parser.actions()) else ""
    formatter.add_text(f"usage: {parser.prog}{data} --task {name}[=WEIGHT] [options]")
    formatter.add_text(f"{name}: {summary(name)}")
    options = [action for action in parser.actions() if action.dest.startswith(f"{name}.")]
    common = [action for action in options if action.dest.partition(".")[2] in TERM_OPTIONS]
    for title, actions in (
        (f"options of {name}", [action for action in options if action not in common]),
        ("options of every task", common),
    ):
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    formatter.add_text(f"Other tasks: {', '.join(other for other in TASKS if other != name)}.")
    return f"{formatter.format_help().rstrip()}\n"
