"""The settings of a run as command-line flags, made from `RunConfig` and from the tasks' declarations.

No torch here: ``--help`` and a mistyped flag answer at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import yaml

from vitlet.config import PRESET, TERM_OPTIONS, RunConfig
from vitlet.errors import VitletError, nearest
from vitlet.tasks import TASKS
from vitlet.tasks.declared import Option, declared_options, declared_weight, require_task
from vitlet.values import Names


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, with the nearest known flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=Formatter, **options)

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
            raise VitletError(f"unexpected argument {flag!r}. See `{self.prog} --help`.")
        return namespace


class Formatter(argparse.HelpFormatter):
    """A little wider than argparse's."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=118)


def add_run_flags(parser: Parser, kind: type[RunConfig] = RunConfig) -> None:
    """DATA, ``-c``, one flag per setting of this kind of run, ``--task`` and the tasks' own flags."""
    about = next(str(item.metadata["help"]) for item in kind.settings() if item.name == "data")
    parser.add_argument("data", metavar="DATA", nargs="?", default=argparse.SUPPRESS, help=about)
    parser.add_argument("-c", "--config", metavar="FILE", help="YAML file with the same keys; flags override it")
    hints = get_type_hints(kind)
    group = parser.add_argument_group("settings")
    for item in kind.settings():
        if item.name == "data":
            continue
        names = [*item.metadata["flags"], "--" + item.name.replace("_", "-")]
        shown = _with_default(item.metadata["help"], None if item.default is MISSING else item.default)
        _add_flag(group, names, item.name, hints[item.name], shown)
    group = parser.add_argument_group("tasks")
    group.add_argument(
        "--task",
        metavar="NAME[=WEIGHT]",
        action="append",
        default=argparse.SUPPRESS,
        help=f"a task beside the labels, at its suggested weight or another; or none; repeatable ({', '.join(TASKS)})",
    )
    for name in TASKS:
        try:
            options: dict[str, Option] = {**declared_options(name), **TERM_OPTIONS}
        except VitletError:  # of a package that is broken: said when its task is asked for, and by `vitlet tasks`
            continue
        for key, option in options.items():
            flag = f"--{name}.{key.replace('_', '-')}"
            _add_flag(group, [flag], f"{name}.{key}", option.hint, _with_default(option.help, option.default))


def run_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The file's values overridden by the flags that were given, under the keys of a YAML file."""
    given = {key: value for key, value in vars(namespace).items() if key not in ("config", "command")}
    values = RunConfig.read(namespace.config) if namespace.config else {}
    weights = dict(values.get("task") or {}) if isinstance(values.get("task"), dict) else values.get("task")
    entries = given.pop("task", [])
    if "none" in entries:
        if len(entries) > 1:
            raise VitletError("--task none means no task at all; leave it out, or the others.")
        entries, weights = [], {}
        values = {key: value for key, value in values.items() if key not in TASKS}
    for entry in entries:
        name, separator, weight = entry.partition("=")
        if separator and not weight:
            raise VitletError(f"--task {entry}: needs a weight, such as --task {name}=0.5.")
        require_task(name)
        weights = {**(weights or {}), name: weight or declared_weight(name)}
    if weights is not None:
        values["task"] = weights
    if "aug" in given and given["aug"] != values.get("aug", given["aug"]):
        values = {key: value for key, value in values.items() if key not in PRESET}  # a run's file holds its preset's
    if "data" in given and given["data"] != values.get("data", given["data"]):
        values.pop("num_classes", None)  # of the other data
    if "model_kwargs" in given:
        given["model_kwargs"] = {**(values.get("model_kwargs") or {}), **_pairs(given["model_kwargs"])}
    for key, value in given.items():
        task, separator, option = key.partition(".")
        if separator:
            values[task] = {**(values.get(task) or {}), option: value}
        else:
            values[key] = value
    return values


def _add_flag(group: Any, names: list[str], key: str, hint: Any, shown: str) -> None:
    choices = [inner for inner in get_args(hint) if inner is not type(None)] or [hint]
    base = choices[0] if get_origin(hint) is not Literal else hint
    options: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS, "help": shown.replace("%", "%%")}
    if base is bool:
        group.add_argument(*names, action=argparse.BooleanOptionalAction, **options)
    elif key == "model_kwargs":
        group.add_argument(*names, nargs="+", metavar="NAME=VALUE", **options)
    elif base == Names:
        group.add_argument(*names, nargs="+", metavar="NAME", **options)
    else:
        words = "|".join(map(str, get_args(base))) if get_origin(base) is Literal else ""
        group.add_argument(*names, metavar=words or key.rpartition(".")[2].upper(), **options)


def _with_default(help_text: str, default: Any) -> str:
    return help_text if default is None or "default" in help_text else f"{help_text} [{default}]"


def _pairs(entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator:
            raise VitletError(f"--model-kwargs {entry}: needs NAME=VALUE.")
        listed = f"[{value}]" if "," in value and value[0] not in "[({" else value
        try:
            values[name] = yaml.safe_load(listed.replace("(", "[").replace(")", "]") if "," in value else value)
        except yaml.YAMLError as error:
            raise VitletError(f"--model-kwargs {entry}: {value} is no value; lists are written 2,2,6.") from error
    return values
