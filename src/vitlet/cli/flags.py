"""The settings of a run as command-line flags, made from `RunConfig` and from the tasks' declarations.

No torch here: ``--help`` and a mistyped flag answer at once.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import MISSING
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import yaml

from vitlet.config import PRESET, TERM_OPTIONS, BaseConfig, RunConfig
from vitlet.config.setting import TASK, Group, Settings
from vitlet.errors import VitletError, nearest
from vitlet.tasks import TASKS
from vitlet.tasks.declared import declared_options, declared_weight, require_task
from vitlet.values import Names

USUAL: dict[str, dict[str, Any]] = {
    "run": {"metavar": "RUN", "help": "run folder"},
    "runs": {"metavar": "RUN", "nargs": "+", "help": "run folders; several are compared"},
    "--data-dir": {"help": "of DATA: folder of named datasets, or of the images that a table lists"},
    "--device": {"default": "auto", "help": "auto, cpu, cuda, cuda:1, mps [auto]"},
    "--json": {"action": "store_true", "help": "print JSON"},
}
"""Arguments that mean the same to several commands."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, with the nearest known flag."""

    def __init__(self, prog: str, description: str | None = None, **options: Any) -> None:
        wider = partial(argparse.HelpFormatter, max_help_position=34, width=118)
        super().__init__(prog, description=description, allow_abbrev=False, formatter_class=wider, **options)

    def add_usual(self, *names: str) -> None:
        """Add arguments of `USUAL`."""
        for name in names:
            self.add_argument(name, **USUAL[name])

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into ours."""
        raise VitletError(f"{message}. See `{self.prog} --help`.")

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, and refuse anything unknown by its nearest name."""
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


def add_run_flags(parser: Parser, kind: type[BaseConfig] = RunConfig) -> None:
    """DATA, ``-c``, one flag per setting of this kind of run, ``--task`` and the tasks' own flags."""
    about = next(str(item.metadata["help"]) for item in kind.settings() if item.name == "data")
    parser.add_argument("data", metavar="DATA", nargs="?", default=argparse.SUPPRESS, help=about)
    parser.add_argument("-c", "--config", metavar="FILE", help="YAML file with the same keys; flags override it")
    tasks = add_settings(parser, kind).get(TASK) or parser.add_argument_group(TASK.title)
    about = "a task beside the labels, at its suggested weight or another; or none; repeatable"
    how: dict[str, Any] = {"metavar": "NAME[=WEIGHT]", "action": "append", "default": argparse.SUPPRESS}
    tasks.add_argument("--task", help=f"{about} ({', '.join(TASKS)})", **how)
    for name in TASKS:
        try:
            options = declared_options(name) | TERM_OPTIONS
        except VitletError:  # of a package that is broken: said when its task is asked for, and by `vitlet tasks`
            continue
        for key, option in options.items():
            _add_flag(tasks, [], f"{name}.{key}", option.hint, option.help, option.default)


def add_settings(parser: Parser, kind: type[Settings]) -> dict[Group, Any]:
    """One flag per setting but DATA, by group, that of tasks last; returns these parts of ``--help``."""
    hints, parts = get_type_hints(kind), {}
    for item in sorted(kind.settings(), key=lambda item: item.metadata["group"] is TASK):
        group, short = item.metadata["group"], item.metadata["flag"]
        if group not in parts:
            parts[group] = parser.add_argument_group(group.title)
        if item.name != "data":
            default = None if item.default is MISSING else item.default
            names = [short] if short else []
            _add_flag(parts[group], names, item.name, hints[item.name], item.metadata["help"], default)
    return parts


def run_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The file's values overridden by the flags that were given, under the keys of a YAML file."""
    given = dict(vars(namespace))
    file, entries = given.pop("config"), given.pop("task", [])
    values = RunConfig.read(file) if file else {}
    stored = values.get("task") or {}
    if entries == ["none"]:
        values = {key: value for key, value in values.items() if key not in TASKS} | {"task": {}}
    elif "none" in entries:
        raise VitletError("--task none means no task at all; leave it out, or the others.")
    elif entries and isinstance(stored, dict):
        values["task"] = stored | dict(map(_weighted, entries))
    if "aug" in given and given["aug"] != values.get("aug", given["aug"]):
        values = {key: value for key, value in values.items() if key not in PRESET}  # a run's file holds its preset's
    if "data" in given and given["data"] != values.get("data", given["data"]):
        values.pop("num_classes", None)  # of the other data
    if ":" in str(given.get("img_size", "")):
        first, _, last = str(given["img_size"]).partition(":")
        given |= {"img_size_start": first, "img_size": last}
    if "model_kwargs" in given:
        given["model_kwargs"] = {**(values.get("model_kwargs") or {}), **_pairs(given["model_kwargs"])}
    for key, value in given.items():
        task, separator, option = key.partition(".")
        if separator:
            values[task] = {**(values.get(task) or {}), option: value}
        else:
            values[key] = value
    return values


def _weighted(entry: str) -> tuple[str, str | float]:
    name, separator, weight = entry.partition("=")
    if separator and not weight:
        raise VitletError(f"--task {entry}: needs a weight, such as --task {name}=0.5.")
    require_task(name)
    return name, weight or declared_weight(name)


def _add_flag(group: Any, short: list[str], key: str, hint: Any, about: str, default: Any) -> None:
    """The flag of a setting or of a task's option; not given, it leaves no trace in the parsed arguments."""
    base = hint if get_origin(hint) is Literal else next(iter(get_args(hint)), hint)
    shown = about if default is None or "default" in about else f"{about} [{default}]"
    names = [*short, "--" + key.replace("_", "-")]
    options: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS, "help": shown.replace("%", "%%")}
    if base is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif key == "model_kwargs":
        options |= {"nargs": "+", "metavar": "NAME=VALUE"}
    elif base == Names:
        options |= {"nargs": "+", "metavar": "NAME"}
    else:
        words = "|".join(map(str, get_args(base))) if get_origin(base) is Literal else ""
        options["metavar"] = words or key.rpartition(".")[2].upper()
    group.add_argument(*names, **options)


def _pairs(entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator:
            raise VitletError(f"--model-kwargs {entry}: needs NAME=VALUE.")
        listed = f"[{value}]" if "," in value and value[0] not in "[({" else value
        try:
            values[name] = yaml.safe_load(listed.replace("(", "[").replace(")", "]") if "," in value else value)
        except Exception as error:  # beside YAML's own errors those of numbers, dates and nesting
            raise VitletError(f"--model-kwargs {entry}: {value} is no value; lists are written 2,2,6.") from error
    return values
